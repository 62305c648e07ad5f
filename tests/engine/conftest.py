import pytest

from engine.processes import Engines, Run

CAPACITY = 64 << 20  # bytes of the budget of `unbounded`


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="session")
def upstream(engines: Engines) -> Run:
    """Unpatched upstream, looked into from inside."""
    return engines.run("upstream", {"inside": True}, upstream=True, in_process=True)


@pytest.fixture(scope="session")
def unbounded(engines: Engines) -> Run:
    """Room for everything; scheduler half and rank are two processes; a cached prefix stays.

    Then a neighbour needs seven eighths of the budget, then the workload runs once more; then it
    sleeps, idle and in the midst of three requests, and wakes, each time; once more; no prefix.
    """
    budget = engines.storage("unbounded")["budget_dir"]
    more = {"neighbour": [budget, "host:unbounded", CAPACITY * 7 // 8], "sleeps": [0, 3]}
    return engines.elastic("unbounded", {"capacity": CAPACITY}, **more, reset=True)
