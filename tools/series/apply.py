"""From patch files to commits: at their exact place, or not at all.

The whole chain of blob ids is checked before anything is written; then the commits are made on an
index of their own, each result held against the patch's post-image ids. Only then does a work tree
move. No fuzz, and no half-applied series.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from upstream import PRISTINE, Git, GitError, Layout, Pin, Refusal, blobs, uncommitted

from . import store
from .export import patches_of
from .patch import NO_BLOB, FileChange, Patch, changes


def check_chain(
    patches: list[Patch], held: dict[str, str], layout: Layout, version: str
) -> dict[str, list[FileChange]]:
    """Refuses the series unless each file's pre-image is what its predecessors left.

    `held` maps each path of the base to its blob id. Returns each patch's changes, by patch name.
    """
    state, found = dict(held), {}
    for patch in patches:
        where = store.where(layout, version, patch.name)
        found[patch.name] = changes(where, patch.diff)
        for change in found[patch.name]:
            have = state.get(change.path, NO_BLOB)
            if have != change.pre:
                raise Refusal(
                    where,
                    f"{change.path} is {_blob(have)} in the tree, the patch was made on "
                    f"{_blob(change.pre)}",
                    "rebase it on a tree of the pinned release and export: no fuzz is taken",
                )
            state[change.path] = change.post
    return found


def _blob(blob: str) -> str:
    return "absent" if blob == NO_BLOB else f"blob {blob}"


def build_commits(git: Git, patches: list[Patch], layout: Layout, version: str, base: str) -> str:
    """Makes one commit a patch on top of `base` and returns the last; moves no reference."""
    held = {path: blob for path, (_, blob) in blobs(git, base).items()}
    found = check_chain(patches, held, layout, version)
    head = git.text("rev-parse", f"{base}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="series-") as folder:
        scratch = git.with_env(GIT_INDEX_FILE=str(Path(folder) / "index"))
        scratch.raw("read-tree", head)
        for patch in patches:
            head = _commit(scratch, patch, found[patch.name], head, layout, version)
    return head


def _commit(
    git: Git, patch: Patch, expected: list[FileChange], head: str, layout: Layout, version: str
) -> str:
    where = store.where(layout, version, patch.name)
    try:
        git.raw("apply", "--cached", "--unidiff-zero", "--whitespace=nowarn", "-", stdin=patch.diff)
    except GitError as error:
        raise Refusal(
            where, f"does not apply ({error.said})", "export it again from the tree"
        ) from error
    tree = git.text("write-tree")
    now = blobs(git, tree)
    for change in expected:
        have = now.get(change.path, ("", NO_BLOB))[1]
        if have != change.post:
            raise Refusal(
                where,
                f"gives {change.path} {_blob(have)}, expected {_blob(change.post)}",
                "export it again from the tree: its lines were edited or do not sit at their place",
            )
    return git.text("commit-tree", tree, "-p", head, stdin=patch.message.encode())


def apply(layout: Layout, pin: Pin, git: Git, force: bool = False) -> int:
    """Brings the tree to the series on disk; returns the number of patches.

    Refuses a tree with uncommitted edits or with commits that are not in the series; `force` throws
    both away.
    """
    patches = store.read_series(layout, pin.version)
    shown = layout.shown(layout.tree)
    if not force:
        dirty = uncommitted(git)
        if dirty:
            raise Refusal(
                shown,
                f"has {len(dirty)} uncommitted edits ({dirty[0]})",
                "commit them, or pass --force to lose them",
            )
        extra = unexported(git, shown, store.read_files(layout, pin.version))
        if extra:
            raise Refusal(
                shown,
                f"holds commits that are not in the series ({extra[0]})",
                "export them, or pass --force to lose them",
            )
    head = build_commits(git, patches, layout, pin.version, PRISTINE)
    git.raw("reset", "--hard", "--quiet", head)
    if force:
        git.raw("clean", "-d", "--force", "--quiet")
    return len(patches)


def unexported(git: Git, shown: str, files: dict[str, bytes]) -> list[str]:
    """Names of the tree's patches that the series on disk does not hold as they are."""
    if git.resolve("HEAD") == git.resolve(PRISTINE):
        return []
    patches = patches_of(git, shown)
    return [patch.name for patch in patches if files.get(patch.name) != patch.to_bytes()]
