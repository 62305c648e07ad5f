"""Settings: what is allowed, what is refused, and by which words."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from kvcached_core.config import Settings, SettingsError, keys, parse_settings


def parse(**given: Any) -> Settings:
    return parse_settings(given, "--option")


def test_nothing_given_is_the_defaults() -> None:
    assert parse() == Settings()


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("budget", "gpu-0", "gpu-0"),
        ("budget_dir", "/run/kv", "/run/kv"),
        ("allocation_log", "/tmp/a.log", "/tmp/a.log"),
        ("capacity", "10GiB", 10 << 30),
        ("capacity", 4096, 4096),
        ("headroom", "0B", 0),
        ("limit", "1.5GiB", 3 << 29),
        ("floor", 0, 0),
        ("weight", 10_000, 10_000),
        ("page_size", "64KiB", 64 << 10),
        ("reserve_pages", 0, 0),
        ("reserve_wait_ms", 1000, 1000),
        ("reclaim_wait_ms", 0, 0),
        ("prefix_bound", "none", None),
        ("prefix_bound", "0B", 0),
        ("prefix_bound", "1MiB", 1 << 20),
        ("layout", "per-layer", "per-layer"),
        ("check_ranks", "on", "on"),
        ("name", "a" * 40, "a" * 40),
    ],
)
def test_allowed(key: str, value: Any, expected: Any) -> None:
    assert getattr(parse(**{key: value}), key) == expected


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("budget", ["", "a/b", "-a", "a" * 41, 7, None, "a\n"]),
        ("budget_dir", ["relative", "", 7, None, "/a\0b"]),
        ("allocation_log", ["a.log", "", 7, None, True]),
        ("capacity", ["0B", 0, -1, "10 gigabytes", 1.5, None, True]),
        ("headroom", ["-1B", None]),
        ("limit", ["0B", None]),
        ("floor", [-1, "x", None]),
        ("weight", [0, 10_001, 1.0, "100", True]),
        ("page_size", ["0B", 0]),
        ("reserve_pages", [-1, 1025, "2"]),
        ("reserve_wait_ms", [-1, 1001]),
        ("reclaim_wait_ms", [-1, 1001]),
        ("prefix_bound", ["None", None, -1]),
        ("layout", ["packed", None, ["per-layer"]]),
        ("check_ranks", [True, "yes", None]),
        ("name", ["", "a/b", "ä", None]),
    ],
)
def test_refused_by_key_and_value(key: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(SettingsError) as refusal:
            parse(**{key: value})
        text = str(refusal.value)
        assert text.startswith(f"--option: {key}: found {value!r}"), text


def test_every_setting_is_tried() -> None:
    tried = {
        mark.args[1][i][0] for mark in test_allowed.pytestmark for i in range(len(mark.args[1]))
    }
    assert tried == {field.name for field in fields(Settings)}


@pytest.mark.parametrize("key", ["capcity", "", 7, None])
def test_an_unknown_key_is_refused_with_the_known(key: Any) -> None:
    with pytest.raises(SettingsError) as refusal:
        parse_settings({key: 1, "weight": 1}, "--option")
    assert str(refusal.value).startswith(
        f"--option: unknown key {key!r}; allowed are allocation_log, "
    )


def test_keys_of_several_types_are_refused_too() -> None:
    with pytest.raises(SettingsError, match="unknown key"):
        parse_settings({"x": 1, 7: 1}, "--option")


@pytest.mark.parametrize("given", [None, [], "capacity=1GiB", 7])
def test_what_is_no_mapping_is_refused(given: Any) -> None:
    with pytest.raises(SettingsError, match="needs a mapping"):
        parse_settings(given, "--option")


@pytest.mark.parametrize(
    ("small", "large"),
    [
        ("limit", "capacity"),
        ("floor", "limit"),
        ("floor", "capacity"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(small: str, large: str) -> None:
    parse(**{small: 8192, large: 8192})
    with pytest.raises(SettingsError) as refusal:
        parse(**{small: 8193, large: 8192})
    text = str(refusal.value)
    assert "8193" in text and "8192" in text and f"lower {small} or raise {large}" in text


@pytest.mark.parametrize("headroom", [8192, 8193])
def test_a_headroom_that_leaves_nothing_is_refused(headroom: int) -> None:
    parse(headroom=8191, capacity=8192)
    parse(headroom=headroom)  # without a capacity, the machine's is known only at start
    with pytest.raises(SettingsError) as refusal:
        parse(headroom=headroom, capacity=8192)
    text = str(refusal.value)
    assert str(headroom) in text and "8192" in text and "lower headroom or raise capacity" in text


def test_every_key_says_what_it_is() -> None:
    described = {key.name: key for key in keys()}
    assert list(described) == [field.name for field in fields(Settings)]
    for key in described.values():
        assert key.default and key.allowed and key.meaning.rstrip(")").endswith(".")
    assert described["weight"].default == "`100`"
    assert described["headroom"].default == "`0B`"
    assert described["weight"].allowed == "1 to 10,000"


def test_parsing_leaves_what_was_given_alone() -> None:
    given = {"capacity": "1GiB"}
    parse_settings(given, "--option")
    assert given == {"capacity": "1GiB"}
