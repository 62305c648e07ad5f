"""Two packages in one folder are found; one in a folder, wherever the others are, is not two."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcached_core.provenance import (
    MixedInstall,
    OtherInterface,
    check_alone,
    check_interface,
    overwritten,
)
from kvcached_core.provenance import sglang as sglang_provenance
from kvcached_core.provenance import vllm as vllm_provenance

ROOT = Path(__file__).resolve().parents[2]
FORK, UPSTREAM = "kvcached-mixed-cpu", "mixed-upstream"
OWNERS = (FORK, "kvcached-mixed", UPSTREAM)


class Site:
    """A site-packages folder with packages that own `mixedengine`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "mixedengine"
        self.package.mkdir(parents=True)
        self.write("__init__.py", "")

    def write(self, name: str, text: str) -> None:
        (self.package / name).write_text(text)

    def install(
        self,
        name: str,
        version: str,
        files: dict[str, str],
        fork: bool = False,
        interface: int | None = None,
    ) -> None:
        for file, text in files.items():
            self.write(file, text)
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        hashes = {
            f"mixedengine/{file}": hashlib.sha256(text.encode()).hexdigest()
            for file, text in files.items()
        }
        if fork:
            about: dict[str, Any] = {"files": hashes}
            about |= {} if interface is None else {"interface": interface}
            (info / "kvcached_series.json").write_text(json.dumps(about))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return Site(tmp_path / "site")


def refusal() -> str:
    with pytest.raises(MixedInstall) as error:
        check_alone("mixedengine", OWNERS)
    return str(error.value)


def test_one_package_alone_is_fine(site: Site) -> None:
    check_alone("mixedengine", OWNERS)
    site.install(FORK, "1.0.post1", {"core.py": "fork"}, fork=True)
    check_alone("mixedengine", OWNERS)
    check_alone("no_such_engine", OWNERS)


def test_upstream_alone_is_fine(site: Site) -> None:
    site.install(UPSTREAM, "1.0", {"core.py": "upstream"})
    check_alone("mixedengine", OWNERS)


def test_the_fork_over_upstream_is_refused(site: Site) -> None:
    site.install(UPSTREAM, "1.0", {"core.py": "upstream"})
    site.install(FORK, "1.0.post1", {"core.py": "fork"}, fork=True)
    text = refusal()
    assert f"{FORK} 1.0.post1 and {UPSTREAM} 1.0 are installed over each other" in text
    assert f"both own {site.package}, where the files of {FORK} are now" in text
    assert f"\n    pip uninstall -y {FORK} {UPSTREAM}\n" in text
    assert text.endswith(f"\n    pip install --find-links dist {FORK}")


def test_upstream_over_the_fork_is_refused(site: Site) -> None:
    site.install(FORK, "1.0.post1", {"core.py": "fork", "kv.py": "fork"}, fork=True)
    site.install(UPSTREAM, "1.0", {"core.py": "upstream"})
    assert f"where mixedengine/core.py is not that of {FORK}" in refusal()


def test_two_variants_are_refused(site: Site) -> None:
    site.install("kvcached-mixed", "1.0.post1", {"core.py": "cuda"}, fork=True)
    site.install(FORK, "1.0.post1", {"core.py": "cpu"}, fork=True)
    text = refusal()
    assert f"pip uninstall -y {FORK} kvcached-mixed\n" in text
    assert f"where the files of {FORK} are now" in text


def test_two_versions_of_one_package_are_refused(site: Site) -> None:
    site.install(FORK, "1.0.post1", {"core.py": "old"}, fork=True)
    site.install(FORK, "1.0.post2", {"core.py": "new"}, fork=True)
    assert f"pip uninstall -y {FORK}\n" in refusal()


def test_a_package_in_another_folder_is_not_over_it(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install(FORK, "1.0.post1", {"core.py": "fork"}, fork=True)
    other = Site(tmp_path / "upstream")
    other.install(UPSTREAM, "1.0", {"core.py": "upstream"})
    check_alone("mixedengine", OWNERS)
    monkeypatch.syspath_prepend(other.folder)  # as the tests run upstream beside the fork
    check_alone("mixedengine", OWNERS)
    assert overwritten("mixedengine", FORK) == []


def test_files_that_are_not_the_wheels_are_named(site: Site) -> None:
    site.install(FORK, "1.0.post1", {"a.py": "a", "b.py": "b", "c.py": "c"}, fork=True)
    assert overwritten("mixedengine", FORK) == []
    site.write("b.py", "B")
    (site.package / "c.py").unlink()
    assert overwritten("mixedengine", FORK) == ["mixedengine/b.py", "mixedengine/c.py"]


def test_the_check_imports_no_engine(site: Site) -> None:
    site.write("__init__.py", "raise RuntimeError('imported')\n")
    site.install(FORK, "1.0.post1", {"core.py": "fork"}, fork=True)
    check_alone("mixedengine", OWNERS)
    assert overwritten("mixedengine", FORK) == []


def speaks(version: int) -> None:
    check_interface("mixed", "mixedengine", OWNERS, version)


def test_a_fork_of_the_same_interface_is_fine(site: Site) -> None:
    speaks(7)  # nothing installed: a tree, or no such engine
    site.install(FORK, "1.0.post1", {"core.py": "fork"}, fork=True, interface=2)
    speaks(2)


def test_a_fork_of_another_interface_is_refused_by_name(site: Site) -> None:
    site.install(FORK, "1.0.post1", {"core.py": "fork"}, fork=True, interface=2)
    with pytest.raises(OtherInterface) as error:
        speaks(1)
    assert f"{FORK} 1.0.post1 has version 2 of mixed's storage interface, kvcached" in str(
        error.value
    )
    assert " speaks version 1. Install a pair that fits" in str(error.value)


def test_a_fork_that_does_not_say_has_the_first_interface(site: Site) -> None:
    site.install(FORK, "1.0.post1", {"core.py": "fork"}, fork=True)
    speaks(1)
    with pytest.raises(OtherInterface, match="has version 1 of"):
        speaks(2)


def test_upstream_itself_has_no_interface(site: Site) -> None:
    site.install(UPSTREAM, "1.0", {"core.py": "upstream"})
    speaks(2)


ENGINES = [
    ("vllm", vllm_provenance, "vllm.general_plugins"),
    ("sglang", sglang_provenance, "sglang.srt.plugins"),
]


@pytest.mark.parametrize(("engine", "provenance", "plugins"), ENGINES)
def test_each_pin_has_what_is_known_of_the_engine(
    engine: str, provenance: Any, plugins: str
) -> None:
    home = ROOT / "vendored" / engine
    for path in (home / "upstream.yaml", *home.glob("*/upstream.yaml")):
        pin = yaml.safe_load(path.read_text())
        named = {v[key] for v in pin["variants"].values() for key in ("package", "distribution")}
        assert set(provenance.OWNERS) == named
        assert pin["stamp"] == provenance._STAMP.replace(".", "/") + ".py"
        assert pin["interface"] == provenance.INTERFACE


@pytest.mark.parametrize(("engine", "provenance", "plugins"), ENGINES)
def test_the_engine_calls_the_check_as_a_plugin(engine: str, provenance: Any, plugins: str) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    group = text.split(f'[project.entry-points."{plugins}"]\n')[1].split("\n\n")[0]
    name, value = re.findall(r'^(\w+) = "([^"]+)"$', group, re.MULTILINE)[0]
    assert EntryPoint(name, value, plugins).load() is provenance.check


def test_the_check_of_vllm_names_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k != "vllm"})
    monkeypatch.syspath_prepend(tmp_path)
    site = Site(tmp_path)
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    site.install("vllm", "0.26.0", {})
    vllm_provenance.check()
    site.install("kvcached-vllm-cpu", "0.26.0.post1", {}, fork=True, interface=0)
    with pytest.raises(MixedInstall, match=r"pip uninstall -y kvcached-vllm-cpu vllm\n"):
        vllm_provenance.check()
    shutil.rmtree(tmp_path / "vllm-0.26.0.dist-info")
    with pytest.raises(
        OtherInterface, match=r"kvcached-vllm-cpu 0.26.0.post1 has version 0 of vllm"
    ):
        vllm_provenance.check()


def test_the_check_of_sglang_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anything less SGLang would log, and go on."""
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k != "sglang"})
    monkeypatch.syspath_prepend(tmp_path)
    site = Site(tmp_path)
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    site.install("sglang", "0.5.15.post1", {})
    sglang_provenance.check()
    site.install("kvcached-sglang", "0.5.15.post101", {}, fork=True, interface=0)
    with pytest.raises(SystemExit, match=r"pip uninstall -y kvcached-sglang sglang\n"):
        sglang_provenance.check()
    shutil.rmtree(tmp_path / "sglang-0.5.15.post1.dist-info")
    with pytest.raises(SystemExit, match=r"kvcached-sglang 0.5.15.post101 has version 0 of sglang"):
        sglang_provenance.check()
