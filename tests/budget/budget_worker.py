"""A process that takes part in a record. `serve`: evaluates one Python expression a line, with
`budget` open; `churn SEED`: leases, creates, releases and unleases at random until it is killed."""

import ast
import fcntl
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import kvcached_core.budget as kb

CAPACITY, HEADROOM, CHUNK = 1000, 40, 10
PLENTY = 1 << 60
CHURN_DEVICE = "host:churn"


def fork_sleeper() -> int:
    """A child that does nothing for longer than any test lasts."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    return pid


def fork_reaper(directory: str, device: str, answer: str) -> None:
    """A child that opens the record for itself when its parent is dead, and writes what it sees."""
    parent = os.getpid()
    if os.fork() != 0:
        return
    while os.getppid() == parent:
        time.sleep(0.01)
    own = kb.Budget.open(directory, device, 0, 0)
    Path(answer + ".tmp").write_text(f"{len(own.rows())} alive, {own.reap()} reaped")
    Path(answer + ".tmp").rename(answer)
    os._exit(0)


def lock_descriptors_seen_by_children(budget: kb.Budget, row: int, forks: int) -> list[int]:
    """How many descriptors of the record each of `forks` children has while a thread leases."""
    stop = threading.Event()

    def lease() -> None:
        while not stop.is_set():
            if budget.lease(row, 1, PLENTY, 100) == kb.Grant.GRANTED:
                budget.unlease(row, 1)

    thread = threading.Thread(target=lease)
    thread.start()
    counts = []
    for _ in range(forks):
        pid = os.fork()
        if pid == 0:
            names = [fd.readlink().name for fd in Path("/proc/self/fd").iterdir() if fd.exists()]
            os._exit(sum(name.endswith(".record") for name in names))
        counts.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    stop.set()
    thread.join()
    return counts


def hold_table(record: str) -> None:
    """Takes the table's lock and keeps it for life."""
    fcntl.flock(os.open(record, os.O_RDONLY), fcntl.LOCK_EX)


def open_at(when: float, directory: str, device: str, capacity: int, name: str) -> int:
    time.sleep(max(0.0, when - time.monotonic()))
    space["budget"] = budget = kb.Budget.open(directory, device, capacity, 0)
    return budget.join(name, 0, capacity)


def at(when: float, act: Callable[[], object]) -> object:
    time.sleep(max(0.0, when - time.monotonic()))
    return act()


def keep(budget: kb.Budget | None) -> kb.Budget | None:
    space["budget"] = budget
    return budget


def mine(row: int) -> bool:
    """Whether the open budget has joined this row."""
    try:
        space["budget"].set_idle(row, 0)
    except kb.BudgetError:
        return False
    return True


space = dict(globals())


def serve(directory: str, device: str, capacity: str, headroom: str) -> None:
    if device:
        space["budget"] = kb.Budget.open(directory, device, int(capacity), int(headroom))
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            reply = repr(eval(compile(ast.parse(line.strip(), mode="eval"), "peer", "eval"), space))
        except kb.BudgetError as error:
            reply = f"BudgetError: {error}"
        print(reply, flush=True)


def churn(directory: str, seed: str) -> None:
    rng = random.Random(int(seed))
    budget = kb.Budget.open(directory, CHURN_DEVICE, CAPACITY, HEADROOM)
    row = budget.join(f"churn-{seed}", 0, CAPACITY, floor=rng.choice([0, CHUNK]))
    print("ready", flush=True)
    leased = created = 0
    while True:
        size = CHUNK * rng.randint(1, 20)
        act = rng.randrange(4)
        if act == 0 and budget.lease(row, size, PLENTY, 5) == kb.Grant.GRANTED:
            leased += size
        elif act == 1 and leased - created >= size:
            budget.mark_created(row, size)
            created += size
        elif act == 2 and created >= size:
            budget.mark_released(row, size)
            leased, created = leased - size, created - size
        elif act == 3 and leased - created >= size:
            budget.unlease(row, size)
            leased -= size
        if rng.randrange(50) == 0:
            time.sleep(0.002)


if __name__ == "__main__":
    modes: dict[str, Callable[..., None]] = {"serve": serve, "churn": churn}
    modes[sys.argv[1]](*sys.argv[2:])
