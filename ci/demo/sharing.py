"""Two engines on one budget: started, asked in bursts, watched, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
from memory import Sampler
from processes import Processes, wait_for
from progress import Progress, bars, say, show_live
from reference import Upstream
from report import Outcome, Played
from scene import MIB, MODELS, Places
from servers import Server, start_elastic
from workload import Burst, bursts

_LIVE_EVERY_S = 0.2
# Between bursts: what a curve needs to show who holds what when nothing happens.
_PAUSE_S = 1


async def share(
    processes: Processes,
    places: Places,
    outcome: Outcome,
    progress: Progress,
    upstream: Upstream,
) -> None:
    """Starts both engines, plays the bursts when upstream has answered, stops the engines."""
    servers = {model: start_elastic(processes, places, model) for model in MODELS}
    async with aiohttp.ClientSession() as session:
        ready = (_ready(server, session, progress) for server in servers.values())
        expected, _ = await asyncio.gather(upstream.answers(progress), asyncio.gather(*ready))
        processes.note_shared_memory()
        sampler = Sampler(places.budget)
        outcome.capacity = sampler.capacity
        say(f"both serve, answers known; mapped while idle: {sum(sampler.now()) // MIB} MiB")
        await asyncio.sleep(_PAUSE_S)
        for burst, wanted in zip(bursts(), expected, strict=True):
            outcome.played.append(await _play(burst, wanted, servers, sampler, session))
        preempted = [f"{m} {await servers[m].preemptions(session)}" for m in MODELS]
        say(f"requests that had to start again for want of memory: {', '.join(preempted)}")
    say("stopping both with SIGTERM")
    _stop(processes, places, outcome, servers, sampler)


async def _ready(server: Server, session: aiohttp.ClientSession, progress: Progress) -> None:
    with progress.waiting(f"server {server.name}"):
        await server.wait_until_ready(session)
    say(f"server {server.name} serves")


async def _play(
    burst: Burst,
    expected: list[list[int]],
    servers: dict[str, Server],
    sampler: Sampler,
    session: aiohttp.ClientSession,
) -> Played:
    begun = sampler.seconds()
    answers = await _watched(
        asyncio.gather(*(servers[r.model].complete(session, r) for r in burst.requests)),
        lambda: show_live(burst.label, sampler.now(), sampler.capacity),
    )
    seconds, samples = sampler.seconds() - begun, sampler.since(begun)
    await asyncio.sleep(_PAUSE_S)
    right = sum(found == wanted for found, wanted in zip(answers, expected, strict=True))
    played = Played(burst.label, len(answers), right, begun, seconds, samples, sampler.now())
    peaks = bars(played.peaks, sampler.capacity)
    say(f"  {burst.label:7}  {peaks} at most; {right} of {len(answers)} right, {seconds:.1f} s")
    return played


async def _watched(work: Awaitable[list[list[int]]], look: Callable[[], None]) -> list[list[int]]:
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
    outcome.stopped = {model: server.ended() for model, server in servers.items()}
    sampler.stop()
    outcome.samples = sampler.samples()
    wait_for(lambda: not processes.living(), 10)
    outcome.left_behind = [
        *(f"process {p.pid}" for p in processes.living()),
        *(str(path) for path in processes.left_shared_memory()),
        *(f"{member} in the budget's record" for member in sampler.members()),
        *(str(path) for path in places.budget.glob("instances/*")),
    ]
