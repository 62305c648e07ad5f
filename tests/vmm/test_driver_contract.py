"""The contract of csrc/vmm/driver.h, clause by clause, over every driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvcached_core.vmm import Driver, Handle, HostDriver, InvalidArgument, OutOfMemory

from .subject import Subject

pytestmark = pytest.mark.conformance("look-alike")


def test_describes_itself(subject: Subject) -> None:
    granule = subject.granule
    assert granule > 0 and granule & (granule - 1) == 0
    assert subject.driver.name()
    kind, index = subject.driver.dlpack_device()
    assert kind > 0 and index >= 0


def test_reserved_addresses_are_aligned_inaccessible_and_free_of_charge(subject: Subject) -> None:
    bases = [subject.driver.reserve(n * subject.granule) for n in (1, 3, 64)]
    for base, granules in zip(bases, (1, 3, 64), strict=True):
        assert base % subject.granule == 0
        assert subject.readable(base, granules * subject.granule) == 0
    assert subject.driver.held_bytes() == 0


def test_reserving_far_more_than_the_machine_has(subject: Subject) -> None:
    size = 1 << 42
    base = subject.driver.reserve(size)
    handle = subject.filled(base + size - subject.granule, 1, 5)
    assert subject.driver.held_bytes() == handle.size


def test_memory_is_taken_by_create_and_back_when_release_returns(subject: Subject) -> None:
    sizes = [n * subject.granule for n in (1, 2, 5)]
    handles = [subject.driver.create(size) for size in sizes]
    assert [h.size for h in handles] == sizes
    assert len({h.id for h in handles}) == 3 and all(handles)
    assert subject.driver.held_bytes() == sum(sizes)
    left = sum(sizes)
    for handle in handles:
        subject.driver.release(handle)
        left -= handle.size
        assert subject.driver.held_bytes() == left


def test_access_only_between_set_access_and_unmap(subject: Subject) -> None:
    granule = subject.granule
    base = subject.driver.reserve(3 * granule)
    handle = subject.driver.create(granule)
    subject.driver.map(base + granule, handle)
    assert subject.readable(base, 3 * granule) == 0
    subject.driver.set_access(base + granule, granule)
    assert subject.readable(base, 3 * granule) == granule
    assert subject.readable(base + granule, granule) == granule
    subject.driver.unmap(base + granule, granule)
    assert subject.readable(base, 3 * granule) == 0


def test_reused_memory_reads_as_zero(subject: Subject) -> None:
    base = subject.driver.reserve(4 * subject.granule)
    for granules in (4, 1, 3, 2):
        handle = subject.filled(base, granules, 0xA5)
        subject.driver.unmap(base, handle.size)
        subject.driver.release(handle)
        again = subject.driver.create(handle.size)
        subject.map_zeroed(base, again)
        assert subject.is_filled(base, again.size, 0)
        subject.driver.unmap(base, again.size)
        subject.driver.release(again)


def test_a_handle_keeps_its_content_and_can_move(subject: Subject) -> None:
    granule = subject.granule
    base = subject.driver.reserve(8 * granule)
    handle = subject.filled(base, 2, 0x11)
    other = subject.filled(base + 2 * granule, 1, 0x22)
    subject.driver.unmap(base, handle.size)
    assert subject.driver.held_bytes() == 3 * granule
    subject.map_open(base + 5 * granule, handle)
    assert subject.is_filled(base + 5 * granule, handle.size, 0x11)
    assert subject.is_filled(base + 2 * granule, other.size, 0x22)
    subject.map_zeroed(base, subject.driver.create(granule))
    assert subject.is_filled(base, granule, 0)


def test_neighbours_survive_an_unmap_between_them(subject: Subject) -> None:
    granule = subject.granule
    base = subject.driver.reserve(5 * granule)
    for i in range(5):
        subject.filled(base + i * granule, 1, i + 1)
    subject.driver.unmap(base + 2 * granule, granule)
    assert subject.readable(base, 5 * granule) == 4 * granule
    for i in (0, 1, 3, 4):
        assert subject.is_filled(base + i * granule, granule, i + 1)


def test_one_set_access_opens_a_run_of_mappings(subject: Subject) -> None:
    granule = subject.granule
    base = subject.driver.reserve(4 * granule)
    subject.driver.map(base, subject.driver.create(granule))
    subject.driver.map(base + granule, subject.driver.create(2 * granule))
    subject.driver.set_access(base, 3 * granule)
    assert subject.readable(base, 4 * granule) == 3 * granule


def test_zero_clears_just_these_bytes(subject: Subject) -> None:
    granule = subject.granule
    base = subject.driver.reserve(2 * granule)
    subject.filled(base, 1, 0xFF)
    subject.filled(base + granule, 1, 0xFF)
    subject.driver.zero(base + 100, granule)
    assert subject.is_filled(base, 100, 0xFF)
    assert subject.is_filled(base + 100, granule, 0)
    assert subject.is_filled(base + 100 + granule, granule - 100, 0xFF)
    subject.driver.zero(base, 2 * granule)
    assert subject.is_filled(base, 2 * granule, 0)


def test_an_impossible_create_is_out_of_memory_and_changes_nothing(subject: Subject) -> None:
    subject.driver.create(subject.granule)
    size = 1 << 50
    with pytest.raises(OutOfMemory, match=str(size)):
        subject.driver.create(size)
    assert subject.driver.held_bytes() == subject.granule
    assert subject.driver.create(subject.granule)


def test_free_bytes_is_what_could_still_be_created(subject: Subject) -> None:
    free = subject.driver.free_bytes()
    assert free > subject.granule
    with pytest.raises(OutOfMemory):
        subject.driver.create((free * 2) // subject.granule * subject.granule)


def test_unreserved_addresses_are_gone(subject: Subject) -> None:
    base = subject.driver.reserve(4 * subject.granule)
    handle = subject.filled(base, 1, 1)
    subject.driver.unmap(base, handle.size)
    subject.driver.unreserve(base, 4 * subject.granule)
    with pytest.raises(InvalidArgument):
        subject.driver.map(base, handle)
    assert subject.driver.held_bytes() == handle.size


@dataclass
class Scene:
    """Six reserved granules: 0-1 mapped and open, 2 mapped without access, 3-5 empty."""

    driver: Driver
    base: int
    granule: int
    open: Handle
    shut: Handle
    loose: Handle
    gone: Handle
    foreign: Handle

    def at(self, granules: int, skew: int = 0) -> int:
        return self.base + granules * self.granule + skew


Misuse = Callable[[Scene], object]
MISUSES: dict[str, Misuse] = {
    "reserve nothing": lambda s: s.driver.reserve(0),
    "reserve a wrong multiple": lambda s: s.driver.reserve(s.granule + 1),
    "reserve too much for a number": lambda s: s.driver.reserve((1 << 64) - s.granule),
    "unreserve an unknown range": lambda s: s.driver.unreserve(s.granule, s.granule),
    "unreserve from the middle": lambda s: s.driver.unreserve(s.at(3), 3 * s.granule),
    "unreserve a part": lambda s: s.driver.unreserve(s.base, 5 * s.granule),
    "unreserve with something mapped": lambda s: s.driver.unreserve(s.base, 6 * s.granule),
    "create nothing": lambda s: s.driver.create(0),
    "create a wrong multiple": lambda s: s.driver.create(s.granule // 2),
    "create too much for a number": lambda s: s.driver.create((1 << 64) - s.granule),
    "release a mapped handle": lambda s: s.driver.release(s.open),
    "release none": lambda s: s.driver.release(Handle(0, s.granule)),
    "release an unknown handle": lambda s: s.driver.release(Handle(1 << 60, s.granule)),
    "release twice": lambda s: s.driver.release(s.gone),
    "release another driver's handle": lambda s: s.driver.release(s.foreign),
    "release with a wrong size": lambda s: s.driver.release(Handle(s.loose.id, s.granule)),
    "map an unknown handle": lambda s: s.driver.map(s.at(3), Handle(1 << 60, s.granule)),
    "map a released handle": lambda s: s.driver.map(s.at(3), s.gone),
    "map another driver's handle": lambda s: s.driver.map(s.at(3), s.foreign),
    "map with a wrong size": lambda s: s.driver.map(s.at(3), Handle(s.loose.id, s.granule)),
    "map a mapped handle": lambda s: s.driver.map(s.at(3), s.open),
    "map over a mapping": lambda s: s.driver.map(s.at(0), s.loose),
    "map over the end of a mapping": lambda s: s.driver.map(s.at(2), s.loose),
    "map at a wrong multiple": lambda s: s.driver.map(s.at(3, 1), s.loose),
    "map past the end of the range": lambda s: s.driver.map(s.at(5), s.loose),
    "map outside any range": lambda s: s.driver.map(s.granule, s.loose),
    "map at null": lambda s: s.driver.map(0, s.loose),
    "access nothing": lambda s: s.driver.set_access(s.base, 0),
    "access what is not mapped": lambda s: s.driver.set_access(s.at(3), s.granule),
    "access a part of a mapping": lambda s: s.driver.set_access(s.at(0), s.granule),
    "access past a mapping": lambda s: s.driver.set_access(s.at(2), 2 * s.granule),
    "access from the middle": lambda s: s.driver.set_access(s.at(1), 2 * s.granule),
    "access at a wrong multiple": lambda s: s.driver.set_access(s.at(2, 8), s.granule),
    "unmap what is not mapped": lambda s: s.driver.unmap(s.at(4), s.granule),
    "unmap a part": lambda s: s.driver.unmap(s.at(0), s.granule),
    "unmap the tail": lambda s: s.driver.unmap(s.at(1), s.granule),
    "unmap two mappings at once": lambda s: s.driver.unmap(s.at(0), 3 * s.granule),
    "unmap nothing": lambda s: s.driver.unmap(s.at(0), 0),
    "zero nothing": lambda s: s.driver.zero(s.at(0), 0),
    "zero what is not mapped": lambda s: s.driver.zero(s.at(4), 1),
    "zero without access": lambda s: s.driver.zero(s.at(2), 1),
    "zero past the access": lambda s: s.driver.zero(s.at(0), 2 * s.granule + 1),
    "zero a size that wraps round": lambda s: s.driver.zero(s.at(0), (1 << 64) - 1),
}


def make_scene(subject: Subject, other: Driver) -> Scene:
    driver, granule = subject.driver, subject.granule
    base = driver.reserve(6 * granule)
    scene = Scene(
        driver=driver,
        base=base,
        granule=granule,
        open=subject.filled(base, 2, 0x5A),
        shut=driver.create(granule),
        loose=driver.create(2 * granule),
        gone=driver.create(granule),
        foreign=other.create(granule),
    )
    driver.map(scene.at(2), scene.shut)
    driver.release(scene.gone)
    return scene


def check_unchanged(subject: Subject, scene: Scene) -> None:
    assert scene.driver.held_bytes() == 5 * scene.granule
    assert subject.readable(scene.base, 6 * scene.granule) == 2 * scene.granule
    assert subject.is_filled(scene.base, 2 * scene.granule, 0x5A)


def check_usable(subject: Subject, scene: Scene) -> None:
    """Nothing but what the scene has is mapped, reserved or created, and all of it works."""
    driver, granule = scene.driver, scene.granule
    subject.map_open(scene.at(3), scene.loose)
    driver.set_access(scene.at(2), granule)
    assert subject.readable(scene.base, 6 * granule) == 5 * granule
    for start, handle in ((0, scene.open), (2, scene.shut), (3, scene.loose)):
        driver.unmap(scene.at(start), handle.size)
        driver.release(handle)
    driver.unreserve(scene.base, 6 * granule)
    assert driver.held_bytes() == 0


def misused(scene: Scene, misuse: Misuse) -> None:
    with pytest.raises(InvalidArgument):
        misuse(scene)


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES.keys())
def test_misuse_is_refused_and_changes_nothing(small_subject: Subject, misuse: Misuse) -> None:
    other = HostDriver(small_subject.granule)
    scene = make_scene(small_subject, other)
    misused(scene, misuse)
    check_unchanged(small_subject, scene)
    check_usable(small_subject, scene)


def test_all_misuse_in_a_row_changes_nothing(subject: Subject) -> None:
    other = HostDriver(subject.granule)
    scene = make_scene(subject, other)
    for misuse in MISUSES.values():
        misused(scene, misuse)
    check_unchanged(subject, scene)
    check_usable(subject, scene)


def test_threads_work_on_disjoint_ranges(subject: Subject) -> None:
    threads, rounds, most = (2, 4, 1) if subject.is_large else (8, 12, 3)
    granule = subject.granule
    base = subject.driver.reserve(threads * most * granule)
    errors: list[BaseException] = []

    def work(lane: int) -> None:
        try:
            for turn in range(rounds):
                granules = 1 + (lane + turn) % most
                at = base + lane * most * granule
                handle = subject.driver.create(granules * granule)
                subject.map_zeroed(at, handle)
                assert subject.is_filled(at, handle.size, 0)
                subject.fill(at, handle.size, lane + 1)
                subject.driver.unmap(at, handle.size)
                subject.map_open(at, handle)
                assert subject.is_filled(at, handle.size, lane + 1)
                subject.driver.zero(at, handle.size)
                subject.driver.unmap(at, handle.size)
                subject.driver.release(handle)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=work, args=(lane,)) for lane in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert errors == []
    assert subject.driver.held_bytes() == 0
    assert subject.readable(base, threads * most * granule) == 0
    subject.driver.unreserve(base, threads * most * granule)
