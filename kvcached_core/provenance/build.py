"""The stamp that tools/build_wheel.py leaves in a fork's package."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

_SHORT = 12  # digits of the series' hash that people write


@dataclass(frozen=True)
class Build:
    """One wheel of a fork."""

    distribution: str
    version: str
    upstream: str
    """The version of the release that was forked."""
    variant: str
    series: str
    """sha256, in hex, over the pin and the patches."""


def build_of(stamp: str) -> Build | None:
    """The build whose stamp is the module `stamp`; None where an engine runs without one, from a
    tree, or is not a fork. Imports the engine's packages above the stamp."""
    try:
        found = importlib.import_module(stamp)
    except ModuleNotFoundError as error:
        # Upstream itself lacks also the package that the stamp lies in.
        above = f"{stamp}.".startswith(f"{error.name}.") and "." in (error.name or "")
        if not above:
            raise
        return None
    return Build(
        found.DISTRIBUTION, found.VERSION, found.UPSTREAM, found.VARIANT, found.SERIES_HASH
    )


def describe(engine: str, build: Build | None, overwritten: list[str]) -> str:
    """The end of an engine's start line."""
    if build is None:
        return f"series unknown ({engine} runs from a tree, not from a wheel of ours)"
    text = (
        f"{engine} {build.upstream}, {build.distribution} {build.version}, "
        f"series {build.series[:_SHORT]}"
    )
    if overwritten:
        text += f" (but {len(overwritten)} files are not the wheel's, such as {overwritten[0]})"
    return text
