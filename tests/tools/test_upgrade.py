"""rebase_patches.py: a series on another release, its conflicts told, resolved and exported."""

from __future__ import annotations

import shutil

import pytest
import yaml
from fake_upstream import World
from upgrades import (
    CONFLICT,
    CORE,
    FIRST,
    LONGER,
    MOVED,
    OTHER,
    RESOLVED,
    SECOND,
    TORN,
    outside,
    resolve,
    to_torn,
    upgrade,
)


def test_a_clean_way_makes_pin_tree_and_series(releases: World) -> None:
    before, tree = outside(releases), releases.snapshot()
    out = upgrade(releases, "--to", MOVED)
    new = releases.at(MOVED)
    assert f"{FIRST}: moved (2 hunks)\n    {CORE}: moved by +4 lines\n" in out
    assert f"{SECOND}: clean (1 hunk)\n" in out
    assert f"patches/fake/{MOVED}: 2 patches, 0 resolved by hand, 0 needless\n" in out
    assert yaml.safe_load((new.home / "upstream.yaml").read_text()) == releases.release_pin(MOVED)
    assert "every check holds" in releases.run("patches", "check", f"fake=={MOVED}")
    assert "file by file" in releases.run("vendor", f"fake=={MOVED}", "--check")
    text = (new.tree / CORE).read_text()
    assert text.startswith(LONGER[:60]) and "start(limit)" in text
    # What was there is as it was.
    after = outside(releases)
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[2] for name in after.keys() - before.keys()} == {MOVED}
    assert releases.snapshot() == tree
    assert not (new.home / "rebase.json").exists()


def test_there_and_back_again_gives_the_series_byte_for_byte(releases: World) -> None:
    files = releases.patch_files()
    upgrade(releases, "--to", MOVED)
    moved = releases.at(MOVED).patch_files()
    assert moved.keys() == files.keys() and moved != files
    upgrade(releases, "--adopt", "--to", MOVED)
    shutil.rmtree(releases.engine_home / "1.0")
    shutil.rmtree(releases.series)
    upgrade(releases, "--to", "1.0")
    assert releases.at("1.0").patch_files() == files


def test_the_tree_is_a_commit_a_patch_on_the_real_release(releases: World) -> None:
    upgrade(releases, "--to", MOVED)
    new = releases.at(MOVED)
    assert new.git.text("rev-list", "--count", "pristine..HEAD") == "2"
    assert new.git.text("show", f"pristine:{CORE}") == LONGER.strip()
    assert new.git.text("log", "-1", "--format=%B", "HEAD~1") == releases.git.text(
        "log", "-1", "--format=%B", "HEAD~1"
    )
    # The release of the other end is there, too: the same commit as in its own tree.
    base = releases.git.text("rev-parse", "pristine")
    assert new.git.text("cat-file", "-t", base) == "commit"


def test_a_conflict_is_told_resolved_continued_and_exported(releases: World) -> None:
    out = upgrade(releases, "--to", TORN, code=CONFLICT)
    assert f"{FIRST}: conflict (1 of 2 hunks, in 1 file)\n" in out
    assert (
        f"    {CORE} lines 15 to 19\n      upstream {TORN}:\n      |     chosen = deque()\n"
        "      the patch:\n      |     chosen = start(limit)\n"
    ) in out
    assert SECOND not in out
    new = releases.at(TORN)
    assert new.git.text("status", "--porcelain") == f"UU {CORE}"
    assert "<<<<<<< " in (new.tree / CORE).read_text()
    assert not new.series.exists()
    resolve(releases)
    out = upgrade(releases, "--continue")
    assert f"{FIRST}: by hand\n" in out
    assert f"patches/fake/{TORN}: 2 patches, 1 resolved by hand, 0 needless\n" in out
    assert "every check holds" in releases.run("patches", "check", f"fake=={TORN}")
    assert (new.tree / CORE).read_text() == RESOLVED
    assert b"+    chosen = deque(start(limit))\n" in new.patch_files()[FIRST]
    assert new.patch_files()[SECOND] == releases.patch_files()[SECOND]


def test_a_person_may_commit_the_resolution_as_well(releases: World) -> None:
    expected = to_torn(releases.copy_to(releases.root.parent / "other"))
    upgrade(releases, "--to", TORN, code=CONFLICT)
    resolve(releases)
    releases.at(TORN).git.raw("cherry-pick", "--continue")
    upgrade(releases, "--continue")
    assert releases.at(TORN).patch_files() == expected


@pytest.mark.parametrize(
    ("left", "message"),
    [
        ("conflict", "1 files are in conflict (fakeengine/core.py); resolve, `git add`"),
        ("unstaged", "has edits that are not staged (fakeengine/core.py)"),
        ("new file", "has edits that are not staged (fakeengine/new.py)"),
        ("markers", "fakeengine/core.py:11: leftover conflict marker"),
        ("elsewhere", "HEAD is not on top of what was replayed"),
        ("staged", "has staged edits, and no pick is going on"),
    ],
)
def test_what_is_not_resolved_is_not_taken(releases: World, left: str, message: str) -> None:
    upgrade(releases, "--to", TORN, code=CONFLICT)
    new = releases.at(TORN)
    if left == "unstaged":
        resolve(releases)
        new.write(CORE, RESOLVED + "\n")
    elif left == "new file":
        resolve(releases)
        new.write("fakeengine/new.py", "x = 1\n")
    elif left == "markers":
        resolve(releases, "\n" * 10 + "<<<<<<< HEAD\n")
    elif left == "elsewhere":
        new.git.raw("cherry-pick", "--abort")
        new.git.raw("checkout", "--quiet", "--orphan", "other")
        new.git.raw("commit", "--quiet", "-m", "Another history")
    elif left == "staged":
        new.git.raw("cherry-pick", "--abort")
        resolve(releases)
    head = new.git.resolve("HEAD")
    assert message in releases.refused("rebase_patches", "fake", "--continue")
    assert new.git.resolve("HEAD") == head
    assert not new.series.exists()


def test_a_pick_that_was_thrown_away_is_picked_again(releases: World) -> None:
    upgrade(releases, "--to", TORN, code=CONFLICT)
    releases.at(TORN).git.raw("cherry-pick", "--abort")
    assert f"{FIRST}: conflict" in upgrade(releases, "--continue", code=CONFLICT)
    resolve(releases)
    upgrade(releases, "--continue")


def test_a_patch_that_is_resolved_to_nothing_is_dropped(releases: World) -> None:
    upgrade(releases, "--to", TORN, code=CONFLICT)
    resolve(releases, OTHER)
    out = upgrade(releases, "--continue")
    assert f"{FIRST}: needless\n" in out and "1 patches, 0 resolved by hand, 1 needless" in out
    assert list(releases.at(TORN).patch_files()) == [
        "0001-add-the-storage-interface.patch",
        "series",
    ]


def test_what_upstream_has_already_is_needless(releases: World) -> None:
    theirs = (releases.tree / CORE).read_bytes()
    releases.add_release("2.1", {CORE: theirs})
    releases.offer("2.1")
    out = upgrade(releases, "--to", "2.1")
    assert f"{FIRST}: needless, upstream has all of it\n" in out
    assert len(releases.at("2.1").patch_files()) == 2


def test_a_file_that_upstream_renamed_is_followed(releases: World) -> None:
    releases.add_release("2.3", {CORE: None, "fakeengine/heart.py": LONGER.encode()})
    releases.offer("2.3")
    out = upgrade(releases, "--to", "2.3")
    assert f"    {CORE} (now fakeengine/heart.py): moved by +4 lines\n" in out
    assert b"+++ b/fakeengine/heart.py\n" in releases.at("2.3").patch_files()[FIRST]


def test_a_message_that_does_not_pass_can_be_amended(releases: World) -> None:
    upgrade(releases, "--to", TORN, code=CONFLICT)
    resolve(releases)
    git = releases.at(TORN).git
    git.raw("commit", "--quiet", "-m", "No reason given")
    assert "has 0 'Goes-away-when:' lines" in releases.refused(
        "rebase_patches", "fake", "--continue"
    )
    assert "no reason" in git.text("log", "-1", "--format=%s", "HEAD~1").lower()
    second = git.text("rev-parse", "HEAD")
    git.raw("reset", "--hard", "--quiet", "HEAD~1")
    git.raw("commit", "--quiet", "--amend", "-m", "A reason\n\nWhy.\n\nGoes-away-when: never")
    git.raw("cherry-pick", second)
    upgrade(releases, "--continue")
    assert next(iter(releases.at(TORN).patch_files())) == "0001-a-reason.patch"
