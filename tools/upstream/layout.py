"""Where the things of one pin lie.

vendored/ENGINE/upstream.yaml            the default pin
vendored/ENGINE/VERSION/upstream.yaml    each other
vendored/ENGINE[/VERSION]/tree           the release, materialised
vendored/ENGINE/wheels                   wheels of all pins
patches/ENGINE/VERSION                   the series of a pin, default or not
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

PIN = "upstream.yaml"


@dataclass(frozen=True)
class Layout:
    """The places of one pin below a repository root."""

    root: Path
    engine: str
    version: str | None = None
    """None for the default pin."""

    @property
    def label(self) -> str:
        """The pin as tools take it: ENGINE, or ENGINE==VERSION."""
        return f"{self.engine}=={self.version}" if self.version else self.engine

    @property
    def engine_home(self) -> Path:
        return self.root / "vendored" / self.engine

    @property
    def home(self) -> Path:
        return self.engine_home / self.version if self.version else self.engine_home

    @property
    def pin_file(self) -> Path:
        return self.home / PIN

    @property
    def wheels(self) -> Path:
        return self.engine_home / "wheels"

    @property
    def tree(self) -> Path:
        return self.home / "tree"

    def series(self, version: str) -> Path:
        return self.root / "patches" / self.engine / version

    def shown(self, path: Path) -> str:
        """`path` as messages name it: relative to the root where it lies below it."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def engines(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob(f"vendored/*/{PIN}"))


def is_version(text: str) -> bool:
    """Whether `text` is a version as package indexes write it, so that it names one folder."""
    try:
        return str(Version(text)) == text
    except InvalidVersion:
        return False
