"""What Apache-2.0 asks of a changed work (4b): a line in each changed file, and a NOTICE."""

from __future__ import annotations

import re

from upstream import Pin

LINE = b"# Modified by kvcached-forks; see NOTICE."
_BOM = b"\xef\xbb\xbf"
_CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*[-\w.]+")
_SILENT = re.compile(rb"^[ \t\f]*(?:#|\r?\n|$)")
# Files whose language takes our line as a comment.
COMMENTABLE = (".py", ".pyi")


def mark(source: bytes) -> bytes:
    """The source with our line at its head, behind a shebang and an encoding line if there are."""
    bom = _BOM if source.startswith(_BOM) else b""
    lines = source.removeprefix(bom).splitlines(keepends=True)
    at = 1 if lines and lines[0].startswith(b"#!") else 0
    # Python takes an encoding from the first line, or from the second if the first says nothing.
    for number, line in enumerate(lines[:2]):
        if _CODING.match(line):
            at = number + 1
        if not _SILENT.match(line):
            break
    end = b"\r\n" if lines and lines[0].endswith(b"\r\n") else b"\n"
    if at and not lines[at - 1].endswith((b"\n", b"\r")):
        lines[at - 1] += end
    return bom + b"".join([*lines[:at], LINE + end, *lines[at:]])


def notice(pin: Pin, changed: list[str], added: list[str], removed: list[str], theirs: str) -> str:
    """The NOTICE of our wheel: what differs from upstream, then upstream's own NOTICE."""
    text = [
        f"This package is {pin.engine} {pin.version} ({pin.repository}, {pin.licence}),",
        "modified by kvcached-forks. It is not the work of the upstream project.",
    ]
    for title, names in (
        ("Files changed", changed),
        ("Files added", added),
        ("Files removed", removed),
    ):
        if names:
            text += ["", f"{title}:", *(f"  {name}" for name in sorted(names))]
    if theirs:
        text += ["", "The NOTICE of the upstream package:", "", theirs.rstrip("\n")]
    return "\n".join(text) + "\n"
