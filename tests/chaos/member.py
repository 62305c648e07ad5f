"""A server that forks members of a budget: each grows, hands out, takes back and retires until it
is killed. `member.py DIRECTORY CAPACITY`; a line `NAME SEED` starts one, the answer is its pid.

The server opens nothing before it forks, so a member has all files of its own.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from chaos.engine import DEVICE, PAGE, Engine
from kvcached_core.budget import Budget, Segment, create_segment

PAGES, FLOOR_PAGES = 16, 2
# As the watcher of a serving engine does.
REAP_S = 0.5


def live(directory: Path, capacity: int, name: str, seed: int) -> None:
    rng = random.Random(seed)
    budget = Budget.open(str(directory), DEVICE, capacity, 0)
    segment = Segment.open(str(create_segment(directory, name, PAGES, 1)))
    engine = Engine(budget, segment, name, PAGES, capacity, FLOOR_PAGES * PAGE)
    reaped = time.monotonic()
    while True:
        step(engine, rng)
        if time.monotonic() - reaped > REAP_S:
            budget.reap()
            reaped = time.monotonic()


def step(engine: Engine, rng: random.Random) -> None:
    engine.settle()
    act = rng.randrange(8)
    if act < 3:
        engine.hand_out(rng.randint(1, 24))
    elif act < 5:
        blocks = rng.sample(sorted(engine.held), rng.randint(0, len(engine.held)))
        engine.take_back(blocks, cache=act == 3)
    elif act == 5:
        engine.shrink(rng.randint(0, 4))
    elif act == 6 and engine.cached:
        engine.hit(rng.choice(sorted(engine.cached)))
    else:
        engine.publish()
        engine.shrink_for_others()
    if rng.randrange(40) == 0:
        engine.quiet()
        engine.check()
        engine.check_stamps()


def serve(directory: Path, capacity: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes the dead away
    for line in sys.stdin:
        name, seed = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                live(directory, capacity, name, int(seed))
            except BaseException:
                (directory / f"{name}.died").write_text(traceback.format_exc())
            os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
