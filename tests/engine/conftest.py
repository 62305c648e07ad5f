import pytest

from engine.processes import Engines, Run


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="session")
def upstream(engines: Engines) -> Run:
    """Unpatched upstream, looked into from inside."""
    return engines.run("upstream", {"inside": True}, upstream=True, in_process=True)
