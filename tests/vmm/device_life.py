"""The life of a page over a device driver, and what each of its calls costs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kvcached_core.vmm import DeviceDriver, Driver, Handle
from lookalike import Machine

from .subject import DEADLINE

G = 64 * 1024


def in_a_thread(work: Callable[[], object]) -> None:
    """Runs it in a thread that nobody has used, and raises what it raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


class Step(NamedTuple):
    kind: str
    call: Callable[[], object]
    calls: tuple[str, ...]  # of the library


def life_of_a_page(driver: Driver) -> Iterator[Step]:
    """Every kind of call, in an order that works; a step may be tried again."""
    base: list[int] = []
    handle: list[Handle] = []
    yield Step("reserve", lambda: base.append(driver.reserve(4 * G)), ("reserve",))
    yield Step("create", lambda: handle.append(driver.create(G)), ("create",))
    yield Step("map", lambda: driver.map(base[0], handle[0]), ("map",))
    yield Step("set_access", lambda: driver.set_access(base[0], G), ("set_access",))
    yield Step("zero", lambda: driver.zero(base[0], G), ("zero",))
    yield Step("finish", lambda: driver.finish(), ("record", "query"))
    yield Step("nothing to finish", lambda: driver.finish(), ())
    yield Step("fence", lambda: driver.fence(), ("record",))
    yield Step("free_bytes", lambda: driver.free_bytes(), ("free_bytes",))
    yield Step("held_bytes", lambda: driver.held_bytes(), ())
    yield Step("unmap", lambda: driver.unmap(base[0], G), ("unmap",))
    yield Step("release", lambda: driver.release(handle[0]), ("release",))
    yield Step("unreserve", lambda: driver.unreserve(base[0], 4 * G), ("unreserve",))


STEPS = [step.kind for step in life_of_a_page(None) if step.calls]  # type: ignore[arg-type]


def live(driver: DeviceDriver) -> None:
    for step in life_of_a_page(driver):
        step.call()


def named(machine: Machine, step: Step, *visits: dict[str, int]) -> Counter[str]:
    expected = Counter(machine.calls[call] for call in step.calls)
    for visit in visits if step.calls else ():
        expected += Counter(visit)
    return expected


def check_costs(machine: Machine, driver: DeviceDriver, *visits: dict[str, int]) -> None:
    driver.fence()  # from now on there is an event at hand
    for step in life_of_a_page(driver):
        before = machine.counts()
        step.call()
        assert machine.calls_since(before) == named(machine, step, *visits), step.kind
