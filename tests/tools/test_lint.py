"""ci/lint.sh and its layers: green on a small tree, and each gate red for its own reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_upstream import REPOSITORY

FILES = {
    "kvcached_core/__init__.py": '"""Core."""\n',
    "kvcached_core/vmm/__init__.py": '"""Arenas."""\n\nfrom ..config import LIMIT as LIMIT\n',
    "kvcached_core/config/__init__.py": "LIMIT: int = 1\n",
    "kvcached_core/pool/__init__.py": '"""Pool."""\n',
    "tools/tool.py": "print(1)\n",
    "ci/demo/run.py": "print(1)\n",
    "csrc/bind/module.cc": '#include "pool/ledger.h"\n#include "vmm/arena.h"\n',
    "csrc/pool/ledger.h": "#include <vector>\n",
    "csrc/vmm/arena.h": '#include "vmm/driver.h"\n',
    "csrc/vmm/driver.h": "#pragma once\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "ci").mkdir(parents=True)
    for name in ("ci/lint.sh", "ci/import_directions.py", "pyproject.toml", ".clang-format"):
        shutil.copy(REPOSITORY / name, root / name)
    for name, text in FILES.items():
        put(root, name, text)
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    return root


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def lint(root: Path, *gates: str, **env: str) -> tuple[int, str]:
    # One cache for all of mypy's runs here: most of its time goes into the standard library.
    cache = str(root.parents[1] / "mypy")
    environment = os.environ | {"KVCACHED_VENV": sys.prefix, "MYPY_CACHE_DIR": cache} | env
    done = subprocess.run(
        [str(root / "ci" / "lint.sh"), *gates],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    return done.returncode, done.stdout + done.stderr


def test_small_tree_is_green(root: Path) -> None:
    code, text = lint(root)
    assert code == 0, text
    assert text.count(": ok") == 8


@pytest.mark.parametrize(
    ("gate", "name", "content", "complaint"),
    [
        ("ruff-check", "tools/tool.py", "import os\n", "F401"),
        ("ruff-format", "tools/tool.py", "print( 1 )\n", "tools/tool.py"),
        ("mypy-core", "kvcached_core/pool/x.py", "def f(x):\n    return x\n", "no-untyped-def"),
        ("mypy-tools", "tools/tool.py", 'x: int = "a"\n', "Incompatible types"),
        ("mypy-demo", "ci/demo/run.py", 'x: int = "a"\n', "Incompatible types"),
        ("clang-format", "csrc/vmm/driver.h", "int   x ;\n", "clang-format-violations"),
        ("import-directions", "kvcached_core/vmm/x.py", "import kvcached_core.pool\n", "not below"),
        ("machine-paths", "docs/x.md", "see /{}/main\n".format("work"), "docs/x.md:1"),
        ("machine-paths", "docs/x.md", '"/{}/pool"\n'.format("farm"), "docs/x.md:1"),
    ],
)
def test_each_gate_can_fail(root: Path, gate: str, name: str, content: str, complaint: str) -> None:
    put(root, name, content)
    code, text = lint(root, gate)
    assert code == 1, text
    assert complaint in text
    assert f"lint: red: {gate}" in text


@pytest.mark.parametrize(
    ("gate", "folder"), [("clang-format", "csrc"), ("import-directions", "kvcached_core")]
)
def test_empty_selection_is_red(root: Path, gate: str, folder: str) -> None:
    shutil.rmtree(root / folder)
    code, text = lint(root, gate)
    assert code == 1, text


def test_paths_that_only_look_like_a_machine_are_fine(root: Path) -> None:
    put(root, "docs/x.md", "see docs/{}/page\n".format("work"))
    assert lint(root, "machine-paths")[0] == 0


@pytest.mark.parametrize("tool", ["ruff", "mypy", "clang-format"])
def test_missing_tool_is_red_and_named(root: Path, tmp_path: Path, tool: str) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("sh", "dirname", "sed", "tr", "find", "sort"):
        (bare / name).symlink_to(shutil.which(name) or name)
    gate = {"ruff": "ruff-check", "mypy": "mypy-core"}.get(tool, tool)
    code, text = lint(root, gate, PATH=str(bare), KVCACHED_VENV=str(tmp_path))
    assert code == 1
    assert f"lint: {tool} is missing: pip install '.[lint]'" in text


def test_tool_of_another_version_is_red(root: Path) -> None:
    text = (root / "pyproject.toml").read_text()
    assert "ruff==" in text
    put(root, "pyproject.toml", text.replace("ruff==", "ruff==9."))
    code, text = lint(root, "ruff-check")
    assert code == 1
    assert "expected 9." in text


def test_unknown_gate_is_an_error_of_use(root: Path) -> None:
    code, text = lint(root, "rust")
    assert code == 2
    assert "no gate 'rust'" in text


@pytest.mark.parametrize(
    ("name", "line", "complaint"),
    [
        ("kvcached_core/config/x.py", "from kvcached_core.vmm import LIMIT", "config imports vmm"),
        ("kvcached_core/budget/x.py", "from ..pool import ledger", "budget imports pool"),
        ("kvcached_core/budget/x.py", "from .. import txn", "budget imports txn"),
        ("kvcached_core/pool/x.py", "def f():\n    import kvcached_core.engines", "pool imports"),
        ("kvcached_core/control/x.py", "import kvcached_core.controller", "not below it"),
        ("kvcached_core/engines/vllm/x.py", "from ..sglang import y", "engines know nothing"),
        ("kvcached_core/errors.py", "import kvcached_core.vmm", "errors is the ground"),
        ("kvcached_core/pool/x.py", "from kvcached_core import Thing", "which is no layer"),
        ("kvcached_core/pool/x.py", "import time", "pool has no clock"),
        ("kvcached_core/txn/x.py", "from socket import socket", "txn has no clock and no socket"),
        ("kvcached_core/gizmo/x.py", "x = 1", "gizmo is in no layer"),
        ("csrc/pool/x.h", '#include "vmm/arena.h"', 'includes "vmm/arena.h", allowed are: pool'),
        ("csrc/vmm/x.cc", '#include "bind/bind.h"', "allowed are: vmm"),
        ("csrc/budget/x.cc", '#include "pool/ledger.h"', "allowed are: budget, vmm"),
        ("csrc/pool/x.h", '#include "ledger.h"', 'includes "ledger.h"'),
        ("csrc/gizmo/x.h", "int x;", "gizmo is in no layer"),
    ],
)
def test_wrong_direction_is_found(root: Path, name: str, line: str, complaint: str) -> None:
    put(root, name, f"{line}\n")
    code, text = directions(root)
    assert code == 1
    assert len(text.splitlines()) == 1
    assert text.startswith(name)
    assert complaint in text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("kvcached_core/engines/vllm/x.py", "from kvcached_core.pool import ledger"),
        ("kvcached_core/engines/vllm/x.py", "from . import y"),
        ("kvcached_core/control/x.py", "from ..budget import record"),
        ("kvcached_core/pool/x.py", "from kvcached_core._native import Ledger"),
        ("kvcached_core/pool/x.py", "from .policy import Policy"),
        ("kvcached_core/vmm/x.py", "import time, socket"),
        ("kvcached_core/txn/transport.py", "import socket"),
        ("csrc/budget/x.cc", '#include "vmm/arena.h"'),
        ("csrc/bind/x.cc", '#include "budget/budget.h"'),
    ],
)
def test_right_direction_is_fine(root: Path, name: str, line: str) -> None:
    put(root, name, f"{line}\n")
    assert directions(root) == (0, "")


def directions(root: Path) -> tuple[int, str]:
    script = root / "ci" / "import_directions.py"
    done = subprocess.run(
        [sys.executable, str(script), str(root)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr
