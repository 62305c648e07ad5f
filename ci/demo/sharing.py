"""A pair on its budget: started, asked in bursts, watched, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp
from kinds import start_elastic
from memory import Sampler
from processes import Processes, wait_for
from progress import Progress, bars, say, show_live
from reference import Upstream
from report import Outcome, Played
from scene import MIB, Places
from servers import Server
from workload import Answer, Answers, Burst, bursts

_LIVE_EVERY_S = 0.2
# Between bursts: what a curve needs to show who holds what when nothing happens.
_PAUSE_S = 1
# SGLang removes it never, however it ends; the demo does in the end.
_UPSTREAM_LEAVES = "sglang_loads_"


async def share(
    processes: Processes,
    places: Places,
    outcome: Outcome,
    progress: Progress,
    upstreams: Sequence[Upstream],
) -> None:
    """Starts both engines, plays the bursts when upstream has answered, stops the engines."""
    pair = outcome.pair
    servers = {e.name: start_elastic(processes, places, pair, e) for e in pair.engines}
    # A server closes connections that idle for some seconds, and might just as they are used again.
    once = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=once) as session:
        ready = (_ready(server, session, progress) for server in servers.values())
        awaited = (upstream.answers(progress) for upstream in upstreams)
        found, _ = await asyncio.gather(asyncio.gather(*awaited), asyncio.gather(*ready))
        expected: Answers = {key: answer for part in found for key, answer in part.items()}
        processes.note_shared_memory()
        sampler = Sampler(places.budget, pair)
        outcome.capacity = sampler.capacity
        say(f"both serve, answers known; mapped while idle: {sum(sampler.now()) // MIB} MiB")
        await asyncio.sleep(_PAUSE_S)
        for i, burst in enumerate(bursts(pair)):
            wanted = [expected[pair.name, i, j] for j in range(len(burst.requests))]
            outcome.played.append(await _play(burst, wanted, servers, sampler, session))
        again = [f"{name} {await server.restarts(session)}" for name, server in servers.items()]
        say(f"requests that had to start again for want of memory: {', '.join(again)}")
    say("stopping both with SIGTERM")
    _stop(processes, places, outcome, servers, sampler)


def _is_ours(path: Path) -> bool:
    return not path.name.startswith(_UPSTREAM_LEAVES)


async def _ready(server: Server, session: aiohttp.ClientSession, progress: Progress) -> None:
    with progress.waiting(f"server {server.name}"):
        await server.wait_until_ready(session)
    say(f"server {server.name} serves")


async def _play(
    burst: Burst,
    expected: list[Answer],
    servers: dict[str, Server],
    sampler: Sampler,
    session: aiohttp.ClientSession,
) -> Played:
    names, begun = tuple(servers), sampler.seconds()
    answers = await _watched(
        asyncio.gather(*(servers[r.engine].complete(session, r) for r in burst.requests)),
        lambda: show_live(burst.label, names, sampler.now(), sampler.capacity),
    )
    seconds, samples = sampler.seconds() - begun, sampler.since(begun)
    await asyncio.sleep(_PAUSE_S)
    right = sum(found == wanted for found, wanted in zip(answers, expected, strict=True))
    busy = tuple(i for i, name in enumerate(names) if name in {r.engine for r in burst.requests})
    played = Played(burst.label, busy, len(answers), right, begun, seconds, samples, sampler.now())
    peaks = bars(names, played.peaks, sampler.capacity)
    say(f"  {burst.label:8}  {peaks} at most; {right} of {len(answers)} right, {seconds:.1f} s")
    return played


async def _watched(work: Awaitable[list[Answer]], look: Callable[[], None]) -> list[Answer]:
    """The result of `work`; looks again and again while it lasts."""
    task = asyncio.ensure_future(work)
    while not task.done():
        look()
        await asyncio.wait([task], timeout=_LIVE_EVERY_S)
    return task.result()


def _stop(
    processes: Processes,
    places: Places,
    outcome: Outcome,
    servers: dict[str, Server],
    sampler: Sampler,
) -> None:
    outcome.told_to_end = sampler.seconds()
    for server in servers.values():
        server.terminate()
    outcome.stopped = {name: server.ended() for name, server in servers.items()}
    sampler.stop()
    outcome.samples = sampler.samples()
    wait_for(lambda: not processes.living(), 10)
    outcome.left_behind = [
        *(f"process {p.pid}" for p in processes.living()),
        *(str(path) for path in processes.left_shared_memory() if _is_ours(path)),
        *(f"{member} in the budget's record" for member in sampler.members()),
        *(str(path) for path in places.budget.glob("instances/*")),
    ]
