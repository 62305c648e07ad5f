"""The settings of an engine's elastic storage: schema, defaults, checks.

They come as a flat mapping (for vLLM: ``--kv-storage-config '{"capacity": "10GiB"}'``). Parsing
opens nothing and touches no device, so it may run in any process, any number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from kvcached_core.config.sizes import parse_size

Layout = Literal["block-major", "per-layer"]

# Keys of records and segments become file names and fixed-size fields in shared memory.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


class SettingsError(ValueError):
    """A setting is unknown or has a value that is not allowed. The text says which and why."""


@dataclass(frozen=True)
class Settings:
    """Sizes are bytes. See ``docs/configuration.md`` for the meaning of each key."""

    budget: str = "default"
    """Engines that name the same budget share one device's memory."""
    budget_dir: str | None = None
    """Directory of the shared records; None: one per user in shared memory."""
    capacity: int | None = None
    """Memory that all members of the budget may map together; None: what the machine has."""
    headroom: int = 0
    """Bytes of the capacity that stay free whatever happens."""
    limit: int | None = None
    """Memory that this engine may map at most; None: the capacity."""
    floor: int | None = None
    """Memory that is never lent to others; None: one request of the greatest length."""
    weight: int = 100
    """Share of this engine when several are short, relative to the others'."""
    page_size: int = 2 << 20
    """Least memory mapped and given back at a time; rounded up to whole blocks and granules."""
    reserve_pages: int = 2
    """Empty pages kept ready, so that a step rarely waits for memory."""
    reserve_wait_ms: int = 5
    """How long a scheduling pass may wait for memory that is on its way."""
    reclaim_wait_ms: int = 50
    """How long a running request may wait for a neighbour to give up memory that it only caches."""
    prefix_bound: int | None = None
    """Bytes of pages that only the prefix cache holds; None: no bound, 0: no unused prefix kept."""
    layout: Layout = "block-major"
    """Whether a block's bytes of all layers lie together, or each layer has its own tensor."""
    name: str | None = None
    """Name of this engine among the budget's members; None: a unique one is made."""


def _size(key: str, value: Any) -> int:
    try:
        return parse_size(value, key)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _positive_size(key: str, value: Any) -> int:
    size = _size(key, value)
    if size == 0:
        raise SettingsError(f"{key}: found {value!r}, needs more than 0 bytes, such as '10GiB'")
    return size


def _bound(key: str, value: Any) -> int | None:
    return None if value == "none" else _size(key, value)


def _integer(least: int, most: int) -> Callable[[str, Any], int]:
    def parse(key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise SettingsError(f"{key}: found {value!r}, allowed are {least} to {most}")
        return int(value)

    return parse


def _name(key: str, value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise SettingsError(
            f"{key}: found {value!r}, allowed are 1 to 40 letters, digits, '.', '_' and '-', "
            "the first a letter or digit"
        )
    return value


def _path(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise SettingsError(
            f"{key}: found {value!r}, needs an absolute path of a directory, without a NUL"
        )
    return value


def _layout(key: str, value: Any) -> Layout:
    if value not in ("block-major", "per-layer"):
        raise SettingsError(f"{key}: found {value!r}, allowed are 'block-major' and 'per-layer'")
    return cast(Layout, value)


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "budget": _name,
    "budget_dir": _path,
    "capacity": _positive_size,
    "headroom": _size,
    "limit": _positive_size,
    "floor": _size,
    "weight": _integer(1, 10_000),
    "page_size": _positive_size,
    "reserve_pages": _integer(0, 1024),
    "reserve_wait_ms": _integer(0, 1000),
    "reclaim_wait_ms": _integer(0, 1000),
    "prefix_bound": _bound,
    "layout": _layout,
    "name": _name,
}
assert set(_PARSERS) == {field.name for field in fields(Settings)}


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
        parsed = {key: _PARSERS[key](key, value) for key, value in given.items()}
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
