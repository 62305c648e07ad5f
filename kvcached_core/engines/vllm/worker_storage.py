"""The half in a worker: the tensors, and the memory behind them step by step.

All methods run in the worker's main thread. Driver calls are made by the rank's background thread;
this one finds pages mapped before a step and queues them for release after it.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.kv_storage import KVWorkerStorage

from kvcached_core.budget import Budget, Grant, Rank, Segment, remove_segment, sockets_folder
from kvcached_core.config import Settings, format_size
from kvcached_core.engines.vllm.attention import check_attention
from kvcached_core.engines.vllm.device import device_of, ranks_of_a_device
from kvcached_core.engines.vllm.log import logger
from kvcached_core.engines.vllm.planner import directory_of, geometry_of_layers, room_of
from kvcached_core.engines.vllm.room import check_room
from kvcached_core.engines.vllm.warmup import WarmupPages
from kvcached_core.instance.claim import Claim
from kvcached_core.instance.device import Device
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.release import Release
from kvcached_core.provenance.vllm import provenance
from kvcached_core.txn.transport import Hello, RankServer
from kvcached_core.vmm import Arena, Driver

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheTensor

_DRAIN_MS = 30_000
_TERMS_MS = 5000


class KvcachedWorkerStorage(KVWorkerStorage):  # type: ignore[misc]
    """See the interface."""

    def __init__(self, vllm_config: VllmConfig, settings: Settings, rank: int) -> None:
        self._vllm_config = vllm_config
        self._settings = settings
        self._rank_number = rank
        self._device: Device | None = None
        self._driver: Driver | None = None
        self._budget: Budget | None = None
        self._arenas: list[Arena] = []
        self._rank: Rank | None = None
        self._server: RankServer | None = None
        self._release: Release | None = None
        self._plan: StoragePlan | None = None
        self._row: int | None = None
        self._floor = 0
        self._claim = Claim(0)
        self._warmup: WarmupPages | None = None
        self._suspended = False
        self._retire: list[int] = []
        self._epoch = 0

    # --- start ---

    def adjust_available_memory(self, num_bytes: int, kv_cache_spec: dict[str, Any]) -> int:
        settings = self._settings
        check_attention(self._vllm_config, kv_cache_spec, settings.layout == "block-major")
        self._device = device_of(self._vllm_config, settings, self._rank_number)
        self._budget = self._device.open_budget(directory_of(settings))
        self._claim = Claim(self._device.workspace_bytes())
        room = room_of(self._vllm_config, settings, self._budget.capacity())
        geometry = geometry_of_layers(self._vllm_config, settings, kv_cache_spec)
        model = self._vllm_config.model_config
        if model.original_max_model_len != -1:
            check_room(geometry.need(0), room, model.max_model_len)
            given = room.kv_cache_memory
            return room.capacity if given is None else min(room.capacity, given)
        # The length is fitted to the answer: leave what whole pages and the null block add to it.
        part = room.size // ranks_of_a_device(self._vllm_config)
        return max(0, part - geometry.page_bytes(0))

    @contextmanager
    def allocation_scope(self, kv_cache_config: KVCacheConfig) -> Iterator[None]:
        plan = kv_cache_config.storage_plan
        assert isinstance(plan, StoragePlan) and self._rank is None
        assert self._device is not None and self._budget is not None
        if plan.device != self._device.key:
            raise RuntimeError(
                f"the engine core planned for budget {plan.device}, rank {plan.rank} is on "
                f"{self._device.key}: they see the machine's devices in another order"
            )
        self._plan = plan
        self._driver = self._device.make_driver()
        yield
        if len(self._arenas) != len(plan.block_bytes):
            raise RuntimeError(
                f"the model runner took {len(self._arenas)} KV tensors from the storage, planned "
                f"were {len(plan.block_bytes)}: some KV tensor would not be elastic"
            )
        try:
            self._start(plan, self._budget)
        except BaseException:
            remove_segment(plan.segment)  # where this process made it, the name is free again
            raise

    def allocate(self, tensor: KVCacheTensor, device: torch.device) -> torch.Tensor:
        assert self._plan is not None and self._driver is not None and self._device is not None
        index = len(self._arenas)
        if index == len(self._plan.block_bytes):
            raise RuntimeError(
                f"the model runner asks for KV tensor {index} ({tensor.size} bytes), planned were "
                f"{index} tensors"
            )
        planned = self._plan.block_bytes[index] * self._plan.num_blocks
        if tensor.size != planned or device.type != self._device.tensor_type:
            raise RuntimeError(
                f"KV tensor {index} has {tensor.size} bytes on {device}, planned were {planned} "
                f"bytes on {self._device.tensor_type}"
            )
        size = self._plan.extent_bytes[index] * self._plan.num_pages
        arena = Arena.reserve(self._driver, size)
        self._arenas.append(arena)
        ours = torch.from_dlpack(arena.tensor(0, tensor.size))
        if ours.device != device:
            raise RuntimeError(
                f"KV tensor {index} lies on {ours.device}, the model runner is on {device}"
            )
        return ours

    def _start(self, plan: StoragePlan, budget: Budget) -> None:
        assert self._driver is not None
        self._floor, weight = plan.floor, plan.settings.weight
        claim = self._claim.size
        row = budget.join(plan.instance, plan.rank, plan.limit, plan.floor, claim, weight)
        extents = list(zip(self._arenas, plan.extent_bytes, strict=True))
        try:
            self._rank = Rank(
                Segment.open(str(plan.segment)),
                plan.rank,
                budget,
                plan.device,
                row,
                self._driver,
                extents,
            )
        except BaseException:
            budget.leave(row)
            raise
        self._row = row
        self._warmup = WarmupPages(plan, self._rank)
        atexit.register(self.shutdown)
        logger.info(
            "KV storage: kvcached, rank %d of engine %s: reserved %s, mapped %s; %s",
            plan.rank,
            plan.instance,
            format_size(sum(arena.size for arena in self._arenas)),
            format_size(self._rank.mapped_bytes),
            provenance(),
        )

    def on_warmup_done(self) -> None:
        warmup, self._warmup = self._warmup, None
        if warmup is None:
            return
        self._retire_at(warmup.pages, 0)
        self._drain()
        self._lower_claim(now=True)
        assert self._plan is not None and self._rank is not None
        if self._plan.start:  # before, its outcomes are the warm-up's
            self._release = Release(self._plan)
            self._server = _listen(self._plan, self._rank)

    def _lower_claim(self, *, now: bool = False) -> None:
        if self._rank is not None and self._device is not None:
            self._claim.lower(self._device.workspace_left, self._enter, now=now)

    def _enter(self, claim: int, deadline_ms: int) -> Grant:
        """Writes the row's terms."""
        plan, budget, row = self._plan, self._budget, self._row
        assert plan is not None and budget is not None and row is not None
        return budget.set_terms(row, plan.limit, self._floor, claim, deadline_ms)

    # --- steps ---

    def begin_step(self, scheduler_output: SchedulerOutput) -> None:
        self.end_step()  # after a step that failed
        self._lower_claim()
        if self._warmup is not None:
            self._warmup.serve(scheduler_output)
        update = scheduler_output.kv_storage_update
        if update is not None and self._rank is not None:
            if update.epoch <= self._epoch:
                raise RuntimeError(
                    f"KV storage update {update.epoch} came after update {self._epoch}"
                )
            self._epoch = update.epoch
            self._retire += update.retire
            if update.map:
                self._rank.make_ready(update.map)
        if scheduler_output.total_num_scheduled_tokens == 0:
            self.end_step()

    def end_step(self) -> None:
        if self._retire:
            retire, self._retire = self._retire, []
            self._retire_at(retire, self._epoch)

    def _retire_at(self, pages: Sequence[int], epoch: int) -> None:
        """Lets go of pages behind all work that is queued now."""
        if self._rank is None:
            return
        assert self._device is not None and self._driver is not None
        fences = [self._driver.fence(stream) for stream in self._device.streams()]
        # What transactions name goes by them, once this epoch's fences have passed.
        self._rank.retire(pages if self._server is None else (), epoch, fences)

    def _drain(self) -> None:
        assert self._rank is not None and self._plan is not None
        done = self._rank.drain(_DRAIN_MS)
        if done and self._release is not None:  # behind the fences, by transactions
            done = self._release.wait(_DRAIN_MS)
        if not done:
            raise RuntimeError(
                f"KV storage of engine {self._plan.instance}, rank {self._plan.rank}: pages were "
                f"not released within {_DRAIN_MS} ms"
            )

    # --- sleep and end ---

    def suspend(self, level: int) -> None:
        if self._rank is None or self._plan is None or self._suspended:
            return
        self.end_step()
        self._epoch += 1  # as the block half's suspend does
        self._retire_at(range(self._plan.num_pages), self._epoch)  # page 0 is passed over
        self._drain()
        # Several ranks keep their floors, so that none can be refused when they wake: vLLM's
        # executor is of no use after a call that a rank refused.
        self._floor, self._claim = self._floor if self._plan.start else 0, Claim(0)
        self._enter(0, _TERMS_MS)
        self._suspended = True

    def resume(self, tags: list[str] | None) -> None:
        if self._suspended and (tags is None or "kv_cache" in tags):
            assert self._plan is not None and self._device is not None
            self._wake(self._plan, self._device.workspace_left())
            self._suspended = False

    def _wake(self, plan: StoragePlan, claim: int) -> None:
        """The floor again, and what the worker will take anew beside the cache."""
        self._floor = plan.floor
        if self._enter(claim, _TERMS_MS) != Grant.GRANTED:
            self._floor = 0
            raise RuntimeError(
                f"KV storage of engine {plan.instance}: its floor of {format_size(plan.floor)} "
                f"cannot be had again in budget {plan.device} of {format_size(plan.capacity)}: the "
                "other members' floors do not leave it. Stop one of them, or wake it later."
            )
        self._claim = Claim(claim)

    def shutdown(self) -> None:
        rank, self._rank = self._rank, None
        if self._server is not None:
            self._server.close()
        if rank is not None:
            rank.close()
            atexit.unregister(self.shutdown)


def _listen(plan: StoragePlan, rank: Rank) -> RankServer:
    folder = sockets_folder(plan.segment)
    try:
        return RankServer(folder, Hello(plan.instance, plan.start, plan.rank), rank)
    except OSError as error:
        rank.close()
        raise RuntimeError(
            f"rank {plan.rank} of engine {plan.instance} cannot listen in {folder}: {error}; name "
            "another budget_dir"
        ) from None
