from collections.abc import Iterator

import pytest

from kvcached_core.vmm import DeviceDriver
from lookalike import VENDORS, Machine

from .device_life import G
from .device_subject import DeviceSubject
from .strip import Strip
from .subject import KINDS, SUBJECTS, Subject

REAL = pytest.param("real-cuda", marks=pytest.mark.gpu)
SMALL = sorted(name for name in SUBJECTS if "MiB" not in name)


def subject_named(name: str) -> Subject:
    return DeviceSubject() if name == "real-cuda" else SUBJECTS[name]()


@pytest.fixture(params=VENDORS)
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param, G)


@pytest.fixture
def driver(machine: Machine) -> DeviceDriver:
    return machine.driver()


@pytest.fixture(scope="module", params=KINDS)
def strips_over_each_driver(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every Strip that a test makes is over that kind of driver."""
    Strip.kind = request.param
    yield
    Strip.kind = "host"


@pytest.fixture(params=[*sorted(SUBJECTS), REAL])
def subject(request: pytest.FixtureRequest) -> Subject:
    return subject_named(request.param)


@pytest.fixture(params=[*SMALL, REAL])
def small_subject(request: pytest.FixtureRequest) -> Subject:
    """A driver with granules so small that a test may have many turns."""
    return subject_named(request.param)
