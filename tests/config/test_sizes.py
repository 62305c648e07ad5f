"""Sizes as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcached_core.config.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10GiB", 10 << 30),
        ("512MiB", 512 << 20),
        ("64KiB", 64 << 10),
        ("1TiB", 1 << 40),
        ("1.5GiB", 3 << 29),
        ("0.5KiB", 512),
        ("10GB", 10**10),
        ("1.25 KB", 1250),
        (" 2 MiB ", 2 << 20),
        ("0B", 0),
        ("7B", 7),
        ("4096", 4096),
        (4096, 4096),
        (0, 0),
        ((1 << 63) - 1, (1 << 63) - 1),
    ],
)
def test_parse(text: str | int, expected: int) -> None:
    assert parse_size(text, "limit") == expected


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "10G", "10gib", "10 GiBs", "-1GiB", "+1GiB", "1e3", "1.5B", "1.5", "0.3KiB",
     "1,5GiB", "1.GiB", ".5GiB", "0x10", "\u0661GiB", "1GiB 2MiB", "9000000TiB", -1, 1 << 63, True,
     None, 1.5],
)  # fmt: skip
def test_refuse(text: str | int) -> None:
    with pytest.raises(ValueError) as error:
        parse_size(text, "--kv-limit")
    for part in ("--kv-limit", repr(text), "10GiB", "1.5GiB", "10GB", "TiB"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (10 << 30, "10GiB"),
        (3 << 29, "1.5GiB"),
        (5 << 28, "1.25GiB"),
        (512 << 20, "512MiB"),
        ((10 << 30) + 1, "10.00GiB"),
        ((4 << 30) // 3, "1.33GiB"),
        ((1 << 20) - 1, "1.00MiB"),
        (1 << 50, "1024TiB"),
        (-(3 << 29), "-1.5GiB"),
    ],
)
def test_format(size: int, expected: str) -> None:
    assert format_size(size) == expected


@given(st.integers(0, (1 << 53) - 1))
def test_what_is_exact_is_read_back(size: int) -> None:
    text = format_size(size)
    try:
        read = parse_size(text, "size")
    except ValueError:  # rounded to hundredths of a unit that are no whole bytes
        assert "." in text
        return
    assert abs(read - size) * 200 <= max(size, 200)


@given(st.integers(0, 1023), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_whole_units_round_trip(count: int, unit: str) -> None:
    text = f"{count}{unit}" if count else "0B"
    assert format_size(parse_size(text, "size")) == text
