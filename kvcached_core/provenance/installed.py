"""Whether the folder of an engine belongs to one installed package.

A fork and its upstream, or two variants of a fork, own the same files. Installers let the last one
win, file by file, and removing either removes files of both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, distributions
from importlib.util import find_spec
from pathlib import Path

# Written by tools/build_wheel.py: the hash of each file in which the fork differs from upstream.
_SERIES_FILE = "kvcached_series.json"
# What a fork has that was built before interfaces were numbered.
_FIRST = 1


class MixedInstall(RuntimeError):
    """Two packages lie in one folder. The text names them, and the commands that help."""


class OtherInterface(RuntimeError):
    """The fork and this core speak different versions of the storage interface."""


def check_alone(package: str, owners: Iterable[str]) -> None:
    """Raises MixedInstall if more than one of the distributions `owners` is installed where
    `package` is imported from. Costs a look into one folder; imports nothing."""
    found = list(_owners_of(package, owners))
    if len(found) < 2:
        return
    names = [f"{dist.name} {dist.version}" for dist in found]
    ours = [dist.name for dist in found if dist.read_text(_SERIES_FILE) is not None]
    wanted = ours[0] if ours else found[0].name
    unique = list(dict.fromkeys(dist.name for dist in found))
    raise MixedInstall(
        f"{' and '.join(names)} are installed over each other: both own "
        f"{_folder_of(package)}/{package}, {_whose(found)}. Remove both, then install one:\n"
        f"    pip uninstall -y {' '.join(unique)}\n"
        f"    pip install --find-links dist {wanted}"
    )


def overwritten(package: str, distribution: str) -> list[str]:
    """Files of the fork `distribution` that are not as its wheel has them, by name. [] also where
    that distribution is not what `package` is imported from."""
    for dist in _owners_of(package, [distribution]):
        return _changed(dist)
    return []


def check_interface(engine: str, package: str, owners: Iterable[str], spoken: int) -> None:
    """Raises OtherInterface if the fork that `package` is imported from has another version of the
    storage interface than `spoken`. An engine that runs from a tree, or is no fork, passes."""
    for dist in _owners_of(package, owners):
        text = dist.read_text(_SERIES_FILE)
        if text is None:
            continue
        theirs = json.loads(text).get("interface", _FIRST)
        if theirs != spoken:
            core = distribution("kvcached-core").version
            raise OtherInterface(
                f"{dist.name} {dist.version} has version {theirs} of {engine}'s storage interface, "
                f"kvcached-core {core} speaks version {spoken}. Install a pair that fits: another "
                f"kvcached-core, or a {dist.name} whose pin says `interface: {spoken}`."
            )


def _folder_of(package: str) -> Path | None:
    """The folder on Python's path that holds `package`."""
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]).parent if places else None


def _owners_of(package: str, owners: Iterable[str]) -> Iterator[Distribution]:
    folder = _folder_of(package)
    if folder is not None:
        for name in owners:
            yield from distributions(name=name, path=[str(folder)])


def _changed(dist: Distribution) -> list[str]:
    files = json.loads(dist.read_text(_SERIES_FILE) or "{}").get("files", {})
    return sorted(name for name in files if _hash_of(dist, name) != files[name])


def _hash_of(dist: Distribution, name: str) -> str | None:
    path = Path(str(dist.locate_file(name)))
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _whose(found: list[Distribution]) -> str:
    """Whose files are there now, as far as the forks among `found` can tell."""
    said = []
    for dist in found:
        if dist.read_text(_SERIES_FILE) is None:
            continue
        changed = _changed(dist)
        if not changed:
            return f"where the files of {dist.name} are now"
        said.append(f"where {changed[0]} is not that of {dist.name}")
    return " and ".join(said) or "and neither says which files are its own"
