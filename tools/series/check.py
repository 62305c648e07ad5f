"""Everything a series must prove before it ships. Each check reports for itself."""

from __future__ import annotations

import os
import subprocess
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from upstream import (
    PRISTINE,
    Git,
    Layout,
    Pin,
    Refusal,
    Variant,
    blobs,
    obtain_wheel,
    uncommitted,
)

from . import store
from .apply import build_commits, unexported
from .budget import check_budget, costs, table
from .duplicates import WINDOW, Text, find_copies, own_texts
from .export import patches_of
from .identity import SHORT, series_hash
from .patch import NO_BLOB, FileChange, Patch, changes, check_message
from .scratch import read_blobs, scratch_repository
from .variants import check_same_base


@dataclass
class Report:
    """What a check found: failures, one line each, and what is printed in any case."""

    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, what: Callable[[], None]) -> bool:
        try:
            what()
        except Refusal as refusal:
            self.failures.append(str(refusal))
            return False
        return True


class _Checker:
    def __init__(self, layout: Layout, pin: Pin, tree: Git) -> None:
        self.layout, self.pin, self.tree = layout, pin, tree
        self.base = tree.text("rev-parse", f"{PRISTINE}^{{commit}}")
        self.pristine = {path: blob for path, (_, blob) in blobs(tree, self.base).items()}
        self.patches: list[Patch] = []
        self.found: dict[str, list[FileChange]] = {}

    def where(self, name: str) -> str:
        return store.where(self.layout, self.pin.version, name)

    def parse(self) -> None:
        """(h) and the shape of the files: refuses context lines and the like."""
        self.patches = store.read_series(self.layout, self.pin.version)
        self.found = {p.name: changes(self.where(p.name), p.diff) for p in self.patches}

    def reasons(self) -> Iterator[Callable[[], None]]:
        for patch in self.patches:
            yield lambda p=patch: check_message(self.where(p.name), p.message)  # type: ignore[misc]

    def applied(self, report: Report) -> None:
        """(b), (c), (d): applies exactly, export gives the very same files, and they compile."""
        with scratch_repository(self.tree) as scratch:
            heads: list[str] = []
            explained = not report.failures
            if report.run(lambda: heads.append(self._build(scratch))):
                report.run(lambda: self._compiles(scratch))
                if explained:  # export refuses what has no reason, which is said already
                    report.run(lambda: self._same_export(scratch, heads[0]))

    def _build(self, scratch: Git) -> str:
        return build_commits(scratch, self.patches, self.layout, self.pin.version, self.base)

    def _same_export(self, scratch: Git, head: str) -> None:
        again = store.render(patches_of(scratch, "the scratch repository", head, self.base))
        folder = self.layout.series(self.pin.version)
        have = {path.name: path.read_bytes() for path in folder.glob("*.patch")}
        have |= store.read_files(self.layout, self.pin.version)
        if not self.patches and not have:
            return
        todo = f"run tools/patches.py export {self.layout.label} and commit the result"
        for name in sorted(have.keys() | again.keys()):
            if name not in again:
                raise Refusal(self.where(name), "is in no exported series (stale)", todo)
            if name not in have:
                raise Refusal(self.where(name), "export would write it, it is not there", todo)
            if have[name] != again[name]:
                at = _first_difference(have[name], again[name])
                raise Refusal(self.where(name), f"is not what export writes (line {at})", todo)

    def _compiles(self, scratch: Git) -> None:
        """Patch by patch, so that the one to blame is named."""
        for patch in self.patches:
            python = [c for c in self.found[patch.name] if c.path.endswith(".py")]
            python = [c for c in python if c.post != NO_BLOB]
            sources = read_blobs(scratch, [c.post for c in python])
            for change, source in zip(python, sources, strict=True):
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        compile(source, change.path, "exec", dont_inherit=True)
                except (SyntaxError, ValueError) as error:
                    what = f"{change.path} does not compile ({error})"
                    raise Refusal(self.where(patch.name), what, "fix it in the tree") from error

    def copies(self) -> None:
        """(e): none of our lines are upstream's."""
        names = sorted(path for path in self.pristine if path.endswith(".py"))
        contents = read_blobs(self.tree, [self.pristine[name] for name in names])
        theirs = (
            Text(name, tuple(data.decode(errors="replace").splitlines()))
            for name, data in zip(names, contents, strict=True)
        )
        ours = [
            Text(
                f"{self.where(name)} ({change.path})",
                tuple(line.decode(errors="replace") for line in change.added),
            )
            for name, files in self.found.items()
            for change in files
        ]
        found = find_copies([*ours, *own_texts(self.layout.root)], theirs)
        if found:
            first = found[0]
            raise Refusal(
                first.ours,
                f"{WINDOW} lines from {first.line[:50]!r} on stand in upstream's {first.theirs} "
                f"({len(found)} such texts)",
                "call upstream's code, or write ours",
            )

    def budget(self) -> None:
        """(f)"""
        where = self.where(store.SERIES)
        check_budget(costs(self.found, self.pristine), self.pin, where)

    def variants(self, report: Report) -> None:
        """One series for all: each variant whose wheel was fetched has the same files to change."""
        touched = {change.path for files in self.found.values() for change in files}
        changed = {path: self.pristine[path] for path in touched & self.pristine.keys()}
        fetched = {
            name: variant
            for name, variant in self.pin.variants.items()
            if (self.layout.wheels / variant.file).is_file()
        }
        for variant in fetched.values():
            report.run(lambda v=variant: self._same_base(v, changed, touched - changed.keys()))  # type: ignore[misc]
        for name in sorted(self.pin.variants):
            todo = f"not looked at: run tools/vendor.py {self.layout.label} --variant {name}"
            report.notes.append(f"variant {name}: {'looked at' if name in fetched else todo}")

    def _same_base(self, variant: Variant, changed: dict[str, str], added: set[str]) -> None:
        with zipfile.ZipFile(obtain_wheel(self.layout, self.pin, variant)) as source:
            check_same_base(self.layout, variant, source, changed, added)

    def static_test(self, command: str) -> None:
        """(g): runs a command on the tree with the series applied; it must exit with 0."""
        shown = self.layout.shown(self.layout.tree)
        files = store.read_files(self.layout, self.pin.version)
        count = self.tree.text("rev-list", "--count", f"{self.base}..HEAD")
        stale = unexported(self.tree, shown, files) or int(count) != len(self.patches)
        if uncommitted(self.tree) or stale:
            raise Refusal(
                shown,
                "is not the series, the static test needs it",
                f"run tools/patches.py apply {self.layout.label}",
            )
        path = os.pathsep.join(filter(None, [str(self.layout.tree), os.environ.get("PYTHONPATH")]))
        env = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(command, shell=True, env=env, check=False)
        if done.returncode:
            raise Refusal(
                self.where(store.SERIES),
                f"the static test {command!r} exited with {done.returncode}, expected 0",
                "static mode must behave as upstream does",
            )


def _first_difference(one: bytes, other: bytes) -> int:
    left, right = one.split(b"\n"), other.split(b"\n")
    pairs = zip(left, right, strict=False)
    return next((n for n, (a, b) in enumerate(pairs, 1) if a != b), min(len(left), len(right)))


def check(layout: Layout, pin: Pin, tree: Git, static_test: str | None = None) -> Report:
    """Runs every check; a failure of one does not hide the others'."""
    report, checker = Report(), _Checker(layout, pin, tree)
    if not report.run(checker.parse):
        return report
    for reason in checker.reasons():
        report.run(reason)
    checker.applied(report)
    report.run(checker.copies)
    report.run(checker.budget)
    checker.variants(report)
    if static_test is not None:
        report.run(lambda: checker.static_test(static_test))
    report.notes.append(table(costs(checker.found, checker.pristine), pin))
    report.notes.append(f"series {series_hash(layout, pin)[:SHORT]}")
    return report
