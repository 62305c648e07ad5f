"""The stub of the native module names what is there, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kvcached_core
from kvcached_core import _native

STUB = ast.parse((Path(kvcached_core.__file__).parent / "_native.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def public(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def declared(body: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def test_the_module_has_the_declared_names() -> None:
    assert public(declared(STUB.body)) == public(set(dir(_native)))


@pytest.mark.parametrize("name", sorted(public(set(CLASSES))))
def test_a_class_has_the_declared_members(name: str) -> None:
    found = getattr(_native, name)
    inherited = set(dir(found.__mro__[1]))
    assert public(declared(CLASSES[name].body)) == public(set(dir(found)) - inherited)


@pytest.mark.parametrize("name", sorted(public(set(CLASSES))))
def test_a_class_has_the_declared_base(name: str) -> None:
    bases = [base.id for base in CLASSES[name].bases if isinstance(base, ast.Name)]
    found = getattr(_native, name).__mro__[1].__name__
    assert found in (bases[:1] or ["pybind11_object", "object"])
