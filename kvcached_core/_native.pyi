"""The native module. The contracts are in csrc's headers; sizes are bytes."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, Literal, Protocol, TypedDict, TypeVar, final

# csrc/vmm/{driver,arena,granules,faulty_driver,probe}.h

class DriverError(RuntimeError):
    """A driver call failed; the state is what it was before the call."""

class OutOfMemory(DriverError):
    """Physical memory is exhausted."""

class HostLimit(DriverError):
    """The process or machine is short of descriptors, mappings, addresses or host memory."""

class DeviceLost(DriverError):
    """The device, or this process's context on it, is gone: end the process."""

class DeviceUnavailable(DriverError):
    """There is no such device here, or no library that knows it."""

class InvalidArgument(DriverError):
    """The caller broke the contract; nothing was done."""

class Quarantined(DriverError):
    """A call failed and could not be undone; the arena keeps the memory aside."""

class Handle:
    """One physical allocation. Id 0 (false) is none."""

    def __init__(self, id: int, size: int) -> None: ...
    @property
    def id(self) -> int: ...
    @property
    def size(self) -> int: ...
    def __bool__(self) -> bool: ...

class Fence:
    """See csrc/vmm/fence.h."""

    def passed(self) -> bool: ...
    def wait(self, milliseconds: int) -> bool: ...
    def describe(self) -> str: ...

class Driver:
    """See csrc/vmm/driver.h. Sizes in bytes, addresses as integers."""

    def name(self) -> str: ...
    def granularity(self) -> int: ...
    def dlpack_device(self) -> tuple[int, int]: ...
    def creates_zeroed(self) -> bool: ...
    def reserve(self, size: int) -> int: ...
    def unreserve(self, base: int, size: int) -> None: ...
    def create(self, size: int) -> Handle: ...
    def release(self, handle: Handle) -> None: ...
    def map(self, address: int, handle: Handle) -> None: ...
    def set_access(self, address: int, size: int) -> None: ...
    def unmap(self, address: int, size: int) -> None: ...
    def zero(self, address: int, size: int) -> None: ...
    def finish(self) -> None: ...
    def fence(self, stream: int = 0) -> Fence:
        """Behind all work queued so far on that native stream; 0: the default one."""
    def adopt_thread(self) -> None:
        """The calling thread makes no calls of its own to such a device, for life."""
    def check_alive(self) -> None:
        """DeviceLost once a call has found it."""
    def free_bytes(self) -> int: ...
    def held_bytes(self) -> int: ...

def HostDriver(granularity: int = 0) -> Driver:
    """A driver over host memory; granularity 0 is the machine's page size."""

class DeviceDriver(Driver):
    """See csrc/vmm/device_driver.h."""

    def device_key(self) -> str:
        """Of the device, for the budget's record."""

def CudaDriver(device: int = 0, library: str = "libcuda.so.1") -> DeviceDriver:
    """A driver over an NVIDIA device; DeviceUnavailable where there is none."""

def HipDriver(device: int = 0, library: str = "") -> DeviceDriver:
    """The same over an AMD device; library "": the newest libamdhip64 that is installed."""

class InjectedFault(DriverError):
    """A FaultyDriver was told to fail this call."""

class QuotaReached(DriverError):
    """A FaultyDriver's quota of handles, descriptors or addresses is used up."""

class RangeInUse(InvalidArgument):
    """A range that declared work may touch was to be edited; nothing was done."""

class FaultyDriver(Driver):
    """See csrc/vmm/faulty_driver.h. Kinds: reserve, unreserve, create, release, map, set_access,
    unmap, zero, fence, free_bytes, held_bytes, and any: all of them counted together. Errors:
    "error" (InjectedFault), "oom" (OutOfMemory), "lost" (DeviceLost, and so is every later call),
    "die" (SIGKILL; the only one that may strike after the effect)."""

    def __init__(self, driver: Driver) -> None: ...
    def fail_at(self, kind: str, n: int, error: str = "error", after: bool = False) -> None: ...
    def fail_always(self, kind: str, error: str = "error") -> None: ...
    def delay(self, kind: str, microseconds: int) -> None: ...
    def delay_at(self, kind: str, n: int, microseconds: int, after: bool = False) -> None: ...
    def quota(
        self,
        bytes: int | None = None,
        *,
        handles: int | None = None,
        descriptors: int | None = None,
        addresses: int | None = None,
    ) -> None:
        """In the place of all quotas before; None: no quota. A descriptor is one a live handle."""
    def begin_work(self, address: int, size: int) -> None:
        """Work that may touch the range runs: to edit it is RangeInUse until end_work."""
    def end_work(self, address: int, size: int) -> None: ...
    def violations(self) -> int:
        """How often RangeInUse was raised."""
    def counts(self) -> dict[str, int]: ...
    def reset(self) -> None: ...

class TensorView:
    """A range of an arena for any DLPack consumer: one-dimensional, int8."""

    def __dlpack__(self, stream: Any = None, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Arena:
    """See csrc/vmm/arena.h."""

    @staticmethod
    def reserve(driver: Driver, size: int) -> Arena: ...
    @property
    def base(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def mapped_bytes(self) -> int: ...
    @property
    def quarantined_bytes(self) -> int: ...
    def map(self, offset: int, handle: Handle, fresh: bool = True) -> None: ...
    def unmap(self, offset: int) -> Handle: ...
    def zero(self, offset: int, size: int) -> None: ...
    def is_mapped(self, offset: int) -> bool: ...
    def release(self) -> None: ...
    def tensor(self, offset: int, size: int) -> TensorView: ...

class Granules:
    """See csrc/vmm/granules.h."""

    def __init__(self, arena: Arena, page_bytes: int, num_pages: int) -> None: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def most_bytes(self) -> int: ...
    @property
    def created_bytes(self) -> int: ...
    @property
    def mapped_bytes(self) -> int: ...
    def holds(self, page: int) -> bool: ...
    def create(self, page: int) -> None: ...
    def map(self, page: int) -> None: ...
    def release(self, page: int) -> bool: ...
    def close(self) -> bool: ...

def probe(address: int, size: int) -> bool:
    """Whether all of these bytes are readable, found out without a fault."""

def readable_bytes(address: int, size: int) -> int:
    """How many of these bytes are readable, told page by page."""

def machine_free_bytes(proc: str = "/proc") -> int:
    """Bytes this process could still get: MemAvailable, or less where its cgroups say so."""

# csrc/pool/ledger.h

_PageState = Literal["virtual", "preparing", "owned", "retiring", "quarantined"]
_BlockState = Literal["null", "used", "cached", "free"]

class _HasBlockId(Protocol):
    @property
    def block_id(self) -> int: ...

_Block = TypeVar("_Block", bound=_HasBlockId)

class Ledger:
    """The state of every block and page of one pool, and the choice of what is handed out.

    Block 0 is the null block: never handed out, never freed; its page is owned from construction,
    never counts as empty and never retires. An edge that is not allowed is a ValueError that names
    the block or page and its state, and changes nothing. One thread at a time.
    """

    def __init__(self, num_blocks: int, blocks_per_page: int) -> None: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def blocks_per_page(self) -> int: ...

    # blocks; ids in an array of int32 (array('i'), numpy) are read without a Python object each
    def pop(self, n: int) -> list[int]:
        """Hand out n <= available() blocks: free ones by best fit, then the oldest cached ones."""
    def pop_into(self, out: Any) -> None:
        """As pop(len(out)), written to a writable array of int32."""
    def push_free(self, ids: Iterable[int]) -> None:
        """Used -> free: the content is dead."""
    def push_cached(self, ids: Iterable[int]) -> None:
        """Used -> cached, the last one being the most recently used."""
    def take(self, block: int) -> None:
        """Cached or free, on an owned page -> used: a prefix hit."""
    def uncache(self, ids: Iterable[int]) -> None:
        """Cached -> free: the hash was dropped. Blocks in other states are left alone."""
    def reset_cached(self) -> None:
        """Every cached block -> free."""
    def take_first_used(self) -> list[int]:
        """Pages a block was handed out from for the first time since they became owned."""

    # growth
    def plan_growth(self, max_pages: int) -> list[int]:
        """Virtual -> preparing, lowest ids first."""
    def grown(self, pages: Iterable[int]) -> None:
        """Preparing -> owned."""
    def growth_failed(self, pages: Iterable[int]) -> None:
        """Preparing -> virtual."""

    # shrinking
    def retire_empty(self, max_pages: int) -> list[int]:
        """Owned and empty -> retiring, highest ids first."""
    def released(self, pages: Iterable[int]) -> None:
        """Retiring -> virtual."""
    def kept(self, pages: Iterable[int]) -> None:
        """Retiring -> owned: a rank could not give it back."""
    def quarantine(self, pages: Iterable[int]) -> None:
        """Preparing or retiring -> quarantined, for good."""
    def victims_for_pages(self, n_pages: int) -> list[int]:
        """The cached blocks to evict so that up to n_pages more pages become empty."""
    def victims_over_bound(self, max_pages: int) -> list[int]:
        """The same for as many pages as cached_only_pages() exceeds max_pages; 0: all cached."""
    def is_over_bound(self, max_pages: int) -> bool:
        """Whether victims_over_bound() gives any; O(1)."""

    # counts and views
    def num_pages(self) -> int: ...
    def num_free(self) -> int:
        """Free blocks on owned pages."""
    def num_cached(self) -> int: ...
    def num_used(self) -> int:
        """Without the null block."""
    def available(self) -> int:
        """num_free() + num_cached()."""
    def obtainable(self, most_pages: int, coming_pages: int) -> int:
        """Blocks that could be handed out once `coming_pages` have grown, and virtual ones until
        `most_pages` are owned."""
    def pages(self, state: _PageState) -> int: ...
    def empty_pages(self) -> int: ...
    def cached_only_pages(self) -> int: ...
    def used_pages(self) -> int:
        """Owned pages that are not empty, the null page among them."""
    def state_of(self, block: int) -> _BlockState: ...
    def page_state(self, page: int) -> _PageState: ...
    def block_page(self, block: int) -> int: ...
    def pages_of(self, ids: Iterable[int]) -> list[int]:
        """Sorted, each once."""
    def free_ids(self) -> list[int]:
        """What pop(available()) would return, in that order."""
    def check_integrity(self) -> None:
        """Recompute everything; RuntimeError with the values of the first mismatch."""

class BlockQueue(Generic[_Block]):
    """The engine's free queue over a ledger, in the engine's own block objects.

    `blocks[i]` has block_id i; there are as many as the ledger has. An id that cannot be popped or
    given back is a ValueError and changes nothing.
    """

    def __init__(
        self,
        blocks: list[_Block],
        ledger: Ledger,
        before_evict: Callable[[int], object] | None = None,
    ) -> None:
        """`before_evict(n)` is called when n blocks are popped and fewer are free, so that cached
        ones would go; it may add free ones."""
    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody references, with memory or without."""
    def popleft_n(self, n: int, /) -> list[_Block]:
        """`n` blocks, in the order of Ledger.pop()."""
    def append_n(self, blocks: Iterable[_Block], /) -> None:
        """Used -> cached, the last one being the most recently used."""
    def prepend_n(self, blocks: Iterable[_Block], /) -> None:
        """Used -> free: the content is dead."""
    def remove(self, block: _Block, /) -> None:
        """A prefix hit: the block is in use from now on."""

# csrc/budget/budget.h; deadlines are milliseconds

class BudgetError(RuntimeError): ...
class CapacityConflict(BudgetError): ...
class RowGone(BudgetError): ...

@final
class Grant:
    GRANTED: ClassVar[Grant]
    REFUSED: ClassVar[Grant]
    MISSED: ClassVar[Grant]
    __members__: ClassVar[dict[str, Grant]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

@final
class RowInfo:
    @property
    def instance(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def start_time(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def floor(self) -> int: ...
    @property
    def claim(self) -> int: ...
    @property
    def lease(self) -> int: ...
    @property
    def created(self) -> int: ...
    @property
    def want(self) -> int: ...
    @property
    def idle(self) -> int: ...
    @property
    def weight(self) -> int: ...
    @property
    def alive(self) -> bool: ...

@final
class Budget:
    @staticmethod
    def open(directory: str, device: str, capacity: int, headroom: int) -> Budget: ...
    def capacity(self) -> int: ...
    def headroom(self) -> int: ...
    def join(
        self,
        instance: str,
        rank: int,
        limit: int,
        floor: int = 0,
        claim: int = 0,
        weight: int = 100,
    ) -> int: ...
    def set_terms(
        self, row: int, limit: int, floor: int, claim: int, deadline_ms: int
    ) -> Grant: ...
    def leave(self, row: int) -> None: ...
    def lease(
        self,
        row: int,
        bytes: int,
        device_free: int,
        deadline_ms: int,
        created_before: int = ...,
    ) -> Grant: ...
    def unlease(self, row: int, bytes: int) -> None: ...
    def mark_created(self, row: int, bytes: int) -> None: ...
    def mark_released(self, row: int, bytes: int) -> None: ...
    def created(self) -> int: ...
    def available(self, row: int, device_free: int, created_before: int = ...) -> int: ...
    def reachable(self, row: int, device_free: int, created_before: int = ...) -> int: ...
    def set_want(self, row: int, bytes: int) -> None: ...
    def set_idle(self, row: int, bytes: int) -> None: ...
    def reclaim_target(
        self, row: int, device_free: int = ..., created_before: int = ..., own_idle: int = ...
    ) -> int: ...
    def fair_share(self, row: int, device_free: int = ..., created_before: int = ...) -> int: ...
    def others_want(self, row: int) -> bool: ...
    def wait_event(self, seen: int, deadline_ms: int) -> int: ...
    def event(self) -> int: ...
    def wait_wanted(self, row: int, seen: int, deadline_ms: int) -> int: ...
    def reap(self) -> int: ...
    def rows(self) -> list[RowInfo]: ...
    def detached(self) -> bool: ...

# csrc/budget/segment.h

class _RankInfo(TypedDict):
    joined: bool
    row: int
    device: str
    mapped_bytes: int
    created_bytes: int

_TracedState = Literal["virtual", "preparing", "owned", "mapped", "retiring", "quarantined"]

@final
class Segment:
    @staticmethod
    def create(path: str, num_pages: int, num_ranks: int) -> Segment: ...
    @staticmethod
    def open(path: str) -> Segment: ...
    @property
    def path(self) -> str: ...
    @property
    def num_pages(self) -> int: ...
    @property
    def num_ranks(self) -> int: ...
    def request(self, pages: Sequence[int]) -> None: ...
    def poll(self) -> tuple[list[int], list[int], list[int]]:
        """Pages owned by all ranks, refused by all, and neither (to be retired)."""
    def outstanding(self) -> int: ...
    def released_epoch(self) -> int: ...
    def is_quarantined(self, page: int) -> bool: ...
    def set_wish(self, pages: int) -> None: ...
    def set_idle(self, pages: int) -> None: ...
    def ring_ranks(self) -> None: ...
    def sample(self, rank: int) -> tuple[int, int]:
        """What its device had free when the rank last looked, and what all members had created
        then; 2**64 - 1 both, before it has."""
    def record(
        self, pages: Sequence[int], from_state: _TracedState, to_state: _TracedState, epoch: int
    ) -> None:
        """What became of pages that an update names; request() and poll() record by themselves."""
    def failure(self) -> str:
        """Of the first rank that failed, or empty."""
    def progress(self) -> int: ...
    def wait_progress(self, seen: int, milliseconds: int) -> int: ...
    def rank_info(self, rank: int) -> _RankInfo: ...

class _RankReport(TypedDict):
    rank: int
    joined: bool
    row: int
    device: str
    mapped_bytes: int
    created_bytes: int
    released_epoch: int
    entries_resolved: int
    failure: str
    pages: dict[str, int]

_TransitionReport = TypedDict(
    "_TransitionReport",
    {
        "who": str | int,
        "sequence": int,
        "time_ns": int,
        "page": int,
        "from": _TracedState,
        "to": _TracedState,
        "epoch": int,
    },
)

class _SegmentReport(TypedDict):
    path: str
    version: int
    pid: int
    made_wall_ns: int
    made_monotonic_ns: int
    num_pages: int
    entries_asked: int
    wish_pages: int
    idle_pages: int
    ranks: list[_RankReport]
    transitions: list[_TransitionReport]
    torn: int

def read_segment(path: str, last: int = 4096) -> _SegmentReport:
    """A segment's content, of a live or dead engine, and each writer's last transitions by time.

    Only reads. RuntimeError for what is no whole segment of this version."""

# csrc/budget/rank.h

class _RankCounters(TypedDict):
    created: int
    released: int
    mapped_ahead: int
    mapped_in_step: int
    refused: int

@final
class Rank:
    def __init__(
        self,
        segment: Segment,
        rank: int,
        budget: Budget,
        device: str,
        row: int,
        driver: Driver,
        extents: Sequence[tuple[Arena, int]],
        fence_deadline_ms: int = 60_000,
        pace: tuple[float, float] = ...,
    ) -> None:
        """`pace`: bytes a second in the background while nobody wants memory, bytes at once."""
    def make_ready(self, pages: Sequence[int]) -> None: ...
    def retire(self, pages: Sequence[int], epoch: int, fences: Sequence[Fence] = ()) -> None: ...
    def take(self, id: int, pages: Sequence[int]) -> None:
        """Of a transaction: memory for pages that have none. Its outcome is `attempted`."""
    def unmap(self, id: int, pages: Sequence[int]) -> None:
        """Of a transaction: owned pages are unmapped, their memory is kept."""
    def settle(self, id: int, own: Sequence[int], release: Sequence[int]) -> None:
        """Ends a transaction for pages that it holds."""
    def outcomes_fd(self) -> int:
        """Readable while there are outcomes; the rank's, do not close it."""
    def take_outcomes(
        self,
    ) -> list[tuple[Literal["attempted", "settled", "fenced"], int, list[int], list[int]]]:
        """What became of transactions: kind, id (of `fenced` the epoch), pages held, pages lost."""
    def drain(self, milliseconds: int) -> bool: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def mapped_bytes(self) -> int: ...
    def counters(self) -> _RankCounters: ...
    def close(self) -> None: ...
