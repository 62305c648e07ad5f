"""Scripts of what happens, with all that the machines make of it.

A line `> COMMAND` is what happens; the lines below it, up to the next, are what follows from it.
`PYTHONPATH=tests python -m txn.traces --rewrite` writes what follows anew: read the diff then.

    > world RANKS PAGE...        pages are virtual or owned
    > begin grow|shrink PAGE...
    > deliver [WHICH]            all messages on their way whose line holds WHICH, in their order;
    > lose [WHICH]               the first one; `deliver! WHICH` delivers and keeps it
    > works RANK [without PAGE...] [losing PAGE...]
    > fence RANK
    > tick [TIMES]
    > dies RANK                  and `> gone RANK`: that is found out
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from kvcached_core.txn import Terms
from txn.simulation import Packet, Simulation, shown

FOLDER = Path(__file__).with_name("traces")
TERMS = Terms(retry=2, grow=5, shrink=8, decide=10)


class Script:
    """Runs commands; each returns the lines that follow from it."""

    def __init__(self) -> None:
        self._sim = Simulation(1, (), TERMS)
        self._seen: set[str] = set()

    def run(self, command: str) -> list[str]:
        name, *words = command.split()
        run: Callable[..., list[Packet]] = getattr(self, "_" + name.replace("!", "_again"))
        packets = run(*words)
        return [*map(str, packets), *self._news()]

    def _world(self, ranks: str, *pages: str) -> list[Packet]:
        self._sim = Simulation(int(ranks), pages, TERMS)  # type: ignore[arg-type]
        self._seen = set(self._state())
        return []

    def _begin(self, kind: str, *pages: str) -> list[Packet]:
        return self._sim.begin(kind, tuple(map(int, pages)))

    def _deliver(self, *which: str) -> list[Packet]:
        chosen = [packet for packet in self._sim.flight if " ".join(which) in str(packet)]
        assert chosen, f"nothing to deliver of {which}: {[*map(str, self._sim.flight)]}"
        return [new for packet in chosen for new in self._sim.deliver(packet)]

    def _deliver_again(self, *which: str) -> list[Packet]:
        return self._sim.deliver(self._first(which), keep=True)

    def _lose(self, *which: str) -> list[Packet]:
        self._sim.lose(self._first(which))
        return []

    def _works(self, rank: str, *words: str) -> list[Packet]:
        work = self._sim.running(int(rank))[0]
        pages: dict[str, list[int]] = {"without": [], "losing": []}
        key = ""
        for word in words:
            if word in pages:
                key = word
            else:
                pages[key].append(int(word))
        asked = getattr(work, "pages", ())
        held = {*asked}.difference(pages["without"], pages["losing"])
        return self._sim.work(int(rank), work, held, pages["losing"])

    def _fence(self, rank: str) -> list[Packet]:
        return self._sim.fence(int(rank))

    def _tick(self, times: str = "1") -> list[Packet]:
        return [packet for _ in range(int(times)) for packet in self._sim.tick()]

    def _dies(self, rank: str) -> list[Packet]:
        self._sim.die(int(rank))
        return []

    def _gone(self, rank: str) -> list[Packet]:
        return self._sim.found_gone(int(rank))

    def _first(self, which: tuple[str, ...]) -> Packet:
        found = [packet for packet in self._sim.flight if " ".join(which) in str(packet)]
        assert found, f"no {which} in {[*map(str, self._sim.flight)]}"
        return found[0]

    def _news(self) -> list[str]:
        state = list(self._state())
        news = [line for line in state if line not in self._seen]
        self._seen = set(state)
        return news

    def _state(self) -> Iterator[str]:
        world = self._sim.world
        for at, rank in enumerate(world.ranks):
            for work in self._sim.running(at):
                yield f"rank {at} is at work: {shown(work)}"
            yield f"rank {at}: pages {' '.join(rank.pages)}" if rank.alive else f"rank {at}: dead"
        yield f"told: {' '.join(world.told)}"
        if self._sim.failure:
            yield f"failed: {self._sim.failure}"


def replay(text: str) -> str:
    """The script with what follows as it is now."""
    script, lines = Script(), []
    for line in text.splitlines():
        if line.startswith("> "):
            lines += [line, *(f"  {each}" for each in script.run(line[2:]))]
        elif not line.startswith("  "):
            lines.append(line)
    return "\n".join(lines) + "\n"


def scripts() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit(__doc__)
    for path in scripts():
        path.write_text(replay(path.read_text()))
