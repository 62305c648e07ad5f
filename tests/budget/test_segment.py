"""The instance's segment: its file, the ring, what the scheduler half may ask."""

from __future__ import annotations

import re
import resource
import threading
from pathlib import Path

import pytest
from rank_rig import DOORBELL_AT, GROW_HEAD_AT, PATIENCE_S, RING_AT, eventually, rig, set_word, word

from kvcached_core.budget import Segment, read_segment

VERSION_AT, PAGES_AT, RANKS_AT, RING_SIZE_AT = 8, 12, 16, 20


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "engine.segment")


@pytest.mark.parametrize("pages,ranks", [(0, 1), (1, 0), (1, 65), (2**31, 1), (2**32 - 1, 1)])
def test_numbers_that_cannot_be(path: str, pages: int, ranks: int) -> None:
    with pytest.raises(ValueError, match=f"not {pages} pages and {ranks} ranks"):
        Segment.create(path, pages, ranks)
    assert not Path(path).exists()


def test_a_segment_is_private_and_leaves_no_other_file(path: str) -> None:
    made = Segment.create(path, 5, 3)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert [file.name for file in Path(path).parent.iterdir()] == ["engine.segment"]
    opened = Segment.open(path)
    for segment in (made, opened):
        assert (segment.path, segment.num_pages, segment.num_ranks) == (path, 5, 3)
    assert not opened.rank_info(2)["joined"]
    with pytest.raises(IndexError, match="rank 3 of 3"):
        opened.rank_info(3)


def test_no_space_is_an_error_and_leaves_nothing(path: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(RuntimeError, match=r"no room for \d+ bytes"):
            Segment.create(path, 100_000, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(Path(path).parent.iterdir()) == []


def test_a_name_that_cannot_be_had_leaves_nothing(path: str) -> None:
    Path(path).mkdir()
    with pytest.raises(RuntimeError, match="cannot name"):
        Segment.create(path, 5, 1)
    assert list(Path(path).parent.iterdir()) == [Path(path)]


@pytest.mark.parametrize(
    "at,value,message",
    [
        (0, 1, "no segment"),
        (VERSION_AT, 9, "a segment of version 9, this build reads 3: use one release"),
        (PAGES_AT, 70, "torn .*70 pages"),
        (PAGES_AT, 0, "torn .*\\(0 pages"),
        (RANKS_AT, 4, "torn .*4 ranks"),
        (RING_SIZE_AT, 16, "torn"),
        (PAGES_AT, 2**32 - 1, "torn .*4294967295 pages"),
    ],
)
def test_a_file_that_is_no_segment_is_refused(path: str, at: int, value: int, message: str) -> None:
    Segment.create(path, 5, 3)
    set_word(path, at, value)
    for read in (Segment.open, read_segment):
        with pytest.raises(RuntimeError, match=f"{path} .*{message}"):
            read(path)


@pytest.mark.parametrize("size", [0, 100, 1000])
def test_a_torn_file_is_refused(path: str, size: int) -> None:
    Segment.create(path, 5, 3)
    with Path(path).open("r+b") as file:
        file.truncate(size)
    with pytest.raises(RuntimeError, match=r"too short|torn segment"):
        Segment.open(path)


def test_a_missing_file_is_named(path: str) -> None:
    for read in (Segment.open, read_segment):
        with pytest.raises(RuntimeError, match=f"{path}.*No such file"):
            read(path)


def test_a_path_with_a_nul_is_refused(tmp_path: Path) -> None:
    for make in (Segment.open, read_segment, lambda path: Segment.create(path, 5, 1)):
        with pytest.raises(ValueError, match="NUL"):
            make(f"{tmp_path}/engine\0.segment")
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_the_ring_is_not_published(path: str) -> None:
    segment = Segment.create(path, 5, 1)  # a ring of 8
    segment.request(range(5))
    rung = word(path, DOORBELL_AT)
    with pytest.raises(RuntimeError, match=r"4 entries on top of 5 unresolved .* ring of 8"):
        segment.request([1, 2, 3, 4])
    for page in (-1, 5):
        with pytest.raises(IndexError, match=f"no page {page} "):
            segment.request([0, page])
        with pytest.raises(IndexError, match=f"no page {page} "):
            segment.is_quarantined(page)
    assert (segment.outstanding(), word(path, DOORBELL_AT)) == (5, rung)
    segment.request([0, 1, 2])
    assert segment.outstanding() == 8
    assert segment.poll() == ([], [], [])


def test_the_ring_is_used_again(tmp_path: Path) -> None:
    with rig(tmp_path, pages=5) as engine:
        engine.join()
        for _ in range(10):
            assert engine.grow(1, 2, 3)[0] == [1, 2, 3]
            engine.retire([1, 2, 3])


def test_waiting_ends_with_the_deadline_or_with_news(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        engine.join()
        segment = engine.segment
        seen = segment.progress()
        for milliseconds in (-1, 0, 1):
            assert segment.wait_progress(seen, milliseconds) == seen
        assert segment.wait_progress((seen - 1) % 2**32, PATIENCE_S * 1000) == seen
        woken: list[int] = []
        waiter = threading.Thread(
            target=lambda: woken.append(segment.wait_progress(seen, PATIENCE_S * 1000))
        )
        waiter.start()
        segment.request([1])
        waiter.join(PATIENCE_S)
        assert woken and woken != [seen]


def test_failures_name_their_rank(tmp_path: Path) -> None:
    with rig(tmp_path, ranks=2) as engine:
        engine.join()
        engine.join()
        assert engine.segment.failure() == ""
        # A page that there is not, as a scheduler half gone mad might ask.
        engine.segment.request([3])
        eventually(lambda: engine.segment.poll() == ([3], [], []), "owned")
        set_word(engine.path, RING_AT + 4, engine.pages)
        set_word(engine.path, GROW_HEAD_AT, 2)
        engine.segment.set_wish(1)
        eventually(lambda: bool(engine.segment.failure()), "told")
        assert re.match("rank [01]: there is no page 8", engine.segment.failure())
