"""rebase_patches.py killed at any step: nothing is lost, and it goes on, or is undone."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_index import FakeIndex
from fake_upstream import World
from upgrades import CONFLICT, CORE, RESOLVED, TORN, outside, resolve, to_torn, upgrade
from upstream import Git, find_layout, load_pin

# What changes a repository or a work tree; what git only reads or adds to its objects does not.
WRITES = frozenset(["add", "cherry-pick", "commit", "config", "init", "reset", "tag", "update-ref"])


START, GO_ON = ("--to", TORN), ("--continue",)


class Steps:
    """Counts the steps of a process and kills it before the given one, a number or a git command.
    A step is a git command that moves something, or a change of a file that is no scratch file."""

    def __init__(self, root: Path, fatal: int | str | None) -> None:
        self.root, self.fatal, self.count = root, fatal, 0

    def step(self, *args: Any) -> None:
        self.count += 1
        if self.fatal is not None and self.fatal in (self.count, *map(str, args[1:2])):
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, owner: Any, name: str, counts: Callable[..., bool]) -> None:
        real = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if counts(*args):
                self.step(*args)
            return real(*args, **kwargs)

        setattr(owner, name, watched)

    def watch_all(self) -> None:
        def ours(path: Any, *_: Any) -> bool:
            parts = Path(path).parts
            inside = Path(path).is_relative_to(self.root)
            return inside and not any(part.startswith((".git", ".tree-")) for part in parts)

        self.watch(Git, "raw", lambda git, *args: ours(git.work) and args[0] in WRITES)
        for name in ("replace", "rename", "unlink", "write_bytes", "mkdir"):
            self.watch(Path, name, ours)
        self.watch(shutil, "rmtree", ours)


def run_killed(world: World, fatal: int | str | None, *args: str) -> int:
    """Runs the tool in a process of its own, killed before step `fatal`. Returns the number of its
    steps if it got to its end, or 0."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            steps = Steps(world.root, fatal)
            steps.watch_all()
            world.call("rebase_patches", "fake", *args)
            os.write(writing, str(steps.count).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return int(text or 0)


@pytest.fixture
def each_kill(releases: World, tmp_path: Path) -> Callable[..., Iterator[World]]:
    """Yields, for each step of a command, or every `every`-th, a copy of the root in which it was
    killed before it."""

    def worlds(*args: str, every: int = 1) -> Iterator[World]:
        whole = releases.copy_to(tmp_path / "whole")
        count = run_killed(whole, None, *args)
        assert count > 5
        for fatal in range(1, count + 1, every):
            world = releases.copy_to(tmp_path / f"killed-{fatal}")
            world.index = releases.index
            assert run_killed(world, fatal, *args) == 0
            yield world

    return worlds


@pytest.fixture(scope="module")
def expected(templates: dict[str, World], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The series that a way to TORN without kills gives."""
    found: dict[str, dict[str, bytes]] = {}

    def get(releases: World) -> dict[str, bytes]:
        if not found:
            found["series"] = to_torn(releases.copy_to(tmp_path_factory.mktemp("whole") / "root"))
        return found["series"]

    return get


def has_begun(world: World) -> bool:
    return (world.engine_home / TORN / "rebase.json").is_file()


def test_a_start_that_is_killed_goes_on(releases: World, each_kill: Any, expected: Any) -> None:
    series, begun = expected(releases), 0
    for world in each_kill(*START):
        begun += has_begun(world)
        again = world.call("rebase_patches", "fake", *(GO_ON if has_begun(world) else START))
        assert again.code == CONFLICT or "1 files are in conflict" in again.err
        resolve(world)
        upgrade(world, "--continue")
        assert world.at(TORN).patch_files() == series
        assert world.git.text("status", "--porcelain") == ""
        assert not world.at(TORN).git.text("for-each-ref", "refs/saved/")  # nothing was taken away
    assert begun > 5


def test_a_start_that_is_killed_is_undone(releases: World, each_kill: Any) -> None:
    before = outside(releases)
    for world in each_kill(*START, every=2):
        if has_begun(world):
            upgrade(world, "--abort")
            assert not (world.engine_home / TORN).exists()
        left = {name: data for name, data in outside(world).items() if ".new" not in name}
        assert left == before
        assert not (world.root / "patches/fake" / TORN).exists()


def test_a_continue_that_is_killed_goes_on(releases: World, each_kill: Any, expected: Any) -> None:
    series = expected(releases)
    upgrade(releases, "--to", TORN, code=CONFLICT)
    resolve(releases)
    for world in each_kill("--continue"):
        assert has_begun(world)
        upgrade(world, "--continue")
        assert world.at(TORN).patch_files() == series
        assert (world.at(TORN).tree / CORE).read_text() == RESOLVED


def test_an_abort_that_is_killed_is_aborted(releases: World, each_kill: Any) -> None:
    before = outside(releases)
    upgrade(releases, "--to", TORN, code=CONFLICT)
    for world in each_kill("--abort"):
        if has_begun(world):
            upgrade(world, "--abort")
        assert outside(world) == before
    upgrade(world, *START, code=CONFLICT)  # nothing is in its way


def test_an_adoption_that_is_killed_is_finished(releases: World, each_kill: Any) -> None:
    to_torn(releases)
    old, new = releases.snapshot(), releases.at(TORN).snapshot()
    series = {v: releases.at(v).patch_files() for v in ("1.0", TORN)}
    for world in each_kill("--adopt", "--to", TORN):
        for version in series:  # both are pinned at any time
            pin = load_pin(find_layout(world.root, f"fake=={version}"))
            assert pin.version == version
        if has_begun(world) or load_pin(find_layout(world.root, "fake")).version != TORN:
            upgrade(world, "--adopt", "--to", TORN)
        for wanted in ("fake", "fake==1.0"):
            world.run("patches", "budget", wanted)
        assert (world.snapshot(), world.at("1.0").snapshot()) == (new, old)
        assert {v: world.at(v).patch_files() for v in ("1.0", TORN)} == series


def test_what_a_killed_git_left_is_kept_and_cleared(releases: World, expected: Any) -> None:
    """Killed while git wrote the work tree: files half written, its locks still there."""
    series = expected(releases)
    assert run_killed(releases, "cherry-pick", *START) == 0
    new = releases.at(TORN)
    new.write(CORE, "half a fi")
    new.write("fakeengine/notes.py", "mine = 1\n")
    (new.tree / ".git" / "index.lock").touch()
    (new.tree / ".git" / "refs" / "heads" / "series.lock").touch()
    out = upgrade(releases, "--continue", code=CONFLICT)
    kept = out.split("left there is ")[1].split("\n")[0]
    assert new.git.text("show", f"{kept}:{CORE}") == "half a fi"
    assert new.git.text("show", f"{kept}:fakeengine/notes.py") == "mine = 1"
    resolve(releases)
    upgrade(releases, "--continue")
    assert new.patch_files() == series


def test_a_lock_that_a_killed_commit_left_is_cleared(releases: World, expected: Any) -> None:
    series = expected(releases)
    upgrade(releases, *START, code=CONFLICT)
    resolve(releases)
    assert run_killed(releases, "commit", *GO_ON) == 0
    new = releases.at(TORN)
    (new.tree / ".git" / "index.lock").touch()
    upgrade(releases, "--continue")
    assert new.patch_files() == series


def test_a_lock_that_is_not_ours_is_left(releases: World, index: FakeIndex) -> None:
    upgrade(releases, "--to", TORN, code=CONFLICT)
    resolve(releases)
    lock = releases.at(TORN).tree / ".git" / "index.lock"
    lock.touch()
    assert "index.lock" in releases.refused("rebase_patches", "fake", "--continue")
    assert lock.exists()


def test_git_holds_the_lock_of_the_upgrade(releases: World) -> None:
    """So that a git process that outlives us is waited for."""
    hook = releases.root / "hook"
    hook.write_text("#!/bin/sh\nreadlink /proc/self/fd/* >&2\nexit 1\n")
    hook.chmod(0o755)
    with (releases.engine_home / ".rebase.lock").open("a") as lock:
        git = Git(releases.tree, {"GIT_EXTERNAL_DIFF": str(hook)}, (lock.fileno(),))
        releases.write(CORE, "x = 1\n")
        with pytest.raises(Exception, match=r"\.rebase\.lock"):
            git.raw("diff", "--ext-diff")
