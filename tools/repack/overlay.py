"""What the series makes of upstream's files: contents to lay over the wheel."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass, replace

from series import build_commits, read_blobs, read_series, scratch_repository
from series import series_hash as hash_of
from upstream import PRISTINE, Git, Layout, Pin, Refusal, Variant, blob_id, blobs

from .notice import COMMENTABLE, mark


@dataclass(frozen=True)
class Overlay:
    """The series applied. Keys are paths in the wheel."""

    series_hash: str
    files: dict[str, tuple[int, bytes]]
    """Changed and added files: permission bits and content, changed ones marked as changed."""
    pristine: dict[str, str]
    """Blob ids that changed and removed files have in upstream's release."""
    folders: frozenset[str]
    """Every folder of the tree with the series applied."""

    @property
    def changed(self) -> list[str]:
        return sorted(self.files.keys() & self.pristine.keys())

    @property
    def added(self) -> list[str]:
        return sorted(self.files.keys() - self.pristine.keys())

    @property
    def removed(self) -> list[str]:
        return sorted(self.pristine.keys() - self.files.keys())


def overlay(layout: Layout, pin: Pin, tree: Git) -> Overlay:
    """Applies the series beside the tree, whose own state does not matter."""
    base = tree.text("rev-parse", f"{PRISTINE}^{{commit}}")
    before = blobs(tree, base)
    with scratch_repository(tree) as scratch:
        patches = read_series(layout, pin.version)
        after = blobs(scratch, build_commits(scratch, patches, layout, pin.version, base))
        names = sorted(name for name in after if after[name] != before.get(name))
        contents = read_blobs(scratch, [after[name][1] for name in names])
    files = {}
    for name, content in zip(names, contents, strict=True):
        ours = mark(content) if name in before and name.endswith(COMMENTABLE) else content
        files[name] = (int(after[name][0][-3:], 8), ours)
    touched = [name for name in before if after.get(name) != before[name]]
    return Overlay(
        series_hash=hash_of(layout, pin),
        files=files,
        pristine={name: before[name][1] for name in touched},
        folders=frozenset(part for name in after for part in _parents(name)),
    )


def rename_lookups(laid: Overlay, source: zipfile.ZipFile, variant: Variant) -> Overlay:
    """Lets upstream's code find itself under our name.

    In each file of `variant.lookups`, the one `version("NAME")` or `metadata("NAME")` asks for our
    distribution instead. Refused where it is not exactly one: upstream has changed.
    """
    files, pristine = dict(laid.files), dict(laid.pristine)
    for name, asked in variant.lookups.items():
        call = re.compile(rb'\b(version|metadata)\("' + re.escape(asked.encode()) + rb'"\)')
        upstream = source.read(name) if name in source.namelist() else b""
        mode, content = files.get(name, (0o644, mark(upstream)))
        content, count = call.subn(rb'\1("%s")' % variant.distribution.encode(), content)
        if count != 1:
            raise Refusal(
                name,
                f"asks {count} times for the distribution {asked!r}, expected once",
                "correct `lookups` in the pin",
            )
        files[name] = (mode, content)
        pristine.setdefault(name, blob_id(upstream))
    return replace(laid, files=files, pristine=pristine)


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]
