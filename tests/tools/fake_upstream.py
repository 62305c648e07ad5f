"""A tiny upstream release: a wheel with a few files, its pin, and a root to work in."""

from __future__ import annotations

import copy
import hashlib
import importlib
import io
import shutil
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from upstream import Git
from wheel.wheelfile import WheelFile

REPOSITORY = Path(__file__).resolve().parents[2]
CPU = "fake_upstream-1.0-py3-none-any.whl"
CUDA = "fake_gpu-1.0-py3-none-any.whl"
INFO = "fake_upstream-1.0.dist-info"

ENGINE = '''"""The engine's own words."""

from __future__ import annotations

import json


def schedule(requests, limit):
    chosen = []
    for request in sorted(requests):
        cost = len(request) * 2
        if cost > limit:
            continue
        limit -= cost
        chosen.append((request, cost))
    return json.dumps(chosen)


class Cache:
    def __init__(self):
        self.held = {}

    def put(self, key, value):
        self.held[key] = value
'''
METADATA = """Metadata-Version: 2.4
Name: fake-upstream
Version: 1.0
Summary: A fake engine
Maintainer-email: Some Body <body@example.org>
Project-URL: Homepage, https://example.org
Project-URL: Bug Tracker, https://example.org/bugs
License-File: LICENSE
Requires-Dist: torch==2.0+cpu; platform_machine == "x86_64"
Requires-Dist: torch==2.0; platform_machine == "ppc64le"
Requires-Dist: torchvision
Requires-Dist: pandas; extra == "bench"
Provides-Extra: bench

# The readme

Text: with a colon.
"""
FILES: dict[str, bytes] = {
    "fakeengine/__init__.py": b'from .core import schedule\n\n__version__ = "1.0"\n',
    "fakeengine/core.py": ENGINE.encode(),
    "fakeengine/cli.py": b'#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n"""CLI."""\n\n\n'
    b"def main():\n    import importlib.metadata\n\n"
    b'    print("fake", importlib.metadata.version("fake-upstream"))\n',
    "fakeengine/table.json": b'{"a": 1}\n',
    "fakeengine/native.so": bytes(range(256)) * 8,
    f"{INFO}/METADATA": METADATA.encode(),
    # Wrong on purpose, as real wheels have it: the file name is what counts.
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: cp1-cp1-x\n",
    f"{INFO}/entry_points.txt": b"[console_scripts]\nfakecli = fakeengine.cli:main\n",
    f"{INFO}/licenses/LICENSE": b"The licence.\n",
}
EXECUTABLE = frozenset({"fakeengine/native.so", "fakeengine/cli.py"})


def make_wheel(path: Path, files: dict[str, bytes]) -> None:
    with WheelFile(path, "w") as wheel:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, date_time=(2020, 1, 1, 0, 0, 0))
            mode = 0o755 if name in EXECUTABLE else 0o644
            info.external_attr = (0o100000 | mode) << 16
            wheel.writestr(info, data)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Result:
    code: int
    out: str
    err: str


@dataclass
class World:
    """A repository root with the engine `fake`, seen from one of its pins."""

    root: Path
    pin: dict[str, Any] = field(default_factory=dict)
    version: str | None = None
    """None for the default pin."""
    index: Any = None
    """The FakeIndex that has its wheels, where there is one."""

    @property
    def engine_home(self) -> Path:
        return self.root / "vendored" / "fake"

    @property
    def home(self) -> Path:
        return self.engine_home / self.version if self.version else self.engine_home

    @property
    def tree(self) -> Path:
        return self.home / "tree"

    @property
    def wheel(self) -> Path:
        return self.engine_home / "wheels" / CPU

    @property
    def series(self) -> Path:
        return self.root / "patches" / "fake" / (self.version or self.pin["version"])

    @property
    def git(self) -> Git:
        return Git(self.tree)

    def copy_to(self, root: Path, tree: bool = True) -> World:
        """A second root like this one; without the materialised tree unless `tree`."""
        ignore = None if tree else shutil.ignore_patterns("tree")
        shutil.copytree(self.root, root, symlinks=True, ignore=ignore)
        return World(root, copy.deepcopy(self.pin))

    def at(self, version: str) -> World:
        """The same root, seen from the pin of this version, which is not the default one."""
        return World(self.root, self.pin, version)

    def add_release(self, version: str, changed: dict[str, bytes | None]) -> None:
        """Upstream's next wheels, of both variants, fetched: 1.0's with some files changed, or
        removed (None). Which gives release_pin something to pin."""
        metadata = METADATA.replace("Version: 1.0\n", f"Version: {version}\n").encode()
        files: dict[str, bytes | None] = {**FILES, f"{INFO}/METADATA": metadata, **changed}
        for file in (CPU, CUDA):
            name = file.split("-")[0]
            info = f"{name}-{version}.dist-info"
            renamed = {n.replace(INFO, info): data for n, data in files.items() if data is not None}
            make_wheel(self.engine_home / "wheels" / file.replace("1.0", version), renamed)

    def offer(self, version: str) -> None:
        """Puts both wheels of a release on the index."""
        for wheel in sorted((self.engine_home / "wheels").glob(f"*-{version}-*.whl")):
            self.index.offer(wheel)

    def release_pin(self, version: str) -> dict[str, Any]:
        """The default pin, of these wheels."""
        pin = copy.deepcopy(self.pin) | {"version": version}
        for variant in pin["variants"].values():
            variant["file"] = variant["file"].replace("1.0", version)
            wheel = self.engine_home / "wheels" / variant["file"]
            size = None if variant["size"] is None else wheel.stat().st_size
            variant.update({"size": size, "sha256": sha256(wheel)})
        return pin

    def write_pin(self, version: str, pin: dict[str, Any]) -> None:
        home = self.engine_home / version
        home.mkdir(exist_ok=True)
        (home / "upstream.yaml").write_text(yaml.safe_dump(pin, sort_keys=False))

    def replace_in_variant(self, variant: str, name: str, content: bytes | None) -> None:
        """A release of this variant in which one file is another, or absent."""
        pin = self.pin["variants"][variant]
        wheel = self.home / "wheels" / pin["file"]
        with zipfile.ZipFile(wheel) as source:
            files = {n: source.read(n) for n in source.namelist() if not n.endswith("RECORD")}
        files.pop(name, None)
        make_wheel(wheel, files if content is None else files | {name: content})
        pin |= {"size": None, "sha256": sha256(wheel)}
        self.save_pin()

    def save_pin(self) -> None:
        (self.home / "upstream.yaml").write_text(yaml.safe_dump(self.pin, sort_keys=False))

    def call(self, tool: str, *args: str) -> Result:
        """Runs a tool's `main` on this root."""
        out, err = io.BytesIO(), io.StringIO()
        stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
        with redirect_stdout(stdout), redirect_stderr(err):
            code = importlib.import_module(tool).main(["--root", str(self.root), *args])
        return Result(code, out.getvalue().decode(), err.getvalue())

    def run(self, tool: str, *args: str) -> str:
        """The same, where success is expected."""
        result = self.call(tool, *args)
        assert result.code == 0, result.err
        return result.out

    def refused(self, tool: str, *args: str) -> str:
        """The same, where the tool must refuse: exit status 1 and one clear line."""
        result = self.call(tool, *args)
        assert result.code == 1, result.out
        lines = result.err.splitlines()
        assert len(lines) == 1, result.err
        assert "; " in lines[0]
        return lines[0]

    def write(self, name: str, data: str | bytes) -> None:
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.tree / name).read_text()
        assert text.count(old) == 1
        self.write(name, text.replace(old, new))

    def commit(self, message: str) -> None:
        self.git.raw("add", "--all")
        self.git.raw("commit", "--quiet", "-F", "-", stdin=message.encode())

    def commit_example(self) -> None:
        self.edit("fakeengine/core.py", "    chosen = []\n", "    chosen = start(limit)\n")
        self.edit("fakeengine/core.py", "import json\n", "import json\n\nfrom .kv import start\n")
        self.commit(
            "Ask the storage where to start\n\nThe engine must not know who holds it.\n\n"
            "Goes-away-when: upstream has such a hook\n"
        )
        self.write(
            "fakeengine/kv/__init__.py", '"""Ours."""\n\n\ndef start(limit):\n    return []\n'
        )
        self.commit(
            "Add the storage interface\n\nThe hook needs something to call.\n\n"
            "Goes-away-when: upstream has\nan interface of its own\n"
        )

    def patch_files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.series.iterdir())}

    def snapshot(self) -> str:
        """The content of the tree: git's id of it, with what is uncommitted appended."""
        return self.git.text("rev-parse", "HEAD^{tree}") + self.git.text("status", "--porcelain")


def make_world(root: Path, files: dict[str, bytes] | None = None) -> World:
    """A root whose wheels are already fetched; the cuda variant has the same Python files."""
    world = World(root)
    wheels = world.home / "wheels"
    wheels.mkdir(parents=True)
    make_wheel(world.wheel, files or FILES)
    gpu = {name.replace(INFO, "fake_gpu-1.0.dist-info"): data for name, data in FILES.items()}
    make_wheel(wheels / CUDA, gpu)
    world.pin = {
        "engine": "fake",
        "version": "1.0",
        "repository": "fake-project/fake",
        "commit": "unknown",
        "licence": "Apache-2.0",
        "revision": 1,
        "interface": 1,
        "budget": {"added": 20, "removed": 5},
        "requires": ["kvcached-core>=0.1,<0.2"],
        "stamp": "fakeengine/kv/_series.py",
        "variants": {
            "cpu": {
                "package": "fake-upstream",
                "distribution": "kvcached-fake-cpu",
                "file": CPU,
                "size": world.wheel.stat().st_size,
                "sha256": sha256(world.wheel),
                "replace": {"torch": "torch==2.0", "torchvision": None},
                "lookups": {"fakeengine/cli.py": "fake-upstream"},
            },
            "cuda": {
                "package": "fake-gpu",
                "distribution": "kvcached-fake",
                "file": CUDA,
                "size": None,
                "sha256": sha256(wheels / CUDA),
            },
        },
    }
    world.save_pin()
    return world
