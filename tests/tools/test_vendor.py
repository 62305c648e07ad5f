"""vendor.py: what is materialised is what is pinned, and no work is ever overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_upstream import CPU, CUDA, FILES, REPOSITORY, World, make_wheel, make_world, sha256


def repin(world: World) -> None:
    """Pins a re-released wheel in the place of the old one."""
    make_wheel(world.wheel, FILES | {"fakeengine/new.py": b"x = 1\n"})
    world.pin["variants"]["cpu"] |= {
        "size": world.wheel.stat().st_size,
        "sha256": sha256(world.wheel),
    }
    world.save_pin()


def test_tree_is_the_wheel_with_its_text_as_first_commit(vendored: World) -> None:
    git = vendored.git
    assert git.text("rev-list", "--count", "HEAD") == "1"
    assert git.resolve("pristine") == git.resolve("HEAD")
    for name, data in FILES.items():
        assert (vendored.tree / name).read_bytes() == data
    assert (vendored.tree / "fakeengine/native.so").stat().st_mode & 0o111
    assert (vendored.tree / "fakeengine/cli.py").stat().st_mode & 0o777 == 0o755
    tracked = git.text("ls-files").split("\n")
    assert "fakeengine/core.py" in tracked
    assert "fakeengine/native.so" not in tracked
    assert git.text("status", "--porcelain") == ""


def test_pristine_commit_is_the_same_everywhere(tmp_path: Path) -> None:
    heads = []
    for name in ("one", "two"):
        world = make_world(tmp_path / name)
        world.run("vendor", "fake")
        heads.append(world.git.resolve("HEAD"))
    assert heads[0] == heads[1]


def test_wrong_hash_is_refused(world: World) -> None:
    good, data = sha256(world.wheel), bytearray(world.wheel.read_bytes())
    data[40] ^= 1
    world.wheel.write_bytes(data)
    line = world.refused("vendor", "fake")
    assert line.startswith(f"vendored/fake/wheels/{CPU}: sha256 is {sha256(world.wheel)}")
    assert f"expected {good}; do not use it" in line
    assert not world.tree.exists()


def test_wrong_size_is_refused(world: World) -> None:
    size = world.wheel.stat().st_size
    with world.wheel.open("ab") as stream:
        stream.write(b"x")
    assert f"size is {size + 1} bytes, expected {size}" in world.refused("vendor", "fake")


def test_given_wheel_is_checked_before_it_is_kept(world: World, tmp_path: Path) -> None:
    given = tmp_path / "given.whl"
    given.write_bytes(world.wheel.read_bytes()[:-1] + b"?")
    world.wheel.unlink()
    assert "sha256" in world.refused("vendor", "fake", "--wheel", str(given))
    assert not world.wheel.exists()
    assert not list((world.home / "wheels").glob(".fetch*"))


def test_fetches_by_package_name_through_pip(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    world.wheel.rename(links / CPU)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    world.run("vendor", "fake")
    assert world.wheel.read_bytes() == (links / CPU).read_bytes()


OTHER_PYTHON = "fake_upstream-1.0-cp37-cp37m-manylinux_2_17_x86_64.whl"


def make_for_another_python(world: World) -> Path:
    """Pins the cpu variant's wheel under the name of one for a Python that cannot run this."""
    moved = world.wheel.rename(world.home / "wheels" / OTHER_PYTHON)
    world.pin["variants"]["cpu"]["file"] = OTHER_PYTHON
    world.save_pin()
    return moved


def test_fetches_a_wheel_that_was_made_for_another_python(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_for_another_python(world)
    links = tmp_path / "links"
    links.mkdir()
    wheel.rename(links / OTHER_PYTHON)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    world.run("vendor", "fake", "--variant", "cpu")
    assert wheel.read_bytes() == (links / OTHER_PYTHON).read_bytes()


def test_the_first_variant_that_fits_is_taken(world: World) -> None:
    assert f"made from {CPU}" in world.run("vendor", "fake")
    make_for_another_python(world)
    assert f"made from {CUDA}" in world.run("vendor", "fake")
    del world.pin["variants"]["cuda"]
    world.save_pin()
    assert f"made from {OTHER_PYTHON}" in world.run("vendor", "fake")


def test_unfetchable_package_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.wheel.unlink()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    line = world.refused("vendor", "fake")
    assert line.startswith("fake-upstream==1.0: pip could not fetch it")


def test_second_run_leaves_the_tree_alone(vendored: World) -> None:
    vendored.write("fakeengine/core.py", "edited = 1\n")
    assert "left as it is" in vendored.run("vendor", "fake")
    assert (vendored.tree / "fakeengine/core.py").read_text() == "edited = 1\n"


def test_uncommitted_edits_are_never_overwritten(vendored: World) -> None:
    vendored.write("fakeengine/core.py", "edited = 1\n")
    repin(vendored)
    assert "uncommitted edits (fakeengine/core.py)" in vendored.refused("vendor", "fake")
    assert (vendored.tree / "fakeengine/core.py").read_text() == "edited = 1\n"
    vendored.run("vendor", "fake", "--force")
    assert (vendored.tree / "fakeengine/core.py").read_bytes() == FILES["fakeengine/core.py"]


def test_unexported_patches_are_never_overwritten(vendored: World) -> None:
    vendored.commit_example()
    head = vendored.git.resolve("HEAD")
    repin(vendored)
    assert "unexported patches (0001-ask-the-storage" in vendored.refused("vendor", "fake")
    assert vendored.git.resolve("HEAD") == head


def test_exported_patches_do_not_keep_an_old_tree(patched: World) -> None:
    repin(patched)
    patched.run("vendor", "fake")
    assert (patched.tree / "fakeengine/new.py").is_file()


def test_a_folder_that_is_not_ours_is_left_alone(world: World) -> None:
    world.write("precious.txt", "data")
    assert "is no tree of ours" in world.refused("vendor", "fake")
    assert (world.tree / "precious.txt").read_text() == "data"


def test_check_accepts_a_patched_tree(patched: World) -> None:
    assert "file by file" in patched.run("vendor", "fake", "--check")


def test_check_finds_a_changed_base(vendored: World) -> None:
    vendored.edit("fakeengine/core.py", "* 2", "* 3")
    vendored.git.raw("commit", "--quiet", "--all", "--amend", "--no-edit")
    vendored.git.raw("tag", "--force", "pristine")
    line = vendored.refused("vendor", "fake", "--check")
    assert "fakeengine/core.py differs from the wheel in pristine" in line


def test_check_finds_a_changed_compiled_file(vendored: World) -> None:
    (vendored.tree / "fakeengine/native.so").write_bytes(b"short")
    assert "native.so is not the wheel's" in vendored.refused("vendor", "fake", "--check")


def test_check_wants_a_tree_of_this_variant(vendored: World) -> None:
    assert "made from sha256" in vendored.refused("vendor", "fake", "--check", "--variant", "cuda")


def test_wheel_with_paths_outside_is_refused(tmp_path: Path) -> None:
    world = make_world(tmp_path / "root", FILES | {"../escape.py": b"x = 1\n"})
    assert "unsafe path '../escape.py'" in world.refused("vendor", "fake")
    assert not list(tmp_path.rglob("escape.py"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sise": 1}, "unknown keys: sise"),
        ({"revision": "one"}, "revision is 'one', expected a whole number"),
        ({"version": 1.0}, "version is 1.0, expected a text"),
        ({"engine": "other"}, "engine is 'other', expected 'fake'"),
        ({"variants": {}}, "variants is empty"),
        ({"budget": {"added": 1, "removed": 1, "more": 2}}, "unknown keys: more"),
    ],
)
def test_bad_pins_are_refused(world: World, change: dict[str, object], message: str) -> None:
    world.pin |= change
    world.save_pin()
    assert message in world.refused("vendor", "fake")


def test_unknown_engine_and_variant_are_named(world: World) -> None:
    assert "engines here: fake" in world.refused("vendor", "nope")
    assert "choose one of: cpu, cuda" in world.refused("vendor", "fake", "--variant", "tpu")


def test_errors_of_use_exit_with_2(tmp_path: Path) -> None:
    for tool, args in (
        ("vendor.py", ["fake", "--check", "--force"]),
        ("patches.py", ["unknown-command", "fake"]),
        ("build_wheel.py", ["fake"]),
    ):
        done = subprocess.run(
            [sys.executable, str(REPOSITORY / "tools" / tool), *args],
            capture_output=True,
            check=False,
            cwd=tmp_path,
            env=os.environ,
        )
        assert done.returncode == 2, done.stderr
