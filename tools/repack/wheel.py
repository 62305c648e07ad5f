"""Writes our wheel: upstream's files, the series over them, dist-info made anew.

Two builds from the same wheel and series are byte-identical: sorted order, one date, fixed modes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from series import check_same_base
from upstream import Layout, Pin, Refusal, Variant
from wheel.wheelfile import WheelFile  # type: ignore[import-untyped]

from .metadata import identity, metadata, wheel_file
from .notice import notice
from .overlay import Overlay, rename_lookups

# The earliest date that a zip archive can hold; SOURCE_DATE_EPOCH replaces it.
_EPOCH = "315532800"
_SIGNATURES = ("RECORD", "RECORD.jws", "RECORD.p7s")

File = tuple[int, bytes]


def build(
    layout: Layout, pin: Pin, variant: Variant, wheel: Path, laid: Overlay, out: Path
) -> Path:
    """Writes the wheel into the folder `out` and returns its path. Raises Refusal."""
    who = identity(pin, variant)
    tags = parse_wheel_filename(variant.file)[3]
    suffix = variant.file.split("-", 2)[2]
    target = out / f"{who.stem}-{suffix}"
    out.mkdir(parents=True, exist_ok=True)
    with (
        zipfile.ZipFile(wheel) as source,
        _fixed_date(),
        tempfile.TemporaryDirectory(prefix=".build-", dir=out) as folder,
    ):
        part = Path(folder) / target.name
        names = sorted(i.filename for i in source.infolist() if not i.is_dir())
        old = _dist_info(variant.file, names)
        check_same_base(layout, variant, source, laid.pristine, laid.added)
        laid = rename_lookups(laid, source, variant)
        fresh = _dist_files(source, old, pin, variant, laid, tags)
        _write(part, source, _plan(names, old, who.stem, laid, _stamp(pin, variant, laid)), fresh)
        part.replace(target)
    return target


def _dist_info(shown: str, names: list[str]) -> str:
    found = {n.split("/")[0] for n in names if n.split("/")[0].endswith(".dist-info")}
    if len(found) != 1:
        raise Refusal(shown, f"has {len(found)} dist-info folders, expected 1", "not a wheel")
    return found.pop()


def _stamp(pin: Pin, variant: Variant, laid: Overlay) -> dict[str, File]:
    """The module that tells the running engine what it is, if the series has its folder."""
    if pin.stamp is None or pin.stamp.rpartition("/")[0] not in laid.folders:
        return {}
    who = identity(pin, variant)
    lines = [
        '"""What this build is. Written by tools/build_wheel.py."""',
        "",
        f'DISTRIBUTION = "{who.name}"',
        f'VERSION = "{who.version}"',
        f'UPSTREAM = "{pin.version}"',
        f'VARIANT = "{variant.name}"',
        f'SERIES_HASH = "{laid.series_hash}"',
    ]
    return {pin.stamp: (0o644, ("\n".join(lines) + "\n").encode())}


def _dist_files(
    source: zipfile.ZipFile,
    old: str,
    pin: Pin,
    variant: Variant,
    laid: Overlay,
    tags: frozenset[Tag],
) -> dict[str, File]:
    """The dist-info files that are ours, by their paths in our wheel."""
    who, have = identity(pin, variant), set(source.namelist())

    def theirs(name: str) -> str:
        return source.read(f"{old}/{name}").decode() if f"{old}/{name}" in have else ""

    stamp = _stamp(pin, variant, laid)
    shipped = {name: data for name, (_, data) in (laid.files | stamp).items()}
    about = {
        "distribution": who.name,
        "version": who.version,
        "upstream": {
            "engine": pin.engine,
            "version": pin.version,
            "repository": pin.repository,
            "commit": pin.commit,
            "package": variant.package,
            "sha256": variant.sha256,
        },
        "variant": variant.name,
        "interface": pin.interface,
        "series_sha256": laid.series_hash,
        # Lets an installed engine find out that another package wrote over its files.
        "files": {name: hashlib.sha256(shipped[name]).hexdigest() for name in sorted(shipped)},
    }
    added = sorted({*laid.added, *stamp} - set(laid.changed))
    legal = notice(pin, laid.changed, added, laid.removed, theirs("licenses/NOTICE"))
    texts = {
        "METADATA": metadata(theirs("METADATA"), pin, variant, laid.series_hash),
        "WHEEL": wheel_file(theirs("WHEEL"), tags),
        "licenses/NOTICE": legal,
        "kvcached_series.json": json.dumps(about, indent=2) + "\n",
    }
    return {f"{who.stem}.dist-info/{n}": (0o644, text.encode()) for n, text in texts.items()}


def _plan(
    names: list[str], old: str, stem: str, laid: Overlay, stamp: dict[str, File]
) -> dict[str, str | File]:
    """Every file of the wheel, by its new path: a name to copy from upstream's, or a content."""
    dropped = {*laid.removed, *(f"{old}/{name}" for name in _SIGNATURES)}
    data = f"{old.removesuffix('.dist-info')}.data"
    plan: dict[str, str | File] = {}
    for name in names:
        top, slash, rest = name.partition("/")
        new_top = {old: f"{stem}.dist-info", data: f"{stem}.data"}.get(top, top)
        if name not in dropped:
            plan[f"{new_top}{slash}{rest}"] = name
    return plan | laid.files | stamp


def _write(
    path: Path, source: zipfile.ZipFile, plan: dict[str, str | File], fresh: dict[str, File]
) -> None:
    whole = plan | fresh
    with WheelFile(path, "w") as sink:
        # dist-info comes last, as the wheel format recommends; the library adds RECORD on close.
        for name in sorted(whole, key=lambda n: (".dist-info/" in n, n)):
            entry = whole[name]
            if isinstance(entry, str):
                bits = (source.getinfo(entry).external_attr >> 16) & 0o111
                entry = (0o755 if bits else 0o644, source.read(entry))
            mode, content = entry
            sink.writestr(_info(name, mode), content)


def _info(name: str, mode: int) -> zipfile.ZipInfo:
    seconds = max(int(os.environ["SOURCE_DATE_EPOCH"]), int(_EPOCH))
    info = zipfile.ZipInfo(name, date_time=time.gmtime(seconds)[:6])
    # At zlib's own level, 6, as upstream's wheels: 4 % smaller than level 4, for twice the time.
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # Unix: the upper half of external_attr is a mode
    info.external_attr = (0o100000 | mode) << 16
    return info


@contextmanager
def _fixed_date() -> Iterator[None]:
    """The wheel library dates RECORD by SOURCE_DATE_EPOCH: it must be set while it writes."""
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = before or _EPOCH
    try:
        yield
    finally:
        if before is None:
            del os.environ["SOURCE_DATE_EPOCH"]
