"""Several pins of one engine: each has its tree and series, and tools take ENGINE[==VERSION]."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from fake_upstream import CPU, World

NEXT = "2.0"


@pytest.fixture
def two(patched: World) -> World:
    """The default pin 1.0 with its series, and beside it 2.0, whose wheel has another core.py."""
    patched.add_release(NEXT, {"fakeengine/core.py": b"import json\n\nLIMIT = 2\n"})
    patched.write_pin(NEXT, patched.release_pin(NEXT))
    return patched


def test_each_pin_has_its_tree_and_series(two: World) -> None:
    files, content = two.patch_files(), two.snapshot()
    assert two.run("vendor", f"fake=={NEXT}").startswith(f"vendored/fake/{NEXT}/tree: made from")
    other = two.at(NEXT)
    assert (other.tree / "fakeengine/core.py").read_bytes() == b"import json\n\nLIMIT = 2\n"
    other.edit("fakeengine/core.py", "LIMIT = 2", "LIMIT = 3")
    other.commit("Allow three\n\nTwo are few.\n\nGoes-away-when: never\n")
    assert f"patches/fake/{NEXT}: 1 patches" in two.run("patches", "export", f"fake=={NEXT}")
    assert list(other.patch_files()) == ["0001-allow-three.patch", "series"]
    out = two.run("patches", "check", f"fake=={NEXT}")
    assert f"patches/fake/{NEXT}: every check holds" in out
    assert (two.patch_files(), two.snapshot()) == (files, content)
    assert "every check holds" in two.run("patches", "check", "fake")


def test_the_version_of_the_default_pin_names_the_default_pin(patched: World) -> None:
    assert "left as it is" in patched.run("vendor", "fake==1.0")
    assert "2 patches applied" in patched.run("patches", "apply", "fake==1.0")
    assert not (patched.home / "1.0").exists()


def test_a_wheel_is_made_of_the_pin_that_is_named(two: World, tmp_path: Path) -> None:
    two.run("vendor", f"fake=={NEXT}")
    command = [f"fake=={NEXT}", "--variant", "cpu", "--out", str(tmp_path / "dist")]
    made = Path(two.run("build_wheel", *command).strip())
    assert made.name == "kvcached_fake_cpu-2.0.post1-py3-none-any.whl"
    with zipfile.ZipFile(made) as wheel:
        assert b"LIMIT = 2" in wheel.read("fakeengine/core.py")
    two.run("build_wheel", "fake", *command[1:])
    assert (tmp_path / "dist" / f"kvcached_fake_cpu-1.0.post1-{CPU.split('-', 2)[2]}").is_file()


def test_messages_name_the_pin(two: World) -> None:
    line = two.refused("patches", "check", f"fake=={NEXT}")
    assert line == (
        f"vendored/fake/{NEXT}/tree: no materialised tree here; run tools/vendor.py fake=={NEXT}"
    )


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("fake==3.0", "vendored/fake/3.0/upstream.yaml: no such pin; pins of fake: 1.0, 2.0"),
        ("other==1.0", "vendored/other/upstream.yaml: no such pin; engines here: fake"),
        ("fake==", "fake==: is no ENGINE or ENGINE==VERSION; engines here: fake"),
        ("fake==../1", "fake==../1: is no ENGINE or ENGINE==VERSION; engines here: fake"),
        ("fake==1.0.0.0rc", "fake==1.0.0.0rc: is no ENGINE or ENGINE==VERSION"),
        ("fake=1", "fake=1: is no ENGINE or ENGINE==VERSION"),
        ("../fake", "../fake: is no ENGINE or ENGINE==VERSION"),
    ],
)
def test_what_names_no_pin_is_refused(two: World, wanted: str, message: str) -> None:
    assert two.refused("vendor", wanted).startswith(message)


def test_a_pin_lies_in_the_folder_of_its_version(two: World) -> None:
    two.write_pin("2.1", two.release_pin(NEXT))
    assert "the file.version is '2.0', expected '2.1', its folder" in two.refused(
        "vendor", "fake==2.1"
    )
