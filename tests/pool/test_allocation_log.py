"""The allocation log: what is written, and that it reads as what was done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcached_core.pool.allocation_log import (
    Header,
    LogError,
    LogWriter,
    Record,
    format_handles,
    format_record,
    parse_handles,
    read_header,
    read_records,
)

HEADER = Header(64, 4, 1 << 21, 2, None)


def write(*calls: tuple[str, object]) -> list[str]:
    """The lines, the header left out, that these calls of a writer give."""
    written: list[str] = []
    writer = LogWriter(HEADER, written.append)
    for name, argument in calls:
        getattr(writer, name)(*([] if argument is None else [argument]))
    writer.flush()
    lines = "".join(written).splitlines(keepends=True)
    assert read_header(lines[0]) == HEADER
    return lines[1:]


def test_blocks_become_handles_in_the_order_in_which_they_were_handed_out() -> None:
    lines = write(
        ("pop", [9, 8, 30]),
        ("pop", [1]),
        ("push_cached", [1, 30, 8]),
        ("push_free", [9]),
        ("take", 8),
        ("take", 30),
        ("end_pass", 12.3456),
        ("pop", [9]),
        ("push_free", [9]),
        ("uncache", [1, 63]),
        ("reset", None),
        ("idle", 20.0),
    )
    assert [line.strip() for line in lines] == [
        "p 3",
        "p 1",
        "c 3-1",
        "f 0",
        "t 1-2",
        "s 12.346",
        "p 1",
        "f 4",
        "u 3",
        "r",
        "i 20.000",
    ]


def test_hits_in_a_row_are_one_record_and_stay_in_their_place() -> None:
    lines = write(("pop", [1, 2]), ("push_cached", [1, 2]), ("take", 2), ("push_cached", [2]))
    assert [line.strip() for line in lines] == ["p 2", "c 0-1", "t 1", "c 1"]


def test_a_hit_of_a_block_that_was_never_handed_out_is_a_fresh_one() -> None:
    assert write(("take", 5), ("push_free", [5])) == ["p 1\n", "f 0\n"]


def test_nothing_given_back_is_no_record() -> None:
    assert write(("push_cached", []), ("push_free", []), ("uncache", [3])) == []


def test_lines_are_held_back_up_to_a_bound() -> None:
    written: list[str] = []
    writer = LogWriter(HEADER, written.append)
    for _ in range(5000):
        writer.reset()
    assert 4 <= len(written) <= 5
    assert "".join(written).endswith("\n")


@pytest.mark.parametrize(
    ("handles", "text"),
    [
        ([7], "7"),
        ([7, 8], "7-8"),
        ([8, 7], "8-7"),
        ([1, 2, 3, 9, 8, 7, 7, 0], "1-3 9-7 7 0"),
        ([1, 2, 1], "1-2 1"),
        ([5, 5], "5 5"),
    ],
)
def test_runs(handles: list[int], text: str) -> None:
    assert format_handles(handles) == text
    assert parse_handles(text) == handles


@given(st.lists(st.integers(0, 12), min_size=1))
def test_handles_read_as_written(handles: list[int]) -> None:
    assert parse_handles(format_handles(handles)) == handles


RECORDS = [
    Record("p", number=12),
    Record("c", [3, 2, 1]),
    Record("f", [9]),
    Record("t", [1, 2, 7]),
    Record("u", [4]),
    Record("r"),
    Record("s", number=1234567.125),
    Record("i", number=0.5),
]


def test_records_read_as_written() -> None:
    assert list(read_records(format_record(r) for r in RECORDS)) == RECORDS


def test_a_last_line_that_is_cut_off_is_left_out() -> None:
    assert list(read_records(["p 12\n", "c 1", ""][:2])) == [Record("p", number=12)]
    assert list(read_records(["p 12\n", "c 1-\n"][:1])) == [Record("p", number=12)]


@pytest.mark.parametrize(
    "line",
    ["x 1", "p", "p many", "p -", "c", "c 1,2", "t 1-", "r 1", "s", "s soon", "", "p 1 2", "pp 1"],
)
def test_a_bad_record_is_named_by_its_line(line: str) -> None:
    with pytest.raises(LogError, match=r"line 3: found .*a record is one of 'p COUNT'"):
        list(read_records(["p 1\n", f"{line}\n", "p 1\n"]))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "a log begins with"),
        ("kvcached-allocation-log 2 {}", "a log begins with 'kvcached-allocation-log 1'"),
        ("kvcached-allocation-log 1 {", "not JSON"),
        ("kvcached-allocation-log 1 {}", "needs .*num_blocks"),
        ("kvcached-allocation-log 1 []", "needs .*num_blocks"),
    ],
)
def test_a_bad_header_is_refused(line: str, why: str) -> None:
    with pytest.raises(LogError, match=f"line 1: .*{why}"):
        read_header(line)
