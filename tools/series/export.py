"""From commits in the tree to patch files."""

from __future__ import annotations

from upstream import PRISTINE, Git, Layout, Pin, Refusal, is_compiled

from . import store
from .patch import Patch, bare_hunks, changes, check_message, file_name, normalise_message

# Every choice that a configuration could make is made here.
DIFF_OPTIONS = (
    "--patch",
    "--unified=0",
    "--inter-hunk-context=0",
    "--full-index",
    "--no-renames",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--diff-algorithm=myers",
    "--indent-heuristic",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--ignore-submodules=none",
    "--submodule=short",
    "--no-relative",
    "-O/dev/null",
    "--ws-error-highlight=none",
)


def commits_since(git: Git, shown: str, base: str, head: str) -> list[str]:
    """The commits from `base` (not counted) to `head`, oldest first; refuses any other shape."""
    if git.text("merge-base", base, head, allow=(0, 1)) != git.resolve(base):
        raise Refusal(shown, f"HEAD does not descend from {PRISTINE}", "rebase the work onto it")
    merges = git.text("rev-list", "--merges", f"{base}..{head}")
    if merges:
        raise Refusal(shown, f"commit {merges[:12]} is a merge", "rebase: a series is a line")
    return git.text("rev-list", "--reverse", f"{base}..{head}").split()


def patch_of(git: Git, commit: str, number: int) -> Patch:
    """One commit as a patch. Its diff is checked to be one that `apply` takes."""
    message = normalise_message(git.raw("log", "-1", "--format=%B", commit).decode("utf-8"))
    name = file_name(number, message.split("\n", 1)[0])
    raw = git.raw("diff-tree", "-r", "--no-commit-id", *DIFF_OPTIONS, f"{commit}^", commit)
    where = f"commit {commit[:12]} ({name})"
    check_message(where, message)
    patch = Patch(name, message, bare_hunks(raw))
    for change in changes(where, patch.diff):
        if is_compiled(change.path):
            raise Refusal(where, f"touches {change.path}", "leave compiled files alone")
    return patch


def patches_of(git: Git, shown: str, head: str = "HEAD", base: str = PRISTINE) -> list[Patch]:
    """The commits since `base` as patches, oldest first."""
    commits = commits_since(git, shown, base, head)
    return [patch_of(git, commit, number) for number, commit in enumerate(commits, 1)]


def export(
    layout: Layout, pin: Pin, git: Git, force: bool = False
) -> tuple[list[Patch], list[str], list[str]]:
    """Writes the tree's commits as the series on disk.

    Returns the patches, the names written and the names removed. A tree without patches does not
    empty a series that has some, unless `force` says so.
    """
    shown = layout.shown(layout.tree)
    patches = patches_of(git, shown)
    have = store.read_names(layout, pin.version)
    if have and not patches and not force:
        raise Refusal(
            shown,
            f"holds no patches, the series has {len(have)}",
            "run tools/patches.py apply first, or pass --force to empty the series",
        )
    written, stale = store.write(layout, pin.version, patches)
    return patches, written, stale
