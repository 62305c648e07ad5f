"""What a pin says: a release that we fork, and each variant's wheel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from .errors import Refusal
from .layout import Layout, engines, is_version

_SHA256 = re.compile(r"[0-9a-f]{64}")
_ENGINE = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True)
class Variant:
    """One wheel of the release. `size` is in bytes; None where only the hash is pinned."""

    name: str
    package: str
    file: str
    size: int | None
    sha256: str
    distribution: str
    replace: dict[str, str | None]
    """Requirement of upstream's, by normalised project name -> what we ask for; None drops it."""
    lookups: dict[str, str]
    """Files that ask for upstream's distribution by name -> that name; ours stands in our wheel."""


@dataclass(frozen=True)
class Pin:
    engine: str
    version: str
    repository: str
    commit: str
    licence: str
    revision: int
    """Counts the releases of our series on this upstream version, from 1; the wheel's `.postN`."""
    budget_added: int
    budget_removed: int
    requires: tuple[str, ...]
    interface: int
    """Version of the storage interface that the series adds: kvcached-core refuses others."""
    stamp: str | None
    """The module that build_wheel.py writes where the series has its folder; names the build."""
    variants: dict[str, Variant]
    path: Path

    def variant(self, name: str) -> Variant:
        if name not in self.variants:
            known = ", ".join(sorted(self.variants))
            raise Refusal(self.path, f"no variant {name!r}", f"choose one of: {known}")
        return self.variants[name]

    def fitting(self) -> Variant:
        """The first variant whose wheel this interpreter takes; the first of all if none does."""
        here = frozenset(sys_tags())
        fit = (v for v in self.variants.values() if here & parse_wheel_filename(v.file)[3])
        return next(fit, next(iter(self.variants.values())))


class _Reader:
    """Takes typed values out of a mapping, and refuses what is left over."""

    def __init__(self, path: Path, where: str, data: Any) -> None:
        if not isinstance(data, dict):
            raise Refusal(path, f"{where} is not a mapping", "write it as `key: value` lines")
        self.path, self.where, self.data = path, where, dict(data)

    def bad(self, key: str, what: str) -> Refusal:
        return Refusal(self.path, f"{self.where}.{key} {what}", "correct the pin")

    def text(self, key: str) -> str:
        value = self.data.pop(key, None)
        if not isinstance(value, str) or not value:
            raise self.bad(key, f"is {value!r}, expected a text")
        return value

    def number(self, key: str) -> int:
        value = self.data.pop(key, None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.bad(key, f"is {value!r}, expected a whole number >= 0")
        return int(value)

    def take(self, key: str, default: Any) -> Any:
        return self.data.pop(key, default)

    def done(self) -> None:
        if self.data:
            keys = ", ".join(sorted(map(str, self.data)))
            raise Refusal(self.path, f"{self.where} has unknown keys: {keys}", "remove them")


def _variant(path: Path, name: str, data: Any) -> Variant:
    reader = _Reader(path, f"variants.{name}", data)
    size = reader.take("size", None)
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size <= 0):
        raise reader.bad("size", f"is {size!r}, expected bytes as a whole number, or null")
    replace = reader.take("replace", {})
    if not isinstance(replace, dict) or not all(
        isinstance(k, str) and (v is None or isinstance(v, str)) for k, v in replace.items()
    ):
        raise reader.bad("replace", "is not a table of project name: requirement or null")
    lookups = reader.take("lookups", {})
    if not isinstance(lookups, dict) or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in lookups.items()
    ):
        raise reader.bad("lookups", "is not a table of file: distribution name")
    variant = Variant(
        name=name,
        package=reader.text("package"),
        file=reader.text("file"),
        size=size,
        sha256=reader.text("sha256"),
        distribution=reader.text("distribution"),
        replace=replace,
        lookups=lookups,
    )
    if not _SHA256.fullmatch(variant.sha256):
        raise reader.bad("sha256", f"is {variant.sha256!r}, expected 64 lower-case hex digits")
    if Path(variant.file).name != variant.file or not variant.file.endswith(".whl"):
        raise reader.bad("file", f"is {variant.file!r}, expected the bare name of a wheel")
    reader.done()
    return variant


def load_pin(layout: Layout) -> Pin:
    """Reads and checks the pin at `layout`; unknown keys are refused, not ignored."""
    path = layout.pin_file
    if not path.is_file():
        have = f"pins of {layout.engine}" if layout.version else "engines here"
        names = pin_versions(layout) if layout.version else engines(layout.root)
        raise Refusal(layout.shown(path), "no such pin", f"{have}: {', '.join(names)}")
    return parse_pin(layout, path.read_text(encoding="utf-8"))


def parse_pin(layout: Layout, text: str) -> Pin:
    """What `text` says, as the pin at `layout`."""
    shown = Path(layout.shown(layout.pin_file))
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        first = " ".join(str(error).split())
        raise Refusal(shown, f"not YAML: {first}", "correct the pin") from error
    reader = _Reader(shown, "the file", data)
    budget = _Reader(shown, "budget", reader.take("budget", None))
    requires = reader.take("requires", [])
    if not isinstance(requires, list) or not all(isinstance(r, str) for r in requires):
        raise reader.bad("requires", "is not a list of requirements")
    stamp = reader.take("stamp", None)
    if stamp is not None and (not isinstance(stamp, str) or not stamp.endswith(".py")):
        raise reader.bad("stamp", f"is {stamp!r}, expected the path of a Python file, or nothing")
    variants = reader.take("variants", None)
    if not isinstance(variants, dict) or not variants:
        raise reader.bad("variants", "is empty, expected at least one")
    pin = Pin(
        engine=reader.text("engine"),
        version=reader.text("version"),
        repository=reader.text("repository"),
        commit=reader.text("commit"),
        licence=reader.text("licence"),
        revision=reader.number("revision"),
        budget_added=budget.number("added"),
        budget_removed=budget.number("removed"),
        requires=tuple(requires),
        interface=reader.number("interface"),
        stamp=stamp,
        variants={str(name): _variant(shown, str(name), v) for name, v in variants.items()},
        path=shown,
    )
    reader.done()
    budget.done()
    if pin.engine != layout.engine:
        raise reader.bad("engine", f"is {pin.engine!r}, expected {layout.engine!r}")
    if layout.version not in (None, pin.version):
        raise reader.bad("version", f"is {pin.version!r}, expected {layout.version!r}, its folder")
    return pin


def find_layout(root: Path, wanted: str) -> Layout:
    """Where the pin `ENGINE[==VERSION]` lies; without a version, or with that of the default pin,
    the default pin's place. Whether a pin is there is for load_pin to say."""
    engine, _, version = wanted.partition("==")
    if not _ENGINE.fullmatch(engine) or ("==" in wanted and not is_version(version)):
        names = ", ".join(engines(root))
        raise Refusal(wanted, "is no ENGINE or ENGINE==VERSION", f"engines here: {names}")
    default = Layout(root, engine)
    if not version or load_pin(default).version == version:
        return default
    return Layout(root, engine, version)


def pin_versions(layout: Layout) -> list[str]:
    """The versions that are pinned for the engine of `layout`, the default first."""
    default = load_pin(Layout(layout.root, layout.engine)).version
    beside = {path.parent.name for path in layout.engine_home.glob("*/upstream.yaml")}
    return [default, *sorted(beside - {default}, key=Version)]
