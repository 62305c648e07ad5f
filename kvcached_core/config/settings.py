"""The settings of an engine's elastic storage: one table of keys, and how they are read.

They come as a flat mapping (for vLLM: ``--kv-storage-config '{"capacity": "10GiB"}'``). Parsing
opens nothing and touches no device, so it may run in any process, any number of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from kvcached_core.config import values
from kvcached_core.config.values import Parser, SettingsError


@dataclass(frozen=True)
class Key:
    """What a person must know of one key; `docs/configuration.md` is made from it."""

    name: str
    default: str
    allowed: str
    meaning: str


def _key(default: Any, parser: Parser, meaning: str, *, shown: str | None = None) -> Any:
    """A field of Settings; `shown` is the default in words, where Python's is None."""
    if shown is None:
        shown = f"`{parser.show(default)}`"
    return field(default=default, metadata={"parser": parser, "meaning": meaning, "shown": shown})


@dataclass(frozen=True)
class Settings:
    """The table of all keys. Sizes are bytes."""

    budget: str = _key(
        "default",
        values.NAME,
        "Engines that name the same budget share one device's memory. On CPU the device is "
        "`host:NAME`. On a GPU there is one budget a device, `cuda:GPU-UUID`, whatever the name.",
    )
    budget_dir: str | None = _key(
        None,
        values.PATH,
        "Directory of the shared records (mode 0700). Containers that share a device must share "
        "this directory.",
        shown="`/dev/shm/kvcached-UID`",
    )
    capacity: int | None = _key(
        None,
        values.POSITIVE_SIZE,
        "Memory that all members of the budget may map together; never more than MemAvailable and "
        "the cgroup's limits allow. The first member makes the record; a later one that names "
        "another capacity is refused while members live or start, one that names none takes the "
        "record's.",
        shown="what is available when the record is made",
    )
    headroom: int = _key(
        0,
        values.SIZE,
        "Part of the capacity that stays free whatever happens; less than the capacity. All "
        "members name the same, as for `capacity`.",
    )
    limit: int | None = _key(
        None,
        values.POSITIVE_SIZE,
        "Memory that this engine may map at most; at most the capacity.",
        shown="the capacity",
    )
    floor: int | None = _key(
        None,
        values.SIZE,
        "Memory that is never lent to others; at most the limit. The floors of all live members "
        "must fit the capacity together; otherwise the last one to start is refused. A floor below "
        "the default lets more engines in, and lets two of them preempt each other when both need "
        "more than is there.",
        shown="one request of `max_model_len`, with the null block",
    )
    weight: int = _key(
        100,
        values.integer(1, 10_000),
        "This engine's share when several must give memory back, relative to the others'.",
    )
    page_size: int | None = _key(
        None,
        values.POSITIVE_SIZE,
        "Least memory mapped and given back at a time, over all layers; rounded up to whole "
        "blocks, and further to whole granules of the driver where such a page takes at most twice "
        "the memory that the smaller one can need. Where it would take more, pages share the "
        "granules at their ends, and the log, limits and floors count every granule that a page "
        "can touch. (The host driver's granules are 4 KiB: common blocks divide.) On a GPU a "
        "mapping costs the same whatever its size, so pages are larger there.",
        shown="`2MiB` on CPU, `32MiB` on a GPU",
    )
    reserve_pages: int = _key(
        2,
        values.integer(0, 1024),
        "Empty pages kept ready, so that a step rarely waits for memory. They rise to what a "
        "scheduling pass has drawn of late, as far as nobody else needs the memory, and fall back "
        "by half every 16 passes, or at once when nothing runs. `0`: memory comes only when a step "
        "needs it.",
    )
    reserve_wait_ms: int = _key(
        5,
        values.integer(0, 1000),
        "How long, in milliseconds, a scheduling pass may wait for memory on its way before it "
        'answers "not now", or evicts prefixes although memory is to be had.',
    )
    reclaim_wait_ms: int = _key(
        50,
        values.integer(0, 1000),
        "How long, in milliseconds, it may wait, when a running request would otherwise lose its "
        "work, for memory that neighbours hold without using it.",
    )
    prefix_bound: int | None = _key(
        None,
        values.BOUND,
        "Bytes of pages that only the prefix cache holds. `none`: no bound, and neighbours get "
        "them when they need memory. `0B`: no unreferenced block is kept, also none beside "
        "blocks in use. A bound below one page keeps one page, and a warning says so.",
        shown="`none`",
    )
    layout: Literal["block-major", "per-layer"] = _key(
        "block-major",
        values.choice("block-major", "per-layer"),
        "`block-major`: a block's bytes of all layers lie together. `per-layer`: a tensor for each "
        "layer.",
    )
    allocation_log: str | None = _key(
        None,
        values.PATH,
        "A file that does not exist yet. The engine records there what it asks of its block pool, "
        "for [replay](allocation-log.md): some bytes a call, some 0.1 µs a block, at most 4 GiB. A "
        "replica of a data-parallel engine adds `.dpN`.",
        shown="none",
    )
    check_ranks: Literal["off", "on"] = _key(
        "off",
        values.choice("off", "on"),
        "Of SGLang with several ranks: each compares its counters with the first one's behind "
        "every step, and where they differ the engine ends, and says which rank and what. For "
        "looking for faults; a step takes longer.",
    )
    name: str | None = _key(
        None,
        values.NAME,
        "Name of this engine among the members. Two live engines cannot share one; replicas of a "
        "data-parallel engine are `name/dpN`.",
        shown="a unique one",
    )


_PARSERS: dict[str, Parser] = {f.name: f.metadata["parser"] for f in fields(Settings)}
assert all(f.default is not MISSING for f in fields(Settings))


def keys() -> list[Key]:
    """Every key in the order of the table."""
    return [
        Key(f.name, f.metadata["shown"], f.metadata["parser"].allowed, f.metadata["meaning"])
        for f in fields(Settings)
    ]


def parse_settings(given: Mapping[str, Any], source: str) -> Settings:
    """Checks `given` (from `source`, named in errors). Raises SettingsError."""
    if not isinstance(given, Mapping):
        raise SettingsError(f"{source}: found {given!r}, needs a mapping of settings")
    unknown = sorted((key for key in given if key not in _PARSERS), key=str)
    if unknown:
        raise SettingsError(
            f"{source}: unknown key {unknown[0]!r}; allowed are {', '.join(sorted(_PARSERS))}"
        )
    try:
        parsed = {key: _PARSERS[key].parse(key, value) for key, value in given.items()}
    except SettingsError as error:
        raise SettingsError(f"{source}: {error}") from None
    settings = Settings(**parsed)
    _check_together(settings, source)
    return settings


def _check_together(settings: Settings, source: str) -> None:
    pairs = [
        ("limit", settings.limit, "capacity", settings.capacity),
        ("floor", settings.floor, "limit", settings.limit),
        ("floor", settings.floor, "capacity", settings.capacity),
        ("headroom", settings.headroom, "capacity", settings.capacity),
    ]
    for small, less, large, more in pairs:
        if less is not None and more is not None and less > more:
            raise SettingsError(
                f"{source}: {small} is {less} bytes, more than {large}, which is {more} bytes; "
                f"lower {small} or raise {large}"
            )
    if settings.headroom == settings.capacity:
        raise SettingsError(
            f"{source}: headroom is {settings.headroom} bytes, all of capacity, which is "
            f"{settings.capacity} bytes: no KV cache could have memory; lower headroom or raise "
            "capacity"
        )
