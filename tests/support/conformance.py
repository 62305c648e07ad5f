"""The conformance kit: which tests a pin or a backend must pass, and what they proved, as a table.

    PYTHONPATH=tests pytest -p support.conformance --conformance {all,core,backend} ...

A test belongs to it by ``@pytest.mark.conformance(HEADING)``; ``core=True`` puts it in the short
selection, ``backend=True`` in that of a third party's backend. Tests that bear no such mark are
left out. A heading of the selection without a test that passed is red, a skip is red, and so is a
test of an expected failure. ``ci/conformance.sh`` is the command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

HEADINGS = {
    "static": "the default backend is upstream: ids, tensors, hash of the configuration, tokens",
    "parity": "upstream's tokens: with room, with little, while requests give way",
    "interface": "the halves keep the interface's promises, and callers its order",
    "refusals": "what is not served is refused by the name of its option",
    "shutdown": "nothing is left behind: processes, shared memory, rows, names",
    "poison": "what nobody uses cannot be read, or may hold anything",
    "mutants": "harm to one live page is noticed",
    "look-alike": "drivers of devices over look-alike libraries, no device needed",
}
# Those of each selection: all must have a test that passed.
SELECTIONS = {
    "all": set(HEADINGS),
    "core": {"static", "parity", "poison"},
    "backend": {"parity", "interface", "shutdown", "poison", "mutants"},
}
OUTCOMES = ("passed", "failed", "error", "skipped")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--conformance", choices=sorted(SELECTIONS), help="run that selection only")
    group.addoption("--conformance-subject", default="", help="what the table says was tested")


def pytest_configure(config: pytest.Config) -> None:
    if selection := config.getoption("--conformance"):
        config.pluginmanager.register(Kit(selection, config.getoption("--conformance-subject")))


class Kit:
    """Selects the tests, counts what came of them by heading, and says so at the end."""

    def __init__(self, selection: str, subject: str) -> None:
        self._selection = selection
        self._subject = subject
        self._headings: dict[str, str] = {}  # by node id
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in HEADINGS}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        kept, left = [], []
        for item in items:
            (kept if self._takes(item) else left).append(item)
        config.hook.pytest_deselected(items=left)
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = _outcome(report)
        if outcome is not None:
            self._counts[self._headings[report.nodeid]][outcome] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        ran = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if ran and self._red():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"conformance of {self._subject or 'this environment'}")
        for line in self._table():
            terminalreporter.write_line(line)

    def _takes(self, item: pytest.Item) -> bool:
        mark = item.get_closest_marker("conformance")
        if mark is None:
            return False
        (heading,) = mark.args
        if heading not in HEADINGS:
            raise pytest.UsageError(f"{item.nodeid}: no heading {heading!r} of the kit")
        wanted = mark.kwargs.get("backend", False) == (self._selection == "backend")
        if self._selection == "core":
            wanted = mark.kwargs.get("core", False)
        self._headings[item.nodeid] = heading
        return bool(wanted)

    def _red(self) -> list[str]:
        return [name for name in HEADINGS if self._is_red(name)]

    def _is_red(self, name: str) -> bool:
        counts = self._counts[name]
        bad = sum(counts[outcome] for outcome in OUTCOMES if outcome != "passed")
        return bool(bad) or (name in SELECTIONS[self._selection] and not counts["passed"])

    def _table(self) -> Iterator[str]:
        yield f"{'heading':<11} {'result':<7}{'passed':>7}{'failed':>7}{'skipped':>8}  what"
        for name, what in HEADINGS.items():
            counts = self._counts[name]
            asked = name in SELECTIONS[self._selection] or counts.total()
            result = "RED" if self._is_red(name) else "green" if asked else "-"
            failed = counts["failed"] + counts["error"]
            row = f"{counts['passed']:>7}{failed:>7}{counts['skipped']:>8}"
            yield f"{name:<11} {result:<7}{row}  {what}"


def _outcome(report: pytest.TestReport) -> str | None:
    """Of a test; None for a phase that decides nothing."""
    if hasattr(report, "wasxfail"):
        return "skipped"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if report.skipped:
        return "skipped"
    return "passed" if report.when == "call" else None
