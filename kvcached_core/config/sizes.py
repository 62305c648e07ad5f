"""Sizes that people write and read: "10GiB", "512MiB", "64KiB"; bytes everywhere else."""

from __future__ import annotations

import re
from fractions import Fraction

_BINARY = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_DECIMAL = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS = _BINARY | _DECIMAL
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")
# A file offset, and so the size of anything mapped, is a signed 64-bit count.
_LARGEST = (1 << 63) - 1
_ALLOWED = (
    "allowed are whole bytes such as 10GiB, 1.5GiB, 512MiB, 64KiB, 10GB or 0B "
    f"(units: {', '.join(_UNITS)}; no unit: bytes), less than 8388608TiB"
)


def parse_size(text: str | int, what: str) -> int:
    """Bytes of a size as a person writes it; `what` names the setting in the error.

    An int, or digits without a unit, are bytes. A fraction must come to whole bytes.
    Raises ValueError with what was found and what is allowed.
    """
    size = _number(text)
    if size is None or size.denominator != 1 or not 0 <= size <= _LARGEST:
        raise ValueError(f"{what}: found {repr(text)[:100]}; {_ALLOWED}")
    return int(size)


def _number(text: str | int) -> Fraction | None:
    if isinstance(text, bool):
        return None
    if isinstance(text, int):
        return Fraction(text)
    match = _TEXT.fullmatch(text.strip()) if isinstance(text, str) and len(text) < 100 else None
    if match is None:
        return None
    digits, unit = match.groups()
    if unit == "":
        return Fraction(digits) if digits.isdigit() else None
    return Fraction(digits) * _UNITS[unit] if unit in _UNITS else None


def format_size(n: int) -> str:
    """The size in the largest binary unit it reaches: "1.5GiB" if exact, else "1.33GiB"."""
    if n < 0:
        return "-" + format_size(-n)
    units = list(_BINARY.items())
    at = max(i for i, (_, factor) in enumerate(units) if n >= factor or i == 0)
    hundredths, exact = _hundredths(n, units[at][1])
    if hundredths >= 1024 * 100 and at + 1 < len(units):  # rounded up into the next unit
        at += 1
        hundredths, exact = _hundredths(n, units[at][1])
    text = f"{hundredths // 100}.{hundredths % 100:02}"
    return (text.rstrip("0").rstrip(".") if exact else text) + units[at][0]


def _hundredths(n: int, factor: int) -> tuple[int, bool]:
    return (n * 100 + factor // 2) // factor, n * 100 % factor == 0
