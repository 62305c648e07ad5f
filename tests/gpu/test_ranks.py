"""An engine on two GPUs, by tensor parallelism: static's tokens at the same shape.

On two GPUs, which other engines may share::

    pytest -m gpu tests/gpu/test_ranks.py -k first                 [2]
    pytest -m gpu tests/gpu/test_ranks.py -k "second and not asleep"   [2]
    pytest -m gpu tests/gpu/test_ranks.py -k "second and asleep"       [2]

``KVCACHED_ONE_GPU=1`` puts both ranks on one GPU, where a machine has no more (gpu/one_gpu.py).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.device_use import Watch
from engine.processes import DEADLINE_S, Engines, Run, Started
from engine.runner import READY
from gpu import one_gpu
from gpu.compare import compare, compare_runs
from gpu.conftest import Note
from gpu.load import ENVIRONMENT as LOAD
from gpu.load import TIGHT_BLOCKS, block_bytes, job, tight
from gpu.scale import REHEARSAL, device_key
from support.any_backend import installed

pytestmark = [pytest.mark.gpu]

RANKS = 2
TOGETHER = "KVCACHED_ONE_GPU" in os.environ
DEVICES = 1 if REHEARSAL or TOGETHER else RANKS
COUNT = 100 if REHEARSAL else 500
FEW = 50
NAME = "two-ranks"
# Sums between the ranks by NCCL alone, which takes them in one order.
SHAPE: dict[str, Any] = {
    "tensor_parallel_size": RANKS,
    "distributed_executor_backend": "mp",
    "disable_custom_all_reduce": True,
}
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
if REHEARSAL:
    ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
BLOCK = block_bytes() // RANKS
STORAGE: dict[str, Any] = {**tight(BLOCK), "name": NAME, "budget": NAME}
LIMIT = TIGHT_BLOCKS * BLOCK
if REHEARSAL:
    LIMIT = 6 << 18
    STORAGE |= {"capacity": "64MiB", "limit": LIMIT}


def key_of_rank(budget: str, rank: int) -> str:
    """Of the record of the rank's device."""
    return device_key(budget, rank % DEVICES)


@pytest.fixture(scope="module", autouse=TOGETHER)
def together(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = tmp_path_factory.mktemp("plugin") / "site"
    plugin = installed(made, "vllm.general_plugins", "one_gpu", "gpu.one_gpu:register")
    paths = os.pathsep.join([plugin, LOAD["PYTHONPATH"]])
    ENVIRONMENT.update({**one_gpu.ENVIRONMENT, "PYTHONPATH": paths})


def two_ranks(runner: str) -> dict[str, Any]:
    made = job(runner, COUNT, **SHAPE)
    made["engine"]["compilation_config"] = {
        **made["engine"].get("compilation_config", {}),
        # Fused with what follows, sums go through FlashInfer, and there by multicast.
        "pass_config": {"fuse_allreduce_rms": False},
    }
    made["environment"] |= ENVIRONMENT
    made["engine"] |= one_gpu.ENGINE if TOGETHER else {}
    return made


@dataclass
class Story:
    run: Run
    device_users: int
    """Processes that had opened a device when the engine was ready."""


def watch(engine: Started, gate: Path) -> Story:
    try:
        engine.wait_for_log(READY)
        users = sum(map(uses_a_device, engine.members()))
        gate.touch()
        engine.process.wait(DEADLINE_S)
    finally:
        engine.kill()
    return Story(engine.run(), users)


def uses_a_device(process: Path) -> bool:
    """Whether it has initialised CUDA; who only asks for a device's numbers has not."""
    names = set()
    with contextlib.suppress(OSError):  # it ended
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed
                names.add(str(descriptor.readlink()))
    return "/dev/nvidia-uvm" in names


@pytest.fixture(scope="module")
def static_of_two(engines: Engines, runner: str, tmp_path_factory: pytest.TempPathFactory) -> Story:
    gate = tmp_path_factory.mktemp("static") / "gate"
    job = {**two_ranks(runner), "gate": str(gate)}
    environment = engines.environment() | job["environment"]
    return watch(engines.spawn(f"static-two-{runner}", job, environment), gate)


@dataclass
class Elastic(Story):
    peaks: list[int]
    """Bytes of KV cache, of each rank's device."""


@pytest.fixture(scope="module")
def elastic(engines: Engines, runner: str, tmp_path_factory: pytest.TempPathFactory) -> Elastic:
    gate = tmp_path_factory.mktemp("elastic") / "gate"
    directory = Path(engines.storage(NAME)["budget_dir"])
    watches = [Watch(directory, key_of_rank(NAME, rank)) for rank in range(RANKS)]
    job = two_ranks(runner)
    try:
        started = engines.start_elastic(f"tight-two-{runner}", STORAGE, gate=str(gate), **job)
        story = watch(started, gate)
    finally:
        for each in watches:
            each.stop()
    return Elastic(**vars(story), peaks=[each.peaks.get(NAME, 0) for each in watches])


def test_tokens_are_statics(
    static_of_two: Story, elastic: Elastic, runner: str, note: Note
) -> None:
    static, ours = static_of_two.run, elastic.run
    found = compare_runs(static, ours)
    note(
        f"two ranks, {runner} runner",
        **found.summary(),
        preemptions=ours["metrics"]["vllm:num_preemptions"],
        prefix_hits=ours["metrics"]["vllm:prefix_cache_hits"],
        seconds={"static": static["run_seconds"], "elastic": ours["run_seconds"]},
        start_seconds={
            "static": static["start_seconds"],
            "elastic": ours["start_seconds"],
        },
        limit=LIMIT,
        peaks=elastic.peaks,
        device_users=[static_of_two.device_users, elastic.device_users],
    )
    assert len({tuple(tokens) for tokens in static["tokens"]}) > COUNT * 0.95
    assert ours["metrics"]["vllm:num_preemptions"] > 0
    assert found.requests == COUNT
    assert len(found.different_ties) <= COUNT // 50
    found.check()


def test_each_rank_lives_on_a_gpu_of_its_own(elastic: Elastic) -> None:
    for rank, peak in enumerate(elastic.peaks):
        assert f"KV storage: kvcached, rank {rank} of engine {NAME}" in elastic.run.log
        assert LIMIT // 2 < peak <= LIMIT
    assert len({key_of_rank(NAME, rank) for rank in range(RANKS)}) == DEVICES


def test_nobody_but_the_ranks_opens_a_device(static_of_two: Story, elastic: Elastic) -> None:
    assert (0 if REHEARSAL else RANKS) <= elastic.device_users <= static_of_two.device_users


def test_asleep_a_rank_holds_its_null_page_and_its_floor(
    engines: Engines, static_of_two: Story, runner: str, note: Note
) -> None:
    """Seen at the second rank's device."""
    key = key_of_rank("asleep", RANKS - 1)
    directory = engines.storage("asleep")["budget_dir"]
    sleeper = {**two_ranks(runner), "count": FEW, "cycles": 3, "record": [directory, key]}
    if not REHEARSAL:
        sleeper["engine"] = {**sleeper["engine"], "enable_sleep_mode": True}
    storage = {**STORAGE, "name": "asleep", "budget": "asleep"}
    run = engines.elastic(f"asleep-two-{runner}", storage, **sleeper)
    cycles = run["cycles"]["cycles"]
    note(f"two ranks asleep, {runner} runner", asleep=[c["asleep"] for c in cycles])
    found = compare(static_of_two.run, *(enumerate(cycle["tokens"]) for cycle in cycles))
    found.check()
    for cycle in cycles:
        asleep, awake = cycle["asleep"], cycle["awake"]
        assert 0 < asleep["created"]["asleep"] <= asleep["floor"]["asleep"]
        assert asleep["floor"] == awake["floor"]
        assert asleep["lease"] == asleep["created"]
