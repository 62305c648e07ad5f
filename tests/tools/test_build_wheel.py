"""build_wheel.py: a wheel that installs, says what it is, and comes out the same twice."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

import pytest
from fake_upstream import FILES, REPOSITORY, World, sha256
from repack.metadata import our_version
from repack.notice import mark
from series import series_hash
from upstream import Layout, Pin, Refusal, load_pin
from wheel.wheelfile import WheelFile

NAME = "kvcached_fake_cpu-1.0.post1-py3-none-any.whl"
INFO = "kvcached_fake_cpu-1.0.post1.dist-info"
LINE = b"# Modified by kvcached-forks; see NOTICE.\n"


def build(world: World, out: Path, variant: str = "cpu") -> Path:
    text = world.run("build_wheel", "fake", "--variant", variant, "--out", str(out))
    path = Path(text.strip())
    assert path.is_file()
    return path


@pytest.fixture
def built(patched: World, tmp_path: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(build(patched, tmp_path / "dist"))


def build_apart(world: World, out: Path, umask: int, **env: str) -> Path:
    """Builds in a process of its own, as another person would."""
    tool = REPOSITORY / "tools" / "build_wheel.py"
    command = [sys.executable, str(tool), "--root", str(world.root), "fake", "--variant", "cpu"]
    given = {k: v for k, v in os.environ.items() if k not in ("SOURCE_DATE_EPOCH", "TZ")}
    done = subprocess.run(
        [*command, "--out", str(out)],
        env=given | env,
        umask=umask,
        cwd=out.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_two_builds_are_byte_identical(patched: World, tmp_path: Path) -> None:
    one = build_apart(patched, tmp_path / "one", 0o022, TZ="UTC", PYTHONHASHSEED="1")
    # Another root, person, zone and day; another state of the tree; every file made anew.
    other = patched.copy_to(tmp_path / "far" / "other")
    other.git.raw("reset", "--hard", "--quiet", "pristine")
    other.write("fakeengine/junk.py", "not in the series\n")
    for number, path in enumerate(sorted(other.root.rglob("*"))):
        if path.is_file() and ".git" not in path.parts:
            path.chmod(0o600)
            os.utime(path, (1e9 + number, 1e9 + number))
    time.sleep(2.1)  # a zip archive's clock ticks every two seconds
    strange = {"TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "2", "LC_ALL": "C", "HOME": "/nowhere"}
    two = build_apart(other, tmp_path / "two", 0o077, **strange)
    assert one.name == two.name == NAME
    assert one.read_bytes() == two.read_bytes()


def test_dates_follow_the_source_date(
    patched: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    with zipfile.ZipFile(build(patched, tmp_path)) as archive:
        assert {i.date_time for i in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}


def test_record_is_valid_and_complete(patched: World, tmp_path: Path) -> None:
    with WheelFile(build(patched, tmp_path)) as wheel:
        names = wheel.namelist()
        assert len(names) == len(set(names))
        for name in names:
            wheel.read(name)  # raises if RECORD does not hold the file's hash
        recorded = [
            line.rsplit(",", 2)[0] for line in wheel.read(f"{INFO}/RECORD").decode().splitlines()
        ]
        assert sorted(recorded) == sorted(names)
        assert names[-1] == f"{INFO}/RECORD"
        folders = {name.split("/")[0] for name in names}
        assert folders == {"fakeengine", INFO}


def test_files_are_upstreams_with_the_series_over_them(
    patched: World, built: zipfile.ZipFile
) -> None:
    core = (patched.tree / "fakeengine/core.py").read_bytes()
    assert built.read("fakeengine/core.py") == LINE + core
    kv = (patched.tree / "fakeengine/kv/__init__.py").read_bytes()
    assert built.read("fakeengine/kv/__init__.py") == kv
    for name in ("fakeengine/__init__.py", "fakeengine/native.so", "fakeengine/table.json"):
        assert built.read(name) == FILES[name]
    assert built.getinfo("fakeengine/native.so").external_attr >> 16 == 0o100755
    assert built.getinfo("fakeengine/core.py").external_attr >> 16 == 0o100644


def test_metadata_is_ours_where_it_must_be(built: zipfile.ZipFile) -> None:
    about = Parser().parsestr(built.read(f"{INFO}/METADATA").decode())
    assert about["Name"] == "kvcached-fake-cpu"
    assert about["Version"] == "1.0.post1"
    assert about["Summary"] == "A fake engine (fork of fake 1.0 by kvcached-forks)"
    assert about.get_all("Requires-Dist") == [
        "torch==2.0",
        'pandas; extra == "bench"',
        "kvcached-core>=0.1,<0.2",
    ]
    assert about.get_all("Provides-Extra") == ["bench"]
    assert about.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert about.get_all("Project-URL") == ["Homepage, https://example.org"]
    assert about["Maintainer-email"] is None
    assert not [key for key in about if key.lower().startswith("x-")]
    said = json.loads(built.read(f"{INFO}/kvcached_series.json"))
    assert said["interface"] == 1
    series = said["series_sha256"]
    assert f"\nSeries: {series}\n" in about.get_payload()
    assert "# The readme\n\nText: with a colon.\n" in about.get_payload()
    wheel = Parser().parsestr(built.read(f"{INFO}/WHEEL").decode())
    assert wheel.get_all("Tag") == ["py3-none-any"]
    assert wheel["Root-Is-Purelib"] == "false"
    entry_points = built.read(f"{INFO}/entry_points.txt")
    assert entry_points == b"[console_scripts]\nfakecli = fakeengine.cli:main\n"


def test_licence_is_kept_and_changes_are_declared(
    patched: World, built: zipfile.ZipFile, tmp_path: Path
) -> None:
    assert built.read(f"{INFO}/licenses/LICENSE") == b"The licence.\n"
    notice = built.read(f"{INFO}/licenses/NOTICE").decode()
    assert "Files changed:\n  fakeengine/cli.py\n  fakeengine/core.py\n" in notice
    assert "Files added:\n  fakeengine/kv/__init__.py\n  fakeengine/kv/_series.py\n" in notice
    patched.git.raw("rm", "--quiet", "fakeengine/__init__.py")
    patched.edit("fakeengine/table.json", "1", "2")
    patched.commit("Remove it\n\nWhy.\n\nGoes-away-when: never\n")
    patched.run("patches", "export", "fake")
    with zipfile.ZipFile(build(patched, tmp_path / "again")) as archive:
        notice = archive.read(f"{INFO}/licenses/NOTICE").decode()
        assert "Files removed:\n  fakeengine/__init__.py\n" in notice
        assert "  fakeengine/table.json\n" in notice
        assert "fakeengine/__init__.py" not in archive.namelist()
        assert archive.read("fakeengine/table.json") == b'{"a": 2}\n'


def test_build_says_which_series_it_carries(
    patched: World, built: zipfile.ZipFile, tmp_path: Path
) -> None:
    about = json.loads(built.read(f"{INFO}/kvcached_series.json"))
    assert about["upstream"]["version"] == "1.0"
    assert about["upstream"]["sha256"] == sha256(patched.wheel)
    assert about["variant"] == "cpu"
    for name, digest in about["files"].items():
        assert hashlib.sha256(built.read(name)).hexdigest() == digest
    assert "fakeengine/core.py" in about["files"]
    stamp: dict[str, str] = {}
    exec(built.read("fakeengine/kv/_series.py"), stamp)
    assert stamp["SERIES_HASH"] == about["series_sha256"]
    assert (stamp["UPSTREAM"], stamp["VARIANT"]) == ("1.0", "cpu")
    assert (stamp["DISTRIBUTION"], stamp["VERSION"]) == ("kvcached-fake-cpu", "1.0.post1")
    assert about["series_sha256"] == series_hash(*pinned(patched))


def reword_a_patch(world: World) -> None:
    path = world.series / "0002-add-the-storage-interface.patch"
    path.write_bytes(path.read_bytes().replace(b"needs something", b"needs a thing"))


def drop_a_patch(world: World) -> None:
    path = world.series / "series"
    path.write_text(path.read_text().splitlines(keepends=True)[0])


def raise_the_revision(world: World) -> None:
    world.pin["revision"] = 2
    world.save_pin()


def pin_another_wheel(world: World) -> None:
    world.pin["variants"]["cuda"]["sha256"] = "0" * 64
    world.save_pin()


def ask_for_another_core(world: World) -> None:
    world.pin["requires"] = ["kvcached-core>=0.2,<0.3"]
    world.save_pin()


@pytest.mark.parametrize(
    "change",
    [reword_a_patch, drop_a_patch, raise_the_revision, pin_another_wheel, ask_for_another_core],
)
def test_the_series_hash_covers_the_pin_and_the_patches(
    patched: World, change: Callable[[World], None]
) -> None:
    before = series_hash(*pinned(patched))
    change(patched)
    assert series_hash(*pinned(patched)) != before


def test_the_series_hash_leaves_out_what_changes_no_wheel(patched: World, tmp_path: Path) -> None:
    before = series_hash(*pinned(patched))
    other = patched.copy_to(tmp_path / "elsewhere")
    other.pin["budget"] = {"added": 7, "removed": 7}
    other.save_pin()
    (other.home / "upstream.yaml").open("a").write("# a comment\n")
    (other.series / "notes.txt").write_text("not named by the series")
    assert series_hash(*pinned(other)) == before


def test_check_prints_the_series_hash(patched: World) -> None:
    assert f"series {series_hash(*pinned(patched))[:12]}\n" in patched.run(
        "patches", "check", "fake"
    )


def test_no_stamp_without_its_folder(vendored: World, tmp_path: Path) -> None:
    with zipfile.ZipFile(build(vendored, tmp_path)) as archive:
        assert "fakeengine/kv/_series.py" not in archive.namelist()


def test_variants_do_not_collide(patched: World, tmp_path: Path) -> None:
    cpu, cuda = build(patched, tmp_path), build(patched, tmp_path, "cuda")
    assert (cpu.name, cuda.name) == (NAME, "kvcached_fake-1.0.post1-py3-none-any.whl")
    with zipfile.ZipFile(cuda) as archive:
        text = archive.read("kvcached_fake-1.0.post1.dist-info/METADATA").decode()
        assert 'Requires-Dist: torch==2.0+cpu; platform_machine == "x86_64"' in text


def test_variant_with_another_base_is_refused(patched: World, tmp_path: Path) -> None:
    """The series is made on the cpu tree; a cuda wheel whose file differs must not be mangled."""
    content = FILES["fakeengine/core.py"] + b"# gpu\n"
    patched.replace_in_variant("cuda", "fakeengine/core.py", content)
    args = ("fake", "--variant", "cuda", "--out", str(tmp_path))
    assert "fakeengine/core.py is " in patched.refused("build_wheel", *args)
    assert not list(tmp_path.glob("*.whl"))


def test_upstream_finds_itself_under_our_name(built: zipfile.ZipFile) -> None:
    shebang, coding, rest = FILES["fakeengine/cli.py"].split(b"\n", 2)
    renamed = rest.replace(b'version("fake-upstream")', b'version("kvcached-fake-cpu")')
    assert renamed != rest
    assert built.read("fakeengine/cli.py") == b"\n".join([shebang, coding, LINE + renamed])


def test_lookup_that_is_gone_is_refused(patched: World, tmp_path: Path) -> None:
    patched.pin["variants"]["cpu"]["lookups"] = {"fakeengine/core.py": "fake-upstream"}
    patched.save_pin()
    args = ("fake", "--variant", "cpu", "--out", str(tmp_path))
    line = patched.refused("build_wheel", *args)
    assert "fakeengine/core.py: asks 0 times for the distribution 'fake-upstream'" in line


def test_replacement_without_its_requirement_is_refused(patched: World, tmp_path: Path) -> None:
    patched.pin["variants"]["cpu"]["replace"]["jax"] = None
    patched.save_pin()
    args = ("fake", "--variant", "cpu", "--out", str(tmp_path))
    line = patched.refused("build_wheel", *args)
    assert "variants.cpu.replace names jax, which upstream does not require" in line


def test_installs_in_a_fresh_environment(patched: World, tmp_path: Path) -> None:
    wheel = build(patched, tmp_path)
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    code = (
        "import fakeengine, importlib.metadata as m;"
        "from fakeengine.kv import _series;"
        "assert fakeengine.__version__ == '1.0';"
        "assert fakeengine.schedule(['a'], 9) == '[[\"a\", 2]]';"
        "print(m.version('kvcached-fake-cpu'), _series.SERIES_HASH)"
    )
    run = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.startswith("1.0.post1 ")
    script = subprocess.run([home / "bin" / "fakecli"], check=True, capture_output=True, text=True)
    assert script.stdout == "fake 1.0.post1\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (b"x = 1\n", LINE + b"x = 1\n"),
        (b"", LINE),
        (
            b'"""Doc."""\nfrom __future__ import annotations\n',
            LINE + b'"""Doc."""\nfrom __future__ import annotations\n',
        ),
        (b"#!/usr/bin/python\nx = 1\n", b"#!/usr/bin/python\n" + LINE + b"x = 1\n"),
        (b"# -*- coding: latin-1 -*-\nx = 1\n", b"# -*- coding: latin-1 -*-\n" + LINE + b"x = 1\n"),
        (
            b"#!/usr/bin/python\n# vim: set fileencoding=latin-1 :\ns = '\xe9'\n",
            b"#!/usr/bin/python\n# vim: set fileencoding=latin-1 :\n" + LINE + b"s = '\xe9'\n",
        ),
        (
            b"# licence\n# coding: latin-1\ns = '\xe9'\n",
            b"# licence\n# coding: latin-1\n" + LINE + b"s = '\xe9'\n",
        ),
        (b"\xef\xbb\xbfx = 1\n", b"\xef\xbb\xbf" + LINE + b"x = 1\n"),
        (b"x = 1\r\ny = 2\r\n", LINE[:-1] + b"\r\nx = 1\r\ny = 2\r\n"),
        (b"#!/usr/bin/python", b"#!/usr/bin/python\n" + LINE),
        (b"\n# coding: latin-1\ns = '\xe9'\n", b"\n# coding: latin-1\n" + LINE + b"s = '\xe9'\n"),
        (b"x = 1\n# not a coding: line\n", LINE + b"x = 1\n# not a coding: line\n"),
    ],
)
def test_line_stands_where_python_allows_it(source: bytes, expected: bytes) -> None:
    assert mark(source) == expected
    compile(mark(source), "marked", "exec", dont_inherit=True)


@pytest.mark.parametrize(
    ("version", "revision", "expected"),
    [
        ("0.26.0", 1, "0.26.0.post1"),
        ("0.5.15.post1", 1, "0.5.15.post101"),
        ("0.5.15.post1", 12, "0.5.15.post112"),
        ("1.0rc2", 3, "1.0rc2.post3"),
    ],
)
def test_version_is_one_an_index_accepts(
    world: World, version: str, revision: int, expected: str
) -> None:
    world.pin |= {"version": version, "revision": revision}
    assert our_version(_pin(world)) == expected


@pytest.mark.parametrize(("version", "revision"), [("1.0", 0), ("1.0", 100), ("1.0+cpu", 1)])
def test_version_that_no_index_accepts_is_refused(
    world: World, version: str, revision: int
) -> None:
    world.pin |= {"version": version, "revision": revision}
    with pytest.raises(Refusal, match="makes no index version"):
        our_version(_pin(world))


def _pin(world: World) -> Pin:
    world.save_pin()
    return pinned(world)[1]


def pinned(world: World) -> tuple[Layout, Pin]:
    layout = Layout(world.root, "fake")
    return layout, load_pin(layout)
