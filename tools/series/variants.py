"""One series for all variants: what it touches must be the same in each of their wheels."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping

from upstream import Layout, Refusal, Variant, blob_id


def check_same_base(
    layout: Layout,
    variant: Variant,
    source: zipfile.ZipFile,
    pristine: Mapping[str, str],
    added: Iterable[str],
) -> None:
    """Refuses `source`, the wheel of `variant`, unless each file that the series changes has there
    the blob id that it was made on (`pristine`, by path) and none of those that it adds is there.
    """
    have = set(source.namelist())
    for name, blob in sorted(pristine.items()):
        found = blob_id(source.read(name)) if name in have else "absent"
        if found != blob:
            raise Refusal(
                layout.shown(layout.wheels / variant.file),
                f"{name} is {found}, the series was made on {blob}",
                "split what differs between the variants out of the series",
            )
    clash = sorted(have & set(added))
    if clash:
        raise Refusal(variant.file, f"already has {clash[0]}", "give our file another name")
