"""One patch with its surroundings, for a reader."""

from __future__ import annotations

from upstream import PRISTINE, Git, Layout, Pin, Refusal

from . import store
from .apply import build_commits
from .export import commits_since
from .scratch import scratch_repository


def show(layout: Layout, pin: Pin, tree: Git, wanted: str, context: int = 8) -> bytes:
    """The patch named `wanted` (its file name, or its number) with `context` lines around."""
    patches = store.read_series(layout, pin.version)
    number = int(wanted) if wanted.isdigit() else 0
    at = [i for i, p in enumerate(patches, 1) if wanted in (p.name, p.subject) or i == number]
    if not at:
        names = ", ".join(p.name for p in patches) or "none"
        raise Refusal(
            store.where(layout, pin.version, store.SERIES), f"no patch {wanted!r}", f"has: {names}"
        )
    base = tree.text("rev-parse", f"{PRISTINE}^{{commit}}")
    with scratch_repository(tree) as scratch:
        head = build_commits(scratch, patches[: at[0]], layout, pin.version, base)
        commit = commits_since(scratch, "scratch", base, head)[-1]
        return scratch.raw("show", f"-U{context}", "--no-color", "--format=%B", commit)
