"""Kinds of values that a setting takes: what is allowed, in words, and how it is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvcached_core.config.sizes import format_size, parse_size

# Names of records and segments become file names and fixed-size fields in shared memory.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


class SettingsError(ValueError):
    """A setting is unknown or has a value that is not allowed. The text says which and why."""


@dataclass(frozen=True)
class Parser:
    """`parse(key, value)` gives the value or raises SettingsError, naming `key`."""

    allowed: str
    """What is allowed, for the reference; a phrase in Markdown."""
    parse: Callable[[str, Any], Any]
    show: Callable[[Any], str] = str
    """A value as a person would write it."""


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
    if value == "none":
        return None
    try:
        return _size(key, value)
    except SettingsError as error:
        raise SettingsError(f"{error}, or 'none' for no bound") from None


def _name(key: str, value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise SettingsError(
            f"{key}: found {value!r}, allowed are 1 to 40 letters, digits, '.', '_' and '-', "
            "the first a letter or digit"
        )
    return value


def _path(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise SettingsError(f"{key}: found {value!r}, needs an absolute path, without a NUL")
    return value


def integer(least: int, most: int) -> Parser:
    """Whole numbers from `least` to `most`."""

    def parse(key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise SettingsError(f"{key}: found {value!r}, allowed are {least} to {most}")
        return int(value)

    return Parser(f"{least} to {most:,}", parse)


def choice(*allowed: str) -> Parser:
    """One of these words."""
    shown = " and ".join(f"'{word}'" for word in allowed)

    def parse(key: str, value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise SettingsError(f"{key}: found {value!r}, allowed are {shown}")
        return value

    return Parser(", ".join(f"`{word}`" for word in allowed), parse)


SIZE = Parser("a size", _size, format_size)
POSITIVE_SIZE = Parser("a size above 0", _positive_size, format_size)
BOUND = Parser("a size, or `none`", _bound)
NAME = Parser("1 to 40 letters, digits, `.`, `_`, `-`; the first a letter or digit", _name)
PATH = Parser("an absolute path", _path)
