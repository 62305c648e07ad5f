"""One patch file: why it exists, and a diff that holds our lines and the few they replace.

    From: kvcached-forks
    Subject: one line

    Why it exists, in as many lines as it takes.

    Goes-away-when: the condition under which upstream makes it needless
    ---
    diff --git a/... (no context, full blob ids, bare hunk headers)

As a commit in the tree, its message is the subject, the why and the `Goes-away-when:` line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from upstream import Refusal

_FROM = "From: kvcached-forks"
_SUBJECT = "Subject: "
_GONE = "Goes-away-when:"
_DIFF = re.compile(rb"diff --git a/(?P<old>.+) b/(?P<new>.+)")
_INDEX = re.compile(rb"index (?P<pre>[0-9a-f]+)\.\.(?P<post>[0-9a-f]+)(?: [0-7]+)?")
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@(?P<rest>.*)", re.DOTALL)
_HEADERS = (b"new file mode ", b"deleted file mode ", b"old mode ", b"new mode ", b"--- ", b"+++ ")
NO_BLOB = "0" * 40
_SLUG = 52


@dataclass(frozen=True)
class FileChange:
    """What a patch does to one file. Blob ids are git's, 40 digits; NO_BLOB where there is none."""

    path: str
    pre: str
    post: str
    added: tuple[bytes, ...]
    removed: tuple[bytes, ...]

    @property
    def is_new(self) -> bool:
        return self.pre == NO_BLOB


@dataclass(frozen=True)
class Patch:
    name: str
    """The file's name, NNNN-slug.patch."""
    message: str
    """The commit message: normalised, ends in one newline."""
    diff: bytes

    @property
    def subject(self) -> str:
        return self.message.split("\n", 1)[0]

    def to_bytes(self) -> bytes:
        subject, _, body = self.message.partition("\n")
        head = f"{_FROM}\n{_SUBJECT}{subject}\n{body}"
        return head.encode() + b"---\n" + self.diff


def normalise_message(raw: str) -> str:
    """The message without trailing blanks, and with blank lines only one at a time."""
    lines: list[str] = []
    for line in (part.rstrip() for part in raw.strip().splitlines()):
        if line or lines[-1]:
            lines.append(line)
    return "\n".join(lines) + "\n"


def file_name(number: int, subject: str) -> str:
    """NNNN-slug.patch; long subjects are cut at a word, so that a listing stays readable."""
    slug = re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")
    if len(slug) > _SLUG:
        slug = slug[: _SLUG + 1].rpartition("-")[0] or slug[:_SLUG]
    return f"{number:04d}-{slug or 'patch'}.patch"


def check_message(where: str, message: str) -> None:
    """Refuses a message without a subject line, a reason, or its `Goes-away-when:`."""
    lines = message.rstrip("\n").split("\n")
    if "---" in lines:
        raise Refusal(where, "a line of the message is '---'", "reword it: it ends the message")
    if not lines[0] or (len(lines) > 1 and lines[1]):
        raise Refusal(
            where, "the subject is not one line", "write the subject, a blank line, then the reason"
        )
    gone = [i for i, line in enumerate(lines) if line.startswith(_GONE)]
    if len(gone) != 1:
        raise Refusal(
            where,
            f"has {len(gone)} '{_GONE}' lines, expected 1",
            "say once, on a line of its own, what makes this patch needless",
        )
    if not " ".join([lines[gone[0]].removeprefix(_GONE), *lines[gone[0] + 1 :]]).strip():
        raise Refusal(where, f"'{_GONE}' says nothing", "name the condition")
    if not any(lines[1 : gone[0]]):
        raise Refusal(
            where, "has no reason", f"say why the patch exists, between subject and '{_GONE}'"
        )


def parse(name: str, where: str, data: bytes) -> Patch:
    """Reads a patch file. Refuses one whose header is not ours; the diff is read by `changes`."""
    head, mark, diff = data.partition(b"\n---\n")
    if not mark:
        raise Refusal(where, "has no '---' line before its diff", "export it again from the tree")
    try:
        lines = head.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise Refusal(where, f"its header is not UTF-8 ({error})", "export it again") from error
    if lines[0] != _FROM or len(lines) < 2 or not lines[1].startswith(_SUBJECT):
        raise Refusal(
            where,
            f"its first lines are {lines[:2]}, expected '{_FROM}' and '{_SUBJECT}...'",
            "export it again from the tree",
        )
    message = normalise_message("\n".join([lines[1].removeprefix(_SUBJECT), *lines[2:]]))
    return Patch(name, message, diff)


def bare_hunks(diff: bytes) -> bytes:
    """The diff with hunk headers stripped of the function text, which is upstream's."""
    lines = diff.split(b"\n")
    # At no context every content line starts with + - or \, so a line in @@ is a hunk header.
    return b"\n".join(
        line[: line.index(b" @@", 2) + 3] if line.startswith(b"@@ ") else line for line in lines
    )


def changes(where: str, diff: bytes) -> list[FileChange]:
    """The files of a diff, with the lines it adds and removes.

    Refuses context lines, function text in hunk headers, abbreviated blob ids, binary files and
    changes that have no blob ids (a mode on its own): none of them is in a patch we export.
    """
    return _Reader(where, diff).read()


class _Reader:
    def __init__(self, where: str, diff: bytes) -> None:
        self.where = where
        self.lines = diff.split(b"\n")
        if self.lines and self.lines[-1] == b"":
            self.lines.pop()
        self.at = 0

    def refuse(self, what: str, todo: str = "export it again from the tree") -> Refusal:
        line = self.lines[self.at].decode(errors="replace") if self.at < len(self.lines) else ""
        return Refusal(self.where, f"diff line {self.at + 1}: {what} ({line[:60]!r})", todo)

    def peek(self) -> bytes:
        return self.lines[self.at] if self.at < len(self.lines) else b""

    def read(self) -> list[FileChange]:
        found = []
        while self.at < len(self.lines):
            found.append(self.one_file())
        if not found:
            raise Refusal(self.where, "changes no file", "drop the patch")
        return found

    def one_file(self) -> FileChange:
        if self.peek().startswith(b'diff --git "'):
            raise self.refuse("a file name that git quotes", "keep to plain ASCII file names")
        head = _DIFF.fullmatch(self.peek())
        if not head or head["old"] != head["new"]:
            raise self.refuse("expected 'diff --git a/PATH b/PATH' with one path")
        self.at += 1
        blobs = None
        while self.peek().startswith((*_HEADERS, b"index ")):
            if self.peek().startswith(b"index "):
                blobs = _INDEX.fullmatch(self.peek())
                if not blobs or len(blobs["pre"]) != 40 or len(blobs["post"]) != 40:
                    raise self.refuse("expected two blob ids of 40 digits")
            self.at += 1
        if self.peek().startswith((b"Binary files", b"GIT binary patch")):
            raise self.refuse("a binary file", "keep binary files out of the series")
        if not blobs:
            raise self.refuse("no blob ids: a change of mode alone?", "leave modes as they are")
        added: list[bytes] = []
        removed: list[bytes] = []
        while self.peek().startswith(b"@@"):
            self.one_hunk(added, removed)
        path = head["new"].decode(errors="replace")
        pre, post = blobs["pre"].decode(), blobs["post"].decode()
        return FileChange(path, pre, post, tuple(added), tuple(removed))

    def one_hunk(self, added: list[bytes], removed: list[bytes]) -> None:
        head = _HUNK.fullmatch(self.peek())
        if not head:
            raise self.refuse("not a hunk header")
        if head["rest"]:
            raise self.refuse("function text in a hunk header")
        minus, plus = (1 if n is None else int(n) for n in head.groups()[:2])
        self.at += 1
        while self.at < len(self.lines) and (minus or plus or self.peek().startswith(b"\\")):
            line = self.peek()
            if line.startswith(b"+"):
                added.append(line[1:])
                plus -= 1
            elif line.startswith(b"-"):
                removed.append(line[1:])
                minus -= 1
            elif not line.startswith(b"\\"):
                raise self.refuse("a context line, expected none")
            self.at += 1
        if minus or plus:
            raise self.refuse("the hunk's line counts do not add up")
