"""Our wheels as pip sees them: what they ask for, and what becomes of one over upstream's."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from fake_upstream import METADATA, REPOSITORY, World, make_wheel
from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.version import Version
from series import series_hash
from upstream import Layout, load_pin

from kvcached_core import __version__


class Venv:
    """An empty environment without pip; pip of this one installs into it, from `dist` alone."""

    def __init__(self, home: Path, dist: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
        self.python, self.dist = home / "bin" / "python", dist

    def pip(self, *args: str) -> str:
        command = [sys.executable, "-m", "pip", "--python", str(self.python)]
        command += ["--disable-pip-version-check", "--quiet", *args]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, *args: str) -> str:
        return self.pip("install", "--no-index", "--find-links", str(self.dist), *args)

    def run(self, code: str) -> tuple[int, str]:
        done = subprocess.run(
            [self.python, "-c", code],
            env={"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def dist(patched: World, tmp_path: Path) -> Path:
    """A folder as ci/env.sh leaves it, with our wheel and upstream's in it."""
    folder = tmp_path / "dist"
    patched.run("build_wheel", "fake", "--variant", "cpu", "--out", str(folder))
    (folder / patched.wheel.name).write_bytes(patched.wheel.read_bytes())
    return folder


def put_empty_wheel(dist: Path, name: str, version: str) -> None:
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    make_wheel(
        dist / f"{stem}-py3-none-any.whl",
        {
            f"{info}/METADATA": metadata.encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        },
    )


# --- requirements ---


def test_a_fresh_environment_gets_the_core_that_fits(dist: Path, tmp_path: Path) -> None:
    for name, version in [("torch", "2.0"), ("torch", "2.1"), ("pandas", "1.0")]:
        put_empty_wheel(dist, name, version)
    for version in ("0.0.9", "0.1.0", "0.1.7", "0.2.0"):
        put_empty_wheel(dist, "kvcached-core", version)
    venv = Venv(tmp_path / "venv", dist)
    report = json.loads(venv.install("--dry-run", "--report", "-", "kvcached-fake-cpu"))
    found = {item["metadata"]["name"]: item["metadata"]["version"] for item in report["install"]}
    assert found == {"kvcached-fake-cpu": "1.0.post1", "kvcached-core": "0.1.7", "torch": "2.0"}
    venv.install("--dry-run", "kvcached-fake-cpu[bench]")


def test_every_requirement_of_upstreams_is_kept_or_replaced(patched: World, dist: Path) -> None:
    theirs = requirements(METADATA)
    with zipfile.ZipFile(next(dist.glob("kvcached_fake_cpu-*.whl"))) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        ours = requirements(archive.read(name).decode())
    replaced = patched.pin["variants"]["cpu"]["replace"]
    kept = [r for r in theirs if r.name not in replaced]
    expected = [*kept, *(Requirement(r) for r in filter(None, replaced.values()))]
    assert set(ours) == {*expected, *map(Requirement, patched.pin["requires"])}
    assert len(ours) == len(set(ours))


def requirements(metadata: str) -> list[Requirement]:
    return [Requirement(text) for text in parse_email(metadata)[0]["requires_dist"]]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_pin_asks_for_this_core_and_for_no_incompatible_one(engine: str) -> None:
    (core,) = [Requirement(r) for r in load_pin(Layout(REPOSITORY, engine)).requires]
    assert core.name == "kvcached-core"
    assert f'\nversion = "{__version__}"\n' in (REPOSITORY / "pyproject.toml").read_text()
    version = Version(__version__)
    assert version in core.specifier
    # Before 1.0 a minor release may break what the engines' series were made for.
    assert Version(f"{version.major}.{version.minor + 1}.0") not in core.specifier
    assert Version(f"{version.major + 1}.0.0") not in core.specifier


# --- one over the other ---

CHECK = (
    "from kvcached_core.provenance import check_alone as c;"
    "c('fakeengine', ('fake-upstream', 'kvcached-fake-cpu'))"
)


@pytest.mark.parametrize("first", ["fake-upstream", "kvcached-fake-cpu"])
def test_both_installed_are_refused_and_the_advice_helps(
    dist: Path, tmp_path: Path, first: str
) -> None:
    venv = Venv(tmp_path / "venv", dist)
    (second,) = {"fake-upstream", "kvcached-fake-cpu"} - {first}
    venv.install("--no-deps", first)
    assert venv.run(CHECK) == (0, "")
    venv.install("--no-deps", second)
    code, text = venv.run(CHECK)
    assert code == 1
    assert "kvcached-fake-cpu 1.0.post1" in text and "fake-upstream 1.0" in text
    whose = {
        "fake-upstream": "where the files of kvcached-fake-cpu are now",
        "kvcached-fake-cpu": "where fakeengine/cli.py is not that of kvcached-fake-cpu",
    }
    assert whose[first] in text
    remove, install = [line.split()[1:] for line in text.splitlines() if line[:8] == "    pip "]
    venv.pip(*remove)
    assert install == ["install", "--find-links", "dist", "kvcached-fake-cpu"]
    venv.install("--no-deps", install[-1])
    assert venv.run(CHECK) == (0, "")
    assert venv.run("import fakeengine.kv") == (0, "")


def test_an_installed_fork_says_which_series_it_is(
    patched: World, dist: Path, tmp_path: Path
) -> None:
    venv = Venv(tmp_path / "venv", dist)
    venv.install("--no-deps", "kvcached-fake-cpu")
    code = (
        "from kvcached_core.provenance import *\n"
        "b = build_of('fakeengine.kv._series')\n"
        "print(describe('fake', b, overwritten('fakeengine', b.distribution)))\n"
    )
    layout = Layout(patched.root, "fake")
    series = series_hash(layout, load_pin(layout))
    line = f"fake 1.0, kvcached-fake-cpu 1.0.post1, series {series[:12]}"
    assert venv.run(code) == (0, f"{line}\n")
