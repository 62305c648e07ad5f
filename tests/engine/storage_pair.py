"""Both halves of one engine's elastic storage in this process, without a model.

The scheduler's side is vLLM's own BlockPool; the worker's side is a real rank over host memory,
stepped by hand. Blocks are small, so that a page is a few granules.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    KVCacheBlock,
    get_block_hash,
    get_group_id,
    get_request_block_hasher,
    init_none_hash,
    maybe_convert_block_hash,
)
from vllm.v1.kv_storage import KVStorageUpdate
from vllm.v1.request import Request

from kvcached_core.budget import (
    Budget,
    Rank,
    Segment,
    create_segment,
    open_host_budget,
    sockets_folder,
)
from kvcached_core.config import parse_settings
from kvcached_core.engines.vllm.block_storage import KvcachedBlockStorage
from kvcached_core.instance.agreement import SegmentAgreement
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.txn.transport import Hello, RankServer
from kvcached_core.vmm import HOST_GRANULARITY, Arena, Driver, FaultyDriver, HostDriver

BLOCK_TOKENS = 2
PER_PAGE = 4
BLOCK_BYTES = HOST_GRANULARITY
PAGE = PER_PAGE * BLOCK_BYTES
DEVICES = ("host:default", "host:second")
DEADLINE_S = 20.0  # guards against a hang; nothing here takes a second

init_none_hash(sha256)
_HASHER = get_request_block_hasher(BLOCK_TOKENS, sha256)


def until(done: Callable[[], bool], what: str) -> None:
    """Waits for `done`; fails after DEADLINE_S."""
    end = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < end, f"timed out: {what}"
        time.sleep(0.001)


def tokens(blocks: int, seed: int = 0) -> list[int]:
    """Token ids that fill so many blocks; those of one seed share prefixes."""
    return [seed * 1000 + i for i in range(BLOCK_TOKENS * blocks)]


class Counting:
    """A segment or budget that counts what the scheduler half calls by name."""

    def __init__(self, counted: Segment | Budget) -> None:
        self._counted = counted
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._counted, name)
        if not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            return found(*arguments)

        return call


class Pair:
    """One engine. `pages` is the budget's capacity; every Pair of a test gives the same."""

    def __init__(
        self,
        directory: Path,
        name: str = "one",
        *,
        pages: int = 16,
        num_blocks: int = 64,
        floor_pages: int = 1,
        num_ranks: int = 1,
        events: bool = False,
        caching: bool = True,
        transacted: bool = False,
        devices: int = 1,
        make_driver: Callable[[int], Driver] = lambda device: HostDriver(),
        **settings: Any,
    ) -> None:
        """Ranks take the `devices` in turn, each of `pages`; `make_driver` is asked for one's."""
        given = {"reserve_pages": 0, "reserve_wait_ms": 1000, "reclaim_wait_ms": 0, **settings}
        parsed = parse_settings({"name": name, **given}, "test")
        num_pages = -(-num_blocks // PER_PAGE)
        self.plan = StoragePlan(
            settings=parsed,
            instance=name,
            rank=0,
            num_ranks=num_ranks,
            device="host:default",
            budget_dir=directory,
            capacity=pages * PAGE,
            segment=self._make_segment(directory, name, pages, num_pages, num_ranks),
            num_blocks=num_blocks,
            blocks_per_page=PER_PAGE,
            block_bytes=(BLOCK_BYTES,),
            floor=floor_pages * PAGE,
            limit=parsed.limit or pages * PAGE,
            start="a-start" if transacted else "",
        )
        if devices > 1:
            shares = [
                replace(self.plan.share, device=DEVICES[r % devices]) for r in range(num_ranks)
            ]
            self.plan = replace(self.plan, shares=tuple(shares))
        self.budgets = [
            open_host_budget(directory, share.device.removeprefix("host:"), pages * PAGE)
            for share in self.plan.all_shares
        ]
        self.drivers = [FaultyDriver(make_driver(r % devices)) for r in range(num_ranks)]
        self.arenas = [Arena.reserve(driver, num_pages * PAGE) for driver in self.drivers]
        self.rows = [
            budget.join(name, rank, self.plan.limit, self.plan.floor, 0, parsed.weight)
            for rank, budget in enumerate(self.budgets)
        ]
        self.ranks = [self._start(rank) for rank in range(num_ranks)]
        folder = sockets_folder(self.plan.segment)
        self.servers = [
            RankServer(folder, Hello(name, self.plan.start, number), rank)
            for number, rank in enumerate(self.ranks)
            if transacted
        ]
        self.row, self.driver = self.rows[0], self.drivers[0]
        self.arena, self.rank = self.arenas[0], self.ranks[0]
        self.storage = KvcachedBlockStorage(self.plan)
        self.ledger = self.storage.ledger
        self.pool = BlockPool(num_blocks, caching, BLOCK_TOKENS, enable_kv_cache_events=events)
        self.pool.attach_storage(self.storage)
        self.epoch = 0
        self.mapped: set[int] = {0}
        self.requests: dict[int, list[KVCacheBlock]] = {}
        self._next = 0

    def _make_segment(
        self, directory: Path, name: str, pages: int, num_pages: int, num_ranks: int
    ) -> Path:
        self.budget = open_host_budget(directory, "default", pages * PAGE)
        return create_segment(directory, name, num_pages, num_ranks)

    def _start(self, rank: int) -> Rank:
        return Rank(
            Segment.open(str(self.plan.segment)),
            rank,
            self.budgets[rank],
            self.plan.all_shares[rank].device,
            self.rows[rank],
            self.drivers[rank],
            [(self.arenas[rank], PAGE)],
        )

    def count_budget_calls(self) -> dict[str, int]:
        budgets = self.storage.supply.budgets
        counting: Any = Counting(budgets.of(0))
        budgets.firsts = [(counting, row) for _, row in budgets.firsts]
        budgets._by_device = dict.fromkeys(budgets._by_device, counting)
        return counting.calls

    def count_segment_calls(self) -> dict[str, int]:
        supply = self.storage.supply
        counting = Counting(supply.segment)
        supply.segment = counting  # type: ignore[assignment]
        assert isinstance(supply.agreement, SegmentAgreement)
        supply.agreement.segment = counting  # type: ignore[assignment]
        return counting.calls

    # --- the scheduler's part ---

    def admit(self, tokens: list[int], pieces: int = 2) -> int | None:
        """As allocate_slots does for a new request: its id, or None for "not now"."""
        request = Request("r", tokens, SamplingParams(max_tokens=1), None, block_hasher=_HASHER)
        hits: list[KVCacheBlock] = []
        for block_hash in request.block_hashes if self.pool.enable_caching else []:
            hit = self.pool.get_cached_block(block_hash, [0])
            if hit is None:
                break
            hits.append(hit[0])
        total = -(-len(tokens) // BLOCK_TOKENS)
        needed = total - len(hits) + sum(block.ref_cnt == 0 for block in hits)
        if not self.pool.admit_request(needed):
            return None
        if needed > self.pool.get_num_free_blocks() or not self.pool.reserve_blocks(needed):
            return None
        assert self.pool.get_num_free_blocks() >= needed, "advice contradicts a promise"
        self.pool.touch(hits)
        blocks = list(hits)
        while len(blocks) < total:
            blocks += self.pool.get_new_blocks(min(pieces, total - len(blocks)))
        if self.pool.enable_caching:
            self.pool.cache_full_blocks(
                request, blocks, len(hits), len(tokens) // BLOCK_TOKENS, BLOCK_TOKENS, 0
            )
        self._next += 1
        self.requests[self._next] = blocks
        return self._next

    def extend(self, request: int, blocks: int) -> bool:
        """As allocate_slots does for a running request; False is a preemption in vLLM."""
        if not self.pool.reserve_blocks(blocks) or blocks > self.pool.get_num_free_blocks():
            return False
        self.requests[request] += self.pool.get_new_blocks(blocks)
        return True

    def finish(self, request: int) -> None:
        self.pool.free_blocks(reversed(self.requests.pop(request)))

    def clear(self) -> None:
        """Every request is finished."""
        for request in list(self.requests):
            self.finish(request)

    # --- the step ---

    def step(self) -> KVStorageUpdate | None:
        """The end of a scheduling pass, and the worker's step with checks."""
        update = self.storage.take_update()
        if update is not None:
            self._check(update)
            for rank in self.ranks:
                rank.make_ready(update.map)
                if update.retire:
                    rank.retire(() if self.servers else update.retire, update.epoch)
            self.mapped |= set(update.map)
            self.mapped -= set(update.retire)
        used = self.ledger.pages_of([b.block_id for r in self.requests.values() for b in r])
        for page in used:
            for arena in self.arenas:
                assert arena.is_mapped(page * PAGE), f"page {page} is used and not mapped"
        self.ledger.check_integrity()
        return update

    def _check(self, update: KVStorageUpdate) -> None:
        assert update.epoch > self.epoch
        self.epoch = update.epoch
        assert update.map or update.retire, "an update that says nothing"
        assert 0 not in update.retire
        for page in update.retire:
            first = page * PER_PAGE
            for block in range(first, min(first + PER_PAGE, self.plan.num_blocks)):
                assert self.ledger.state_of(block) == "free"
                assert self.pool.blocks[block].ref_cnt == 0
                assert self.pool.blocks[block].block_hash is None
        again = self.mapped & set(update.map) - {0}
        assert not again, f"pages {again} are told a second time in one ownership"

    def rest(self) -> int:
        """An idle engine: steps while something is pending; returns how many steps."""
        for steps in range(8):
            if not self.storage.has_pending_update():
                return steps
            event = self.budget.event()
            self.step()
            # What is released or published meanwhile can make a neighbour's need stand anew: pages
            # that share granules free less than was asked for.
            left = self.storage.has_pending_update() and self.budget.event() == event
            assert not left, "take_update left something pending"
        raise AssertionError("the engine spins")

    def settle(self) -> None:
        """Waits until the rank has answered and released everything it was told."""
        supply = self.storage.supply

        def answered() -> bool:
            supply.settle()
            return supply.agreement.outstanding() == 0 and not supply._retiring

        until(answered, "growth")

    # --- views ---

    @property
    def lease(self) -> int:
        return next(r.lease for r in self.budget.rows() if r.instance == self.plan.instance)

    @property
    def want(self) -> int:
        return next(r.want for r in self.budget.rows() if r.instance == self.plan.instance)

    @property
    def idle(self) -> int:
        return next(r.idle for r in self.budget.rows() if r.instance == self.plan.instance)

    def cached(self) -> dict[Any, int]:
        """What the prefix index holds: external hash and group -> number of blocks."""
        index = self.pool.cached_block_hash_to_block._cache
        return {
            (maybe_convert_block_hash(get_block_hash(key)), get_group_id(key)): (
                len(blocks) if isinstance(blocks, dict) else 1
            )
            for key, blocks in index.items()
        }

    def check_cache(self) -> None:
        """The ledger and the pool agree on what is cached, block by block."""
        for block in self.pool.blocks[1:]:
            state = self.ledger.state_of(block.block_id)
            held = block.ref_cnt > 0
            expected = "used" if held else "free" if block.block_hash is None else "cached"
            assert state == expected, (block, state)

    def close(self) -> None:
        self.storage.shutdown()
        for server in self.servers:
            server.close()
        for rank in self.ranks:
            rank.close()


def replay(events: list[Any], index: dict[Any, int]) -> None:
    """Applies KV events to `index` in place."""
    for event in events:
        if isinstance(event, AllBlocksCleared):
            index.clear()
            continue
        assert isinstance(event, (BlockStored, BlockRemoved))
        change = 1 if isinstance(event, BlockStored) else -1
        for block_hash in event.block_hashes:
            key = (block_hash, event.group_idx)
            index[key] = index.get(key, 0) + change
            assert index[key] >= 0, f"{key} was removed more often than stored"
            if index[key] == 0:
                del index[key]
