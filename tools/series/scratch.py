"""A repository to make commits in without touching the tree: it borrows the tree's objects."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from upstream import Git


@contextmanager
def scratch_repository(tree: Git) -> Iterator[Git]:
    """A bare repository that sees every object of `tree` and keeps its own; gone afterwards."""
    objects = Path(tree.text("rev-parse", "--path-format=absolute", "--git-path", "objects"))
    with tempfile.TemporaryDirectory(prefix="series-") as folder:
        git = Git(Path(folder))
        git.raw("init", "--quiet", "--bare", "--template=", ".")
        info = Path(folder) / "objects" / "info"
        info.mkdir(exist_ok=True)
        (info / "alternates").write_text(f"{objects}\n")
        yield git


def read_blobs(git: Git, ids: list[str]) -> list[bytes]:
    """The contents of these blobs, in order, through one git process."""
    out = git.raw("cat-file", "--batch", stdin="".join(f"{blob}\n" for blob in ids).encode())
    found, at = [], 0
    for _ in ids:
        end = out.index(b"\n", at)
        size = int(out[at:end].split(b" ")[2])
        found.append(out[end + 1 : end + 1 + size])
        at = end + 1 + size + 1
    return found
