"""A series on disk: `patches/<engine>/<version>/series` and the patch files that it names."""

from __future__ import annotations

from pathlib import Path

from upstream import Layout, Refusal

from .patch import Patch, parse

SERIES = "series"


def where(layout: Layout, version: str, name: str) -> str:
    """How messages name a patch of the series."""
    return layout.shown(layout.series(version) / name)


def read_names(layout: Layout, version: str) -> list[str]:
    """The patch names in order. No series file is an empty series."""
    path = layout.series(version) / SERIES
    if not path.is_file():
        return []
    names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    names = [name for name in names if name and not name.startswith("#")]
    for name in names:
        if Path(name).name != name or not name.endswith(".patch"):
            raise Refusal(layout.shown(path), f"{name!r} is no patch name", "export again")
    if len(set(names)) != len(names):
        raise Refusal(layout.shown(path), "names a patch twice", "export again")
    return names


def read_files(layout: Layout, version: str) -> dict[str, bytes]:
    """Every file of the series, as bytes: `series`, and each patch that it names."""
    folder = layout.series(version)
    files = {}
    for name in read_names(layout, version):
        path = folder / name
        if not path.is_file():
            raise Refusal(
                layout.shown(path), "named by `series` but not there", "restore it, or export again"
            )
        files[name] = path.read_bytes()
    index = folder / SERIES
    if index.is_file():
        files[SERIES] = index.read_bytes()
    return files


def read_series(layout: Layout, version: str) -> list[Patch]:
    files = read_files(layout, version)
    names = read_names(layout, version)
    return [parse(name, where(layout, version, name), files[name]) for name in names]


def render(patches: list[Patch]) -> dict[str, bytes]:
    """The files that hold these patches."""
    files = {patch.name: patch.to_bytes() for patch in patches}
    files[SERIES] = "".join(f"{patch.name}\n" for patch in patches).encode()
    return files


def write(layout: Layout, version: str, patches: list[Patch]) -> tuple[list[str], list[str]]:
    """Makes the series on disk hold exactly these patches.

    Returns the names written (new or changed) and the names removed. Other files are left alone.
    """
    folder = layout.series(version)
    folder.mkdir(parents=True, exist_ok=True)
    files = render(patches)
    stale = sorted(p.name for p in folder.glob("*.patch") if p.name not in files)
    for name in stale:
        (folder / name).unlink()
    written = []
    for name, data in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)
            written.append(name)
    return written, stale
