"""An engine core whose ranks hang is told to end while it has yet to kill them."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.storage_pair import Pair

pytestmark = [pytest.mark.engine]

DEADLINE_S = 60  # guards against a hang


def end(directory: Path, num_ranks: int, *, multiprocessing_shape: bool, answer: object) -> None:
    """Of a core: what a SIGTERM does to it once its storage has shut down."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", str(int(multiprocessing_shape)))
        pair = Pair(directory, num_ranks=num_ranks)
        pair.storage.shutdown()
        answer.put(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)  # type: ignore[attr-defined]


@pytest.fixture
def outlives(tmp_path: Path) -> Callable[..., bool]:
    def run(num_ranks: int, *, multiprocessing_shape: bool = True) -> bool:
        context = multiprocessing.get_context("spawn")
        answer = context.Queue()
        child = context.Process(
            target=end,
            args=(tmp_path, num_ranks),
            kwargs={"multiprocessing_shape": multiprocessing_shape, "answer": answer},
        )
        child.start()
        found = bool(answer.get(timeout=DEADLINE_S))
        child.join(DEADLINE_S)
        return found

    return run


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_core_outlives_sigterm_until_its_ranks_are_dead(
    outlives: Callable[..., bool], num_ranks: int
) -> None:
    assert outlives(num_ranks)


def test_the_process_of_who_uses_an_engine_is_left_alone(
    outlives: Callable[..., bool], tmp_path: Path
) -> None:
    assert not outlives(2, multiprocessing_shape=False)
    before = signal.getsignal(signal.SIGTERM)
    Pair(tmp_path / "here", num_ranks=2).storage.shutdown()
    assert signal.getsignal(signal.SIGTERM) == before
