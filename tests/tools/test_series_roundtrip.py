"""patches.py apply and export: each makes the other's input again, byte for byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from fake_upstream import FILES, World, make_world
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from series import file_name

MESSAGE = "Change {}\n\nBecause.\n\nGoes-away-when: never\n"
HOSTILE = """
[diff]
    noprefix = true
    context = 9
    algorithm = patience
    renames = copies
    external = /bin/false
    indentHeuristic = false
    interHunkContext = 7
    orderFile = /nonexistent
[color]
    ui = always
[core]
    autocrlf = true
    abbrev = 5
[commit]
    gpgSign = true
[apply]
    whitespace = error
[user]
    name = Somebody Else
[format]
    pretty = oneline
"""


def test_patch_file_reads_as_specified(patched: World) -> None:
    files = patched.patch_files()
    assert list(files) == [
        "0001-ask-the-storage-where-to-start.patch",
        "0002-add-the-storage-interface.patch",
        "series",
    ]
    assert files["series"].decode().split() == list(files)[:2]
    before = patched.git.text("rev-parse", "pristine:fakeengine/core.py")
    after = patched.git.text("rev-parse", "HEAD:fakeengine/core.py")
    assert files["0001-ask-the-storage-where-to-start.patch"].decode() == (
        "From: kvcached-forks\n"
        "Subject: Ask the storage where to start\n"
        "\n"
        "The engine must not know who holds it.\n"
        "\n"
        "Goes-away-when: upstream has such a hook\n"
        "---\n"
        "diff --git a/fakeengine/core.py b/fakeengine/core.py\n"
        f"index {before}..{after} 100644\n"
        "--- a/fakeengine/core.py\n"
        "+++ b/fakeengine/core.py\n"
        "@@ -6,0 +7,2 @@\n"
        "+from .kv import start\n"
        "+\n"
        "@@ -9 +11 @@\n"
        "-    chosen = []\n"
        "+    chosen = start(limit)\n"
    )


def test_apply_and_export_round_trip(patched: World, tmp_path: Path) -> None:
    files, content = patched.patch_files(), patched.snapshot()
    other = patched.copy_to(tmp_path / "other", tree=False)
    other.run("vendor", "fake")
    assert "2 patches applied" in other.run("patches", "apply", "fake")
    assert other.snapshot() == content
    assert (other.tree / "fakeengine/kv/__init__.py").is_file()
    assert (other.tree / "fakeengine/native.so").is_file()
    out = other.run("patches", "export", "fake")
    assert "written" not in out
    assert "removed" not in out
    assert other.patch_files() == files


def test_commits_are_the_same_everywhere(patched: World, tmp_path: Path) -> None:
    heads = []
    for name in ("one", "two"):
        other = patched.copy_to(tmp_path / name, tree=False)
        other.run("vendor", "fake")
        other.run("patches", "apply", "fake")
        heads.append(other.git.resolve("HEAD"))
    assert heads[0] == heads[1]


def test_configuration_changes_nothing(
    patched: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = patched.patch_files()
    (tmp_path / ".gitconfig").write_text(HOSTILE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/false")
    monkeypatch.setenv("GIT_DIFF_OPTS", "--unified=5")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody Else")
    monkeypatch.chdir(tmp_path)
    patched.run("patches", "export", "fake")
    assert patched.patch_files() == files
    # The same from the tree's own configuration, which a user may well have.
    with (patched.tree / ".git" / "config").open("a") as stream:
        stream.write(HOSTILE)
    patched.run("patches", "export", "fake")
    assert patched.patch_files() == files
    other = patched.copy_to(tmp_path / "other", tree=False)
    other.run("vendor", "fake")
    other.run("patches", "apply", "fake")
    head = other.git.text("log", "-1", "--format=%an %cn", "HEAD")
    assert head == "kvcached-forks kvcached-forks"


def test_apply_twice_changes_nothing(patched: World) -> None:
    patched.run("patches", "apply", "fake")
    content = patched.snapshot()
    patched.run("patches", "apply", "fake")
    assert patched.snapshot() == content


def test_apply_keeps_uncommitted_edits(patched: World) -> None:
    patched.write("fakeengine/extra.py", "x = 1\n")
    assert "1 uncommitted edits (fakeengine/extra.py)" in patched.refused(
        "patches", "apply", "fake"
    )
    assert (patched.tree / "fakeengine/extra.py").is_file()
    patched.run("patches", "apply", "fake", "--force")
    assert not (patched.tree / "fakeengine/extra.py").exists()


def test_apply_keeps_unexported_commits(patched: World) -> None:
    patched.write("fakeengine/extra.py", "x = 1\n")
    patched.commit(MESSAGE.format("three"))
    head = patched.git.resolve("HEAD")
    line = patched.refused("patches", "apply", "fake")
    assert "commits that are not in the series (0003-change-three.patch)" in line
    assert patched.git.resolve("HEAD") == head


def test_apply_takes_no_fuzz_and_touches_nothing(patched: World) -> None:
    """The second patch meets another base than it was made on: the first must not go in either."""
    patched.edit("fakeengine/kv/__init__.py", "return []", "return [limit]")
    patched.commit(MESSAGE.format("three"))
    patched.run("patches", "export", "fake")
    name = "0003-change-three.patch"
    pre = patched.git.text("rev-parse", "HEAD^:fakeengine/kv/__init__.py")
    path = patched.series / name
    path.write_bytes(path.read_bytes().replace(pre.encode(), b"1" * 40))
    patched.git.raw("reset", "--hard", "--quiet", "pristine")
    content = patched.snapshot()
    line = patched.refused("patches", "apply", "fake")
    assert line.startswith(f"patches/fake/1.0/{name}: fakeengine/kv/__init__.py is blob {pre}")
    assert f"made on blob {'1' * 40}" in line
    assert patched.snapshot() == content


def test_hunk_at_another_place_is_refused(patched: World) -> None:
    """git itself would put it there: the post-image id tells."""
    path = patched.series / "0001-ask-the-storage-where-to-start.patch"
    path.write_bytes(path.read_bytes().replace(b"@@ -6,0 +7,2 @@", b"@@ -5,0 +6,2 @@"))
    patched.git.raw("reset", "--hard", "--quiet", "pristine")
    line = patched.refused("patches", "apply", "fake")
    assert "gives fakeengine/core.py blob" in line or "does not apply" in line
    assert patched.git.resolve("HEAD") == patched.git.resolve("pristine")


def test_export_removes_patches_that_are_no_more(patched: World) -> None:
    patched.git.raw("reset", "--hard", "--quiet", "HEAD^")
    out = patched.run("patches", "export", "fake")
    assert "patches/fake/1.0/0002-add-the-storage-interface.patch: removed" in out
    assert sorted(patched.patch_files()) == ["0001-ask-the-storage-where-to-start.patch", "series"]


def test_export_of_a_bare_tree_does_not_empty_the_series(patched: World) -> None:
    files = patched.patch_files()
    patched.git.raw("reset", "--hard", "--quiet", "pristine")
    assert "run tools/patches.py apply first" in patched.refused("patches", "export", "fake")
    assert patched.patch_files() == files
    patched.run("patches", "export", "fake", "--force")
    assert patched.patch_files() == {"series": b""}


def test_export_says_what_it_leaves_out(patched: World) -> None:
    patched.write("fakeengine/extra.py", "x = 1\n")
    assert "(fakeengine/extra.py) are not exported" in patched.call("patches", "export", "fake").err


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("Subject\n\nGoes-away-when: x\n", "has no reason"),
        ("Subject\n\nWhy.\n", "has 0 'Goes-away-when:' lines"),
        ("Subject\n\nWhy.\n\nGoes-away-when: \n", "'Goes-away-when:' says nothing"),
        ("Subject\ngoes on\n\nWhy.\n\nGoes-away-when: x\n", "the subject is not one line"),
        ("Subject\n\nWhy.\n\n---\n\nGoes-away-when: x\n", "a line of the message is '---'"),
    ],
)
def test_export_wants_a_reason(vendored: World, message: str, complaint: str) -> None:
    vendored.write("fakeengine/extra.py", "x = 1\n")
    vendored.git.raw("add", "--all")
    vendored.git.raw("commit", "--quiet", "--cleanup=verbatim", "-F", "-", stdin=message.encode())
    assert complaint in vendored.refused("patches", "export", "fake")
    assert not vendored.series.exists()


def test_export_refuses_what_a_patch_cannot_hold(vendored: World) -> None:
    vendored.git.raw("commit", "--quiet", "--allow-empty", "-m", MESSAGE.format("nothing"))
    assert "changes no file" in vendored.refused("patches", "export", "fake")
    vendored.git.raw("reset", "--hard", "--quiet", "pristine")

    (vendored.tree / "fakeengine/core.py").chmod(0o755)
    vendored.commit(MESSAGE.format("mode"))
    assert "a change of mode alone" in vendored.refused("patches", "export", "fake")
    vendored.git.raw("reset", "--hard", "--quiet", "pristine")

    vendored.write("fakeengine/image.bin", bytes(64))
    vendored.commit(MESSAGE.format("binary"))
    assert "a binary file" in vendored.refused("patches", "export", "fake")
    vendored.git.raw("reset", "--hard", "--quiet", "pristine")

    vendored.write("fakeengine/\u00e9.py", "x = 1\n")
    vendored.commit(MESSAGE.format("name"))
    assert "a file name that git quotes" in vendored.refused("patches", "export", "fake")
    vendored.git.raw("reset", "--hard", "--quiet", "pristine")

    vendored.write("fakeengine/native.so", "text\n")
    vendored.git.raw("add", "--force", "fakeengine/native.so")
    vendored.git.raw("commit", "--quiet", "-m", MESSAGE.format("compiled"))
    assert "touches fakeengine/native.so" in vendored.refused("patches", "export", "fake")


def test_export_refuses_a_merge(vendored: World) -> None:
    git = vendored.git
    vendored.write("one.py", "x = 1\n")
    vendored.commit(MESSAGE.format("one"))
    git.raw("checkout", "--quiet", "-b", "side", "pristine")
    vendored.write("two.py", "x = 2\n")
    vendored.commit(MESSAGE.format("two"))
    git.raw("merge", "--quiet", "--no-edit", "series")
    assert "is a merge; rebase" in vendored.refused("patches", "export", "fake")


def test_tools_want_a_tree_of_the_pinned_release(patched: World) -> None:
    patched.pin["version"] = "2.0"
    patched.save_pin()
    assert "made from 1.0" in patched.refused("patches", "apply", "fake")


def test_tools_want_a_tree_that_vendor_made(patched: World) -> None:
    patched.git.raw("tag", "--force", "pristine", "HEAD^")
    assert "was not made by tools/vendor.py" in patched.refused("patches", "export", "fake")


def test_names_are_cut_at_a_word() -> None:
    subject = "kv storage: the first runner's KV tensors come from the backend"
    assert file_name(3, subject) == "0003-kv-storage-the-first-runner-s-kv-tensors-come-from.patch"
    assert file_name(12, "x" * 80) == f"0012-{'x' * 52}.patch"
    assert file_name(1, "\u00e9!") == "0001-patch.patch"


def test_tools_want_a_tree(world: World) -> None:
    assert "no materialised tree here; run tools/vendor.py fake" in world.refused(
        "patches", "apply", "fake"
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, World]:
    """Two materialised roots, reused over examples: a commit in one, applied in the other."""
    root = tmp_path_factory.mktemp("pair")
    worlds = make_world(root / "one"), make_world(root / "two")
    for world in worlds:
        world.run("vendor", "fake")
    return worlds


TRAPS = [b"", b"@@ -1 +1 @@ text", b"--- a/x", b"+++ b/x", b"---", b"diff --git a/x b/x"]
TRAPS += [b"\\ No newline at end of file", b"index 00..11", b"\xff\xfe", b"cr\r", b"  x = 1"]
TRAPS += FILES["fakeengine/core.py"].split(b"\n")[6:16]
LINES = st.lists(st.sampled_from(TRAPS), max_size=12)
NAMES = st.sampled_from(["fakeengine/core.py", "fakeengine/cli.py", "new.txt", "sub/a b.py"])


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.dictionaries(NAMES, st.one_of(st.none(), LINES), min_size=1), min_size=1, max_size=3
    )
)
def test_any_edit_survives_the_round_trip(
    pair: tuple[World, World], steps: list[dict[str, list[bytes] | None]]
) -> None:
    one, two = pair
    one.git.raw("reset", "--hard", "--quiet", "pristine")
    for number, step in enumerate(steps):
        for name, lines in step.items():
            if lines is None:
                (one.tree / name).unlink(missing_ok=True)
            else:
                one.write(name, b"\n".join(lines))
        one.git.raw("add", "--all")
        if one.git.text("status", "--porcelain"):
            one.commit(MESSAGE.format(number))
    one.run("patches", "export", "fake", "--force")
    files = one.patch_files()
    with tempfile.TemporaryDirectory() as folder:
        moved = Path(folder) / "series"
        if two.series.exists():
            two.series.rename(moved)
        two.series.mkdir(parents=True)
        for name, data in files.items():
            (two.series / name).write_bytes(data)
    two.run("patches", "apply", "fake", "--force")
    assert two.snapshot() == one.snapshot()
    two.run("patches", "export", "fake", "--force")
    assert two.patch_files() == files
