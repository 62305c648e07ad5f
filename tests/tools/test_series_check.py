"""patches.py check: green on a good series, and each check red for its own reason."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest
from fake_upstream import CUDA, ENGINE, World
from series.duplicates import Text, find_copies, telling_lines

FIRST = "0001-ask-the-storage-where-to-start.patch"
SECOND = "0002-add-the-storage-interface.patch"
MESSAGE = "{}\n\nBecause.\n\nGoes-away-when: never\n"


def rewrite(world: World, name: str, old: str, new: str) -> None:
    """Edits a patch file by hand."""
    path = world.series / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def commit(world: World, subject: str) -> None:
    """Commits what was edited in the tree, and exports."""
    world.commit(MESSAGE.format(subject))
    world.run("patches", "export", "fake")


def test_good_series_is_green_and_prints_its_budget(patched: World) -> None:
    head = patched.git.resolve("HEAD")
    out = patched.run("patches", "check", "fake")
    assert "every check holds" in out
    rows = [line.split() for line in out.splitlines()]
    assert [FIRST, "3", "1", "0"] in rows
    assert [SECOND, "0", "0", "5"] in rows
    assert ["sum", "3", "1", "5"] in rows
    assert ["of", "at", "most", "20", "5", "-"] in rows
    assert patched.git.resolve("HEAD") == head


def test_check_does_not_care_for_the_state_of_the_tree(patched: World) -> None:
    patched.git.raw("reset", "--hard", "--quiet", "pristine")
    patched.write("fakeengine/core.py", "half done\n")
    patched.run("patches", "check", "fake")
    assert (patched.tree / "fakeengine/core.py").read_text() == "half done\n"


def test_empty_series_is_green(vendored: World) -> None:
    vendored.run("patches", "check", "fake")


BY_HAND: list[tuple[str, str, str, str, str]] = [
    ("no reason", FIRST, "The engine must not know who holds it.\n\n", "", "has no reason"),
    ("no end", FIRST, "Goes-away-when: upstream has such a hook\n", "", "has 0 'Goes-away-when:'"),
    ("empty end", FIRST, "Goes-away-when: upstream has such a hook", "Goes-away-when:", "nothing"),
    ("no header", FIRST, "From: kvcached-forks\n", "", "its first lines are"),
    ("no mark", FIRST, "\n---\n", "\n", "has no '---' line"),
    ("context", FIRST, "@@ -9 +11 @@\n", "@@ -9,2 +11,2 @@\n x = 1\n", "a context line"),
    ("function", FIRST, "@@ -9 +11 @@", "@@ -9 +11 @@ def schedule():", "function text"),
    ("short id", FIRST, " 100644", "", "is not what export writes"),
    ("line count", FIRST, "+11 @@\n", "+11,2 @@\n", "line counts do not add up"),
    ("edited line", FIRST, "start(limit)", "begin(limit)", "gives fakeengine/core.py blob"),
    ("moved hunk", FIRST, "@@ -6,0 +7,2 @@", "@@ -4,0 +5,2 @@", "gives fakeengine/core.py blob"),
    ("missed lines", FIRST, "-    chosen = []", "-    chosen = {}", "does not apply"),
    ("stale text", SECOND, "to call.\n", "to call. \n", "is not what export writes"),
    ("stale name", SECOND, "Subject: Add the", "Subject: Bring the", "is in no exported"),
    ("order", "series", FIRST, "", "export would write it, it is not there"),
    ("absent file", "series", SECOND, "0003-more.patch", "named by `series` but not there"),
    ("twice", "series", SECOND, FIRST, "names a patch twice"),
    ("outside", "series", SECOND, "../../x.patch", "is no patch name"),
]


@pytest.mark.parametrize(
    ("name", "old", "new", "complaint"), [c[1:] for c in BY_HAND], ids=[c[0] for c in BY_HAND]
)
def test_files_edited_by_hand_are_found(
    patched: World, name: str, old: str, new: str, complaint: str
) -> None:
    rewrite(patched, name, old, new)
    line = patched.refused("patches", "check", "fake")
    assert complaint in line
    assert line.startswith("patches/fake/1.0/")


def test_patch_made_on_another_base_is_found(patched: World) -> None:
    pre = patched.git.text("rev-parse", "pristine:fakeengine/core.py")
    rewrite(patched, FIRST, pre, "2" * 40)
    line = patched.refused("patches", "check", "fake")
    assert f"is blob {pre} in the tree, the patch was made on blob {'2' * 40}" in line


def test_left_over_patch_file_is_found(patched: World) -> None:
    (patched.series / "0009-old.patch").write_bytes((patched.series / FIRST).read_bytes())
    line = patched.refused("patches", "check", "fake")
    assert line.startswith("patches/fake/1.0/0009-old.patch: is in no exported series (stale)")


def test_code_that_does_not_compile_is_found(patched: World) -> None:
    patched.write("fakeengine/kv/more.py", "def broken(:\n")
    commit(patched, "Break it")
    line = patched.refused("patches", "check", "fake")
    assert line.startswith("patches/fake/1.0/0003-break-it.patch: fakeengine/kv/more.py does not")


def test_a_later_repair_does_not_hide_a_broken_patch(patched: World) -> None:
    patched.write("fakeengine/kv/more.py", "def broken(:\n")
    commit(patched, "Break it")
    patched.write("fakeengine/kv/more.py", "def whole():\n    pass\n")
    commit(patched, "Repair it")
    assert "0003-break-it.patch" in patched.refused("patches", "check", "fake")


COPIED = textwrap.dedent("\n".join(ENGINE.split("\n")[9:16]))


def copy_into_new_file(world: World) -> str:
    world.write("fakeengine/kv/copy.py", "def f(requests, limit):\n" + COPIED)
    commit(world, "Copy it")
    return "patches/fake/1.0/0003-copy-it.patch (fakeengine/kv/copy.py)"


def copy_into_the_core(world: World) -> str:
    path = world.root / "kvcached_core" / "copy.py"
    path.parent.mkdir()
    # Other indentation, blank lines and comments of punctuation between do not hide it.
    path.write_text(COPIED.replace("\n", "\n\n    # ---\n"))
    return "kvcached_core/copy.py"


def move_with_other_indentation(world: World) -> str:
    text = (world.tree / "fakeengine/core.py").read_text()
    body = "\n".join(text.split("\n")[12:17])
    world.edit("fakeengine/core.py", body, textwrap.indent(body + "\n    x = limit", "    "))
    world.edit("fakeengine/core.py", "    x = limit", "    return json.dumps(chosen)")
    commit(world, "Indent it")
    return "patches/fake/1.0/0003-indent-it.patch (fakeengine/core.py)"


@pytest.mark.parametrize(
    "copy", [copy_into_new_file, copy_into_the_core, move_with_other_indentation]
)
def test_copied_lines_are_found(patched: World, copy: Callable[[World], str]) -> None:
    patched.pin["budget"] = {"added": 99, "removed": 99}
    patched.save_pin()
    where = copy(patched)
    result = patched.call("patches", "check", "fake")
    assert result.code == 1
    (line,) = [line for line in result.err.splitlines() if "stand in upstream's" in line]
    assert line.startswith(f"{where}: 6 lines from ")
    assert "stand in upstream's fakeengine/core.py" in line


def test_five_copied_lines_are_no_copy() -> None:
    theirs = [Text("theirs", tuple(f"a{n} = {n}" for n in range(20)))]
    ours = [Text("ours", ("x = 1", *(f"  a{n} = {n}" for n in range(5, 10)), "y = 1"))]
    assert find_copies(ours, theirs) == []
    ours = [Text("ours", ("x = 1", *(f"  a{n} = {n}" for n in range(5, 11)), "y = 1"))]
    (found,) = find_copies(ours, theirs)
    assert (found.ours, found.line, found.theirs) == ("ours", "a5 = 5", "theirs")


def test_imports_and_punctuation_say_nothing() -> None:
    text = """
        import os
        from a import (
            b,
            c,
        )
        from d import e
        #include <vector>
        x = [
        ]
        )
        done()
    """
    assert telling_lines(text.splitlines()) == ["x = [", "done()"]


def test_added_lines_over_the_budget_are_found(patched: World) -> None:
    patched.edit("fakeengine/core.py", "class Cache:", "a = 1\n" * 18 + "\n\nclass Cache:")
    commit(patched, "Grow it")
    line = patched.refused("patches", "check", "fake")
    assert "adds 23 lines in upstream's files, at most 20 are allowed" in line


def test_removed_lines_over_the_budget_are_found(patched: World) -> None:
    patched.write("fakeengine/cli.py", "")
    commit(patched, "Shrink it")
    line = patched.refused("patches", "check", "fake")
    assert "removes 10 lines in upstream's files, at most 5 are allowed" in line


def test_new_files_are_not_counted_even_when_changed_later(patched: World) -> None:
    patched.write("fakeengine/kv/long.py", "a = 1\n" * 50)
    commit(patched, "Add much")
    patched.write("fakeengine/kv/long.py", "b = 1\n" * 40)
    commit(patched, "Change much")
    rows = [line.split() for line in patched.run("patches", "budget", "fake").splitlines()]
    assert ["0003-add-much.patch", "0", "0", "50"] in rows
    assert ["0004-change-much.patch", "0", "0", "-10"] in rows
    patched.run("patches", "check", "fake")


def test_variants_whose_wheel_is_here_are_looked_at(patched: World) -> None:
    said = patched.run("patches", "check", "fake")
    assert "variant cpu: looked at" in said and "variant cuda: looked at" in said
    (patched.home / "wheels" / CUDA).unlink()
    said = patched.run("patches", "check", "fake")
    assert "variant cuda: not looked at: run tools/vendor.py fake --variant cuda" in said
    assert not (patched.home / "wheels" / CUDA).exists()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("fakeengine/core.py", ENGINE.encode() + b"# gpu\n", "fakeengine/core.py is "),
        ("fakeengine/core.py", None, "fakeengine/core.py is absent"),
        ("fakeengine/kv/__init__.py", b"", "already has fakeengine/kv/__init__.py"),
    ],
)
def test_variant_with_another_base_is_found(
    patched: World, name: str, content: bytes | None, complaint: str
) -> None:
    patched.replace_in_variant("cuda", name, content)
    assert complaint in patched.refused("patches", "check", "fake")


def test_one_failure_does_not_hide_another(patched: World) -> None:
    patched.pin["budget"] = {"added": 0, "removed": 0}
    patched.save_pin()
    rewrite(patched, SECOND, "The hook needs something to call.\n\n", "")
    err = patched.call("patches", "check", "fake").err
    assert "has no reason" in err
    assert "adds 3 lines" in err


def test_static_test_runs_on_the_tree(patched: World) -> None:
    good = "python3 -c 'import fakeengine.kv as k; assert k.start(1) == []'"
    patched.run("patches", "check", "fake", "--static-test", good)
    line = patched.refused("patches", "check", "fake", "--static-test", "exit 3")
    assert "the static test 'exit 3' exited with 3, expected 0" in line
    patched.git.raw("reset", "--hard", "--quiet", "HEAD^")
    line = patched.refused("patches", "check", "fake", "--static-test", good)
    assert "is not the series" in line


def test_show_prints_a_patch_with_its_surroundings(patched: World) -> None:
    patched.git.raw("reset", "--hard", "--quiet", "pristine")
    for wanted in ("1", "0001", FIRST):
        out = patched.run("patches", "show", "fake", wanted)
        assert "+    chosen = start(limit)" in out
        assert "\n     for request in sorted(requests):" in out
    assert f"has: {FIRST}, {SECOND}" in patched.refused("patches", "show", "fake", "9")
