"""The allocation log: what an engine asked of its pool, so that another pool can answer it.

The format is described in docs/allocation-log.md. Blocks are named by handles: the n-th block that
was handed out is n, from 0. No clock and no file here: the caller brings the time and the sink.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

MAGIC = "kvcached-allocation-log"
VERSION = 1
_BUFFER_RECORDS = 1024

POP = "p"
CACHE = "c"
FREE = "f"
TAKE = "t"
UNCACHE = "u"
RESET = "r"
PASS = "s"
IDLE = "i"
_WITH_HANDLES = (CACHE, FREE, TAKE, UNCACHE)


class LogError(ValueError):
    """The text is no allocation log; says which line, what was found, what is allowed."""


@dataclass(frozen=True)
class Header:
    """The pool that was recorded."""

    num_blocks: int
    blocks_per_page: int
    page_bytes: int
    reserve_pages: int
    prefix_bound: int | None
    """Bytes of pages that only the cache holds; None: no bound."""


class Record(NamedTuple):
    """One call of the engine. `handles` in its order; `number` is the count of a pop, the
    milliseconds since the start of a pass's end or of idleness."""

    kind: str
    handles: Sequence[int] = ()
    number: float = 0


class LogWriter:
    """Turns calls on block ids into records. Memory: a handle for each block of the pool, and at
    most _BUFFER_RECORDS lines; time: a fraction of a microsecond a block."""

    def __init__(self, header: Header, write: Callable[[str], object]) -> None:
        """`write` gets whole lines, many at a time; what it raises, the calls raise."""
        self._write = write
        self._handle = [-1] * header.num_blocks
        self._next = 0
        self._taken: list[int] = []
        self._lines = [f"{MAGIC} {VERSION} {json.dumps(asdict(header))}\n"]

    def pop(self, ids: Sequence[int]) -> None:
        handle = self._next
        for block in ids:
            self._handle[block] = handle
            handle += 1
        self._next = handle
        self._add(f"{POP} {len(ids)}\n")

    def push_cached(self, ids: Iterable[int]) -> None:
        self._add_handles(CACHE, ids)

    def push_free(self, ids: Iterable[int]) -> None:
        self._add_handles(FREE, ids)

    def take(self, block: int) -> None:
        """Hits in a row make one record. A block that was never handed out counts as popped."""
        if self._handle[block] < 0:
            self.pop([block])
        else:
            self._taken.append(self._handle[block])

    def uncache(self, ids: Iterable[int]) -> None:
        self._add_handles(UNCACHE, (block for block in ids if self._handle[block] >= 0))

    def reset(self) -> None:
        self._add(f"{RESET}\n")

    def end_pass(self, milliseconds: float) -> None:
        self._add(f"{PASS} {milliseconds:.3f}\n")

    def idle(self, milliseconds: float) -> None:
        self._add(f"{IDLE} {milliseconds:.3f}\n")

    def flush(self) -> None:
        self._add("")
        lines, self._lines = self._lines, []
        self._write("".join(lines))

    def _add_handles(self, kind: str, ids: Iterable[int]) -> None:
        handles = [self._handle[block] for block in ids]
        if handles:
            self._add(f"{kind} {format_handles(handles)}\n")

    def _add(self, line: str) -> None:
        if self._taken:
            taken, self._taken = self._taken, []
            self._lines.append(f"{TAKE} {format_handles(taken)}\n")
        self._lines.append(line)
        if len(self._lines) >= _BUFFER_RECORDS and line:
            self.flush()


def format_handles(handles: Sequence[int]) -> str:
    """Runs, up or down by one, are written as `first-last`."""
    parts = []
    first = last = handles[0]
    step = 0
    for handle in handles[1:]:
        if handle - last in (1, -1) and step in (0, handle - last):
            step, last = handle - last, handle
            continue
        parts.append(f"{first}-{last}" if step else f"{first}")
        first = last = handle
        step = 0
    parts.append(f"{first}-{last}" if step else f"{first}")
    return " ".join(parts)


def parse_handles(text: str) -> list[int]:
    """The reverse. Raises ValueError."""
    out: list[int] = []
    for part in text.split():
        first, dash, last = part.partition("-")
        a, b = int(first), int(last if dash else first)
        out += range(a, b + 1) if a <= b else range(a, b - 1, -1)
    return out


def format_record(record: Record) -> str:
    """One line."""
    if record.kind in _WITH_HANDLES:
        return f"{record.kind} {format_handles(record.handles)}\n"
    return f"{record.kind}\n" if record.kind == RESET else f"{record.kind} {record.number!r}\n"


def read_header(line: str) -> Header:
    """The first line of a log. Raises LogError."""
    magic, _, rest = line.partition(" ")
    version, _, body = rest.partition(" ")
    if magic != MAGIC or version != str(VERSION):
        raise LogError(
            f"line 1: found {line.strip()[:60]!r}, a log begins with '{MAGIC} {VERSION}'; "
            "is it an allocation log, of this version?"
        )
    names = {field.name for field in fields(Header)}
    try:
        given = json.loads(body)
    except ValueError as error:
        raise LogError(f"line 1: the header is not JSON: {error}") from None
    if not isinstance(given, dict) or set(given) != names:
        raise LogError(f"line 1: found the header {body.strip()[:80]}, needs {sorted(names)}")
    return Header(**given)


def read_records(lines: Iterable[str]) -> Iterator[Record]:
    """The lines after the first, one by one. Raises LogError, but forgives a last line that is cut
    off in the middle: the recorded process may have been killed."""
    held: tuple[int, str] | None = None
    for number, line in enumerate(lines, start=2):
        if held is not None:
            yield _parse(*held)
        held = (number, line)
    if held is not None and held[1].endswith("\n"):
        yield _parse(*held)


def _parse(number: int, line: str) -> Record:
    kind, _, rest = line.rstrip("\n").partition(" ")
    try:
        if kind in _WITH_HANDLES and rest:
            return Record(kind, parse_handles(rest))
        if kind == POP:
            return Record(kind, number=int(rest))
        if kind in (PASS, IDLE):
            return Record(kind, number=float(rest))
        if kind == RESET and not rest:
            return Record(kind)
    except ValueError:
        pass
    raise LogError(
        f"line {number}: found {line.rstrip()[:60]!r}; a record is one of 'p COUNT', 'c HANDLES', "
        "'f HANDLES', 't HANDLES', 'u HANDLES', 'r', 's MILLISECONDS', 'i MILLISECONDS'"
    )
