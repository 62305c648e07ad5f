import pytest

from .subject import SUBJECTS, Subject


@pytest.fixture(params=sorted(SUBJECTS))
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]()


@pytest.fixture(params=sorted(name for name in SUBJECTS if "MiB" not in name))
def small_subject(request: pytest.FixtureRequest) -> Subject:
    """A driver with granules so small that a test may have many turns."""
    return SUBJECTS[request.param]()
