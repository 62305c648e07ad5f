"""The one pick that a person resolves, in the work tree of the new release."""

from __future__ import annotations

from pathlib import Path

from upstream import Git, Refusal, uncommitted

_TODO = "resolve, `git add`, --continue"


def pick(git: Git, head: str, patch: str) -> None:
    """Leaves the work tree in the conflict of `patch` on `head`, as git's own cherry-pick does."""
    git.raw("reset", "--hard", "--quiet", head)
    git.raw("cherry-pick", patch, allow=(0, 1))


def check_resolved(git: Git, shown: str, head: str) -> None:
    """Refuses while something is left to do: files in conflict, edits not staged, commits that are
    not on `head`."""
    torn = git.text("diff", "--name-only", "--diff-filter=U").split("\n")
    if torn[0]:
        raise Refusal(shown, f"{len(torn)} files are in conflict ({torn[0]})", _TODO)
    loose = _not_staged(git)
    if loose:
        raise Refusal(shown, f"has edits that are not staged ({loose[0]})", _TODO)
    # Markers are looked for in what is staged; git's complaints of white space do not matter.
    said = git.text("diff", "--cached", "--check", "HEAD", allow=(0, 2)).split("\n")
    left = [line for line in said if line.endswith(": leftover conflict marker")]
    if left:
        raise Refusal(shown, left[0], _TODO)
    if uncommitted(git) and git.resolve("CHERRY_PICK_HEAD") is None:
        raise Refusal(shown, "has staged edits, and no pick is going on", "commit them, --continue")
    if git.text("merge-base", head, "HEAD", allow=(0, 1)) != git.text("rev-parse", head):
        todo = f"bring your commits onto {head}"
        raise Refusal(shown, "HEAD is not on top of what was replayed", todo)


def commit_resolved(git: Git, head: str, patch: str) -> list[str] | None:
    """Commits what is staged; returns the commits that a person made of the patch.

    [] if nothing of it was wanted; None if there is no trace of the pick, which must start anew.
    """
    picking = git.resolve("CHERRY_PICK_HEAD") is not None
    if picking and git.raw("diff", "--cached", "--name-only", "HEAD"):
        message = git.raw("log", "-1", "--format=%B", patch).rstrip() + b"\n"
        git.raw("commit", "--quiet", "--cleanup=verbatim", "-F", "-", stdin=message)
    elif picking:
        git.raw("cherry-pick", "--quit")
    commits = git.text("rev-list", "--reverse", f"{head}..HEAD").split()
    return commits if commits or picking else None


def _not_staged(git: Git) -> list[str]:
    out = git.raw("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
    entries = [entry.decode(errors="replace") for entry in out.split(b"\0") if entry]
    return [entry[3:] for entry in entries if entry[1] != " "]


def save_strays(git: Git, shown: str, head: str) -> list[str]:
    """Moves a work tree that a run left half moved to `head`; what is in it and in no commit of the
    upgrade is kept under `refs/saved/`. Returns what was kept, for a person."""
    drop_stale_locks(git)
    told = []
    at = git.text("rev-parse", "HEAD")
    if uncommitted(git) or git.text("merge-base", at, head, allow=(0, 1)) != at:
        git.raw("add", "--all")
        tree = git.text("write-tree")
        kept = git.text("commit-tree", tree, "-p", at, "-m", "found in the work tree")
        git.raw("update-ref", f"refs/saved/{kept[:12]}", kept)
        told.append(f"{shown}: what a run that was cut short left there is refs/saved/{kept[:12]}")
    git.raw("reset", "--hard", "--quiet", head)
    return told


def drop_stale_locks(git: Git) -> None:
    """A git that was killed leaves its locks. Those that an upgrade starts hold the upgrade's own
    lock as well, so none of them is alive now."""
    folder = Path(git.text("rev-parse", "--absolute-git-dir"))
    for lock in (*folder.glob("*.lock"), *folder.glob("refs/heads/*.lock")):
        lock.unlink()
