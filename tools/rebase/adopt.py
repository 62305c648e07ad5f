"""Another pin becomes the default one; the one that was stays beside it."""

from __future__ import annotations

import shutil

from upstream import Layout, Refusal, load_pin, stamp

from .state import ADOPTING, Upgrade, find_upgrade, write_whole


def adopt(layout: Layout, to: str) -> str:
    """Each step leaves what the next run of this finds, so that it can be cut short anywhere.

    Returns what was done, for a person. No series is touched.
    """
    new = Layout(layout.root, layout.engine, to)
    upgrade = find_upgrade(layout, to)
    if upgrade is not None and upgrade.phase != ADOPTING:
        raise Refusal(new.label, "its upgrade is not finished", "--continue it")
    if upgrade is None:
        default = load_pin(layout)
        if default.version == to:
            raise Refusal(new.label, "is the default pin already", "nothing is to do")
        load_pin(new)
        upgrade = Upgrade(layout.engine, default.version, to, "")
        upgrade.save(new, ADOPTING)
    old = Layout(layout.root, layout.engine, upgrade.old)
    if load_pin(layout).version == upgrade.old:
        write_whole(old.pin_file, layout.pin_file.read_text(encoding="utf-8"))
        write_whole(layout.pin_file, new.pin_file.read_text(encoding="utf-8"))
    new.pin_file.unlink(missing_ok=True)
    _move_trees(layout, old, new, to)
    upgrade.forget(new)
    shutil.rmtree(new.home)
    return (
        f"{layout.shown(layout.pin_file)}: is {to} now; {upgrade.old} is {layout.shown(old.home)}"
    )


def _move_trees(layout: Layout, old: Layout, new: Layout, to: str) -> None:
    made = stamp(layout)
    if layout.tree.exists() and (made or {}).get("version") != to and not old.tree.exists():
        layout.tree.rename(old.tree)
    if new.tree.exists() and not layout.tree.exists():
        new.tree.rename(layout.tree)
