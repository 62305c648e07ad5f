"""The referee of the conformance kit sees promises that are broken, and nothing where none is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.v1 import kv_storage
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_storage import KVStorageUpdate
from vllm.v1.request import Request

from engine.bounded import Bounded, BoundedBlocks, BoundedWorker
from engine.referee import Referee
from engine.storage_pair import _HASHER, BLOCK_TOKENS

pytestmark = [pytest.mark.engine]

BLOCKS = 16
SIZE = 1 << 12


class Game:
    """A block pool and a worker over a backend, with a referee between them; no model."""

    def __init__(self, backend: Any, config: dict[str, Any]) -> None:
        self.referee = Referee("any")
        cache = SimpleNamespace(kv_storage_config=config)
        made = backend.create_block_storage(SimpleNamespace(cache_config=cache), None)
        self.worker = backend.create_worker_storage(None, 0)
        self.pool = BlockPool(BLOCKS, True, BLOCK_TOKENS)
        self.pool.attach_storage(made)
        self.storage = made

    def start(self) -> None:
        asked = SimpleNamespace(size=SIZE)
        with self.worker.allocation_scope(None):
            self.worker.allocate(asked, torch.device("cpu"))

    def play(self) -> None:
        """A request comes, its blocks are cached and freed, and another one has their prefix."""
        tokens = list(range(3 * BLOCK_TOKENS))
        request = Request("r", tokens, SamplingParams(max_tokens=1), None, block_hasher=_HASHER)
        for _ in range(2):
            hits = [self.pool.get_cached_block(h, [0]) for h in request.block_hashes]
            found = [hit[0] for hit in hits if hit is not None]
            assert self.pool.reserve_blocks(3)
            self.pool.touch(found)
            blocks = [*found, *self.pool.get_new_blocks(3 - len(found))]
            self.pool.cache_full_blocks(request, blocks, len(found), 3, BLOCK_TOKENS, 0)
            self.step()
            self.pool.free_blocks(reversed(blocks))
        self.pool.get_usage()
        self.step()

    def step(self) -> None:
        output = SchedulerOutput.make_empty()
        output.kv_storage_update = self.storage.take_update()
        self.worker.begin_step(output)
        self.worker.end_step()


Make = Callable[..., Game]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    def build(half: Any = BoundedBlocks, worker: Any = BoundedWorker, **config: Any) -> Game:
        class Backend(Bounded):
            @classmethod
            def create_block_storage(cls, vllm_config: Any, _: Any) -> Any:
                return half(vllm_config.cache_config.kv_storage_config)

            @classmethod
            def create_worker_storage(cls, vllm_config: Any, rank: int) -> Any:
                return worker()

        monkeypatch.setattr(kv_storage, "get_kv_storage_backend", lambda config: Backend)
        return Game(Backend, config)

    return build


def test_a_backend_that_keeps_its_word(make: Make) -> None:
    game = make(blocks=12)
    game.start()
    game.play()
    assert game.referee.breaches == []
    assert game.referee.calls["remove"] == 3  # prefixes were hit


def test_a_reservation_of_what_there_is_not(make: Make) -> None:
    game = make(fault="promises")
    assert game.pool.reserve_blocks(BLOCKS)
    assert game.referee.breaches == ["reserved 16, available are 15"]


def test_a_reservation_that_evicts(make: Make) -> None:
    game = make(fault="evicts")
    game.play()
    assert game.referee.breaches == ["reserve evicts 1 prefixes"]


def test_a_block_that_two_requests_have(make: Make) -> None:
    game = make(fault="twice")
    for _ in range(2):
        game.pool.free_block_queue.popleft_n(2)
    assert "handed out twice: [1]" in game.referee.breaches


class Late(BoundedBlocks):
    def take_update(self) -> KVStorageUpdate:
        return KVStorageUpdate(epoch=7)


def test_updates_that_are_not_counted_from_one(make: Make) -> None:
    game = make(half=Late)
    game.step()
    assert game.referee.breaches == ["take_update: epoch 7", "begin_step: epoch 7"]


class Busy(BoundedBlocks):
    def usage(self) -> float:
        return 16.0


def test_a_usage_of_more_than_all(make: Make) -> None:
    game = make(half=Busy)
    game.pool.get_usage()
    assert game.referee.breaches == ["usage is 16.0"]


class Short(BoundedWorker):
    def allocate(self, tensor: Any, device: torch.device) -> torch.Tensor:
        return torch.zeros(tensor.size - 1, dtype=torch.int8, device=device)


class Typed(BoundedWorker):
    def allocate(self, tensor: Any, device: torch.device) -> torch.Tensor:
        return torch.zeros(tensor.size, dtype=torch.uint8, device=device)


class Part(BoundedWorker):
    def allocate(self, tensor: Any, device: torch.device) -> torch.Tensor:
        return torch.zeros(2 * tensor.size, dtype=torch.int8, device=device)[tensor.size :]


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        (Short, "4095 bytes for 4096"),
        (Typed, "not a vector of int8"),
        (Part, "not a storage of its own"),
    ],
)
def test_a_tensor_that_is_not_what_was_asked_for(make: Make, worker: Any, said: str) -> None:
    game = make(worker=worker)
    game.start()
    assert game.referee.breaches == [said]


def test_an_allocation_that_the_backend_has_no_part_in(make: Make) -> None:
    game = make()
    with game.worker.allocation_scope(None):
        pass
    assert game.referee.breaches == ["the runner's tensors are not the backend's"]
