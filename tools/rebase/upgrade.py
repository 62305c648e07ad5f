"""An upgrade: the new pin, its tree, the series replayed in it, exported.

Clean patches become commits in the object database; the work tree moves only to let a person
resolve a conflict, and at the end. A run that is cut short leaves, by phase:

    starting   the new pin or its tree may be missing: both are made, or found
    replaying  nothing but commits; the work tree may be half moved
    picking    git was starting the pick that is in conflict
    stopped    a person resolves, in a work tree like any other
    committing git was committing what is resolved
    exporting  the tree is the series; files may be missing
    aborting, adopting  half done: the same command again does the rest

What a half-moved work tree holds is kept as a commit under refs/saved/ before it is moved again.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from series import export
from upstream import (
    PRISTINE,
    Git,
    Layout,
    Pin,
    Refusal,
    Variant,
    load_pin,
    materialise,
    obtain_wheel,
    pin_versions,
    stamp,
    uncommitted,
)

from . import report
from .picking import check_resolved, commit_resolved, drop_stale_locks, pick, save_strays
from .plan import Source, Step, source, step
from .repin import repin, requirement_notes
from .state import (
    ABORTING,
    ADOPTING,
    COMMITTING,
    CONFLICT,
    EXPORTING,
    PICKING,
    REPLAYING,
    STARTING,
    STOPPED,
    Done,
    Upgrade,
    find_upgrade,
    write_whole,
)


@dataclass(frozen=True)
class _Place:
    """Both ends of an upgrade."""

    old: Layout
    old_pin: Pin
    new: Layout
    new_pin: Pin
    variant: str

    def of(self, pin: Pin) -> Variant:
        """The wheel of this end whose files are merged."""
        return pin.variant(self.variant)


def start(layout: Layout, pin: Pin, to: str, variant: str | None, lock: int) -> int:
    """Begins an upgrade and goes as far as it can. Returns the exit status."""
    if find_upgrade(layout, to):
        raise Refusal(
            f"{layout.engine}=={to}", "its upgrade is in progress", "--continue or --abort it"
        )
    if to in pin_versions(layout):
        raise Refusal(f"{layout.engine}=={to}", "is a pin already", "choose another release")
    place, text = repin(layout, pin, to)
    for path in (place.home, place.series(to)):
        if path.exists() and any(not p.name.startswith(".") for p in path.iterdir()):
            raise Refusal(layout.shown(path), "is there, but is of no pin", "move it away")
    upgrade = Upgrade(layout.engine, pin.version, to, variant or pin.fitting().name)
    pin.variant(upgrade.variant)
    upgrade.save(place, STARTING)
    write_whole(place.pin_file, text)
    return _run(layout, pin, upgrade, lock)


def go_on(layout: Layout, pin: Pin, upgrade: Upgrade, lock: int) -> int:
    """Takes a resolution, or picks up what a run that was cut short has left."""
    if upgrade.phase in (ABORTING, ADOPTING):
        option = {ABORTING: "--abort", ADOPTING: "--adopt"}[upgrade.phase]
        raise Refusal(
            f"{layout.engine}=={upgrade.to}", f"{option} was cut short", f"run {option} again"
        )
    place = Layout(layout.root, layout.engine, upgrade.to)
    if upgrade.phase == STARTING and not place.pin_file.is_file():
        write_whole(place.pin_file, repin(layout, pin, upgrade.to)[1])
    return _run(layout, pin, upgrade, lock)


def _run(layout: Layout, pin: Pin, upgrade: Upgrade, lock: int) -> int:
    new = Layout(layout.root, layout.engine, upgrade.to)
    place = _Place(layout, pin, new, load_pin(new), upgrade.variant)
    wheel = obtain_wheel(new, place.new_pin, place.of(place.new_pin))
    _make_tree(place, upgrade, wheel)
    git = Git(new.tree, inherit=(lock,))
    of = source(git, layout, pin, place.of(pin))
    if upgrade.series not in ("", of.head):
        folder = layout.shown(layout.series(pin.version))
        raise Refusal(folder, "is not the series that the upgrade began with", "--abort it")
    upgrade.series = of.head
    if upgrade.phase == EXPORTING:
        return _finish(place, git, upgrade)
    for line in _settle_tree(place, git, upgrade, of):
        print(line)
    if _replay(place, git, upgrade, of) is not None:
        return CONFLICT
    old_wheel = obtain_wheel(layout, pin, place.of(pin))
    for note in requirement_notes(place.new_pin, upgrade.variant, old_wheel, wheel):
        print(note)
    git.raw("reset", "--hard", "--quiet", upgrade.head(PRISTINE))
    upgrade.save(new, EXPORTING)
    return _finish(place, git, upgrade)


def _make_tree(place: _Place, upgrade: Upgrade, wheel: Path) -> None:
    new, variant = place.new, place.of(place.new_pin)
    for rest in new.home.glob(".tree-*"):  # of a run that was killed; we hold the lock
        shutil.rmtree(rest)
    if (stamp(new) or {}).get("sha256") == variant.sha256:
        return
    if upgrade.phase != STARTING:
        raise Refusal(new.shown(new.tree), "is not the tree of this upgrade any more", "--abort it")
    materialise(new, place.new_pin, variant, wheel)


def _settle_tree(place: _Place, git: Git, upgrade: Upgrade, of: Source) -> list[str]:
    """Brings the tree from whatever the last run left to the end of what is done."""
    told: list[str] = []
    at = len(upgrade.done)
    if upgrade.phase == PICKING and git.resolve("CHERRY_PICK_HEAD") is not None:
        upgrade.phase = STOPPED  # git had written all of the conflict
    if upgrade.phase == COMMITTING:
        drop_stale_locks(git)
        upgrade.phase = STOPPED
    if upgrade.phase == STOPPED:
        head, shown = upgrade.head(PRISTINE), place.new.shown(place.new.tree)
        check_resolved(git, shown, head)
        upgrade.save(place.new, COMMITTING)
        commits = commit_resolved(git, head, of.commits[at])
        if commits is not None:
            how = "by hand" if commits else "needless"
            upgrade.done.append(Done(of.names[at], how, commits))
            told.append(f"{of.names[at]}: {how}")
    else:
        told += save_strays(git, place.new.shown(place.new.tree), upgrade.head(PRISTINE))
    upgrade.save(place.new, REPLAYING)
    return told


def _replay(place: _Place, git: Git, upgrade: Upgrade, of: Source) -> Step | None:
    """The patches that are left. Returns the one in conflict, its pick left to be resolved."""
    for name, patch in list(zip(of.names, of.commits, strict=True))[len(upgrade.done) :]:
        made = step(git, name, patch, upgrade.head(PRISTINE))
        print("\n".join(report.lines(made, upgrade.to)))
        if made.conflicts:
            upgrade.save(place.new, PICKING)
            pick(git, upgrade.head(PRISTINE), patch)
            upgrade.save(place.new, STOPPED)
            shown, again = place.new.shown(place.new.tree), f"{place.old.engine} --continue"
            print(f"{shown}: resolve the conflict, `git add`, tools/rebase_patches.py {again}")
            return made
        how = "needless" if made.commit is None else report.verdict(made).split(" ")[0]
        upgrade.done.append(Done(name, how, [made.commit] if made.commit else []))
        upgrade.save(place.new, REPLAYING)
    return None


def _finish(place: _Place, git: Git, upgrade: Upgrade) -> int:
    dirty = uncommitted(git)
    if dirty:
        shown = place.new.shown(place.new.tree)
        raise Refusal(shown, f"has uncommitted edits ({dirty[0]})", "commit them, --continue")
    patches = export(place.new, place.new_pin, git, force=True)[0]
    upgrade.forget(place.new)
    hands = sum(done.how == "by hand" for done in upgrade.done)
    needless = sum(done.how == "needless" for done in upgrade.done)
    folder = place.new.shown(place.new.series(upgrade.to))
    print(f"{folder}: {len(patches)} patches, {hands} resolved by hand, {needless} needless")
    print(f"prove it: tools/patches.py check {place.new.label}")
    return 0


def abort(layout: Layout, upgrade: Upgrade) -> None:
    """Removes all that the upgrade made: the new pin, its tree, its series."""
    place = Layout(layout.root, layout.engine, upgrade.to)
    if upgrade.phase == ADOPTING:
        raise Refusal(place.label, "is being made the default pin", "run --adopt again")
    upgrade.save(place, ABORTING)
    for path in (place.series(upgrade.to), place.tree):
        shutil.rmtree(path, ignore_errors=True)
    place.pin_file.unlink(missing_ok=True)
    upgrade.forget(place)
    shutil.rmtree(place.home)
