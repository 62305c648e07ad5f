"""Two engines share one budget and answer as upstream does. Started by ci/demo.sh.

python run.py FOLDER UPSTREAM PNG: a folder of its own, which the caller removes; where upstream's
release lies; where the memory curve goes, with its figures beside it. Must lead its process group.
Exits with 0 if all is as promised, else with 1.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[2] / "tests")]

import curve
from processes import Processes
from progress import Progress, say
from reference import Upstream
from report import Outcome
from scene import (
    CAPACITY,
    HALF,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    MAX_MODEL_LEN,
    MIB,
    MODELS,
    SEEDS,
    Places,
)
from servers import Failed
from sharing import share
from workload import bursts, save

from support.tiny_model import TinyLlama, make_tiny_llama


def environment(places: Places) -> dict[str, str]:
    """No network, no statistics, nothing written outside of the demo's folder."""
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(places.root / "cache"),
        # Compiling takes each engine 20 s at start, and eager engines do not use the result.
        "TORCHDYNAMO_DISABLE": "1",
    }


def make_models(places: Places) -> None:
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415 (takes seconds)

    disable_progress_bar()
    for name in MODELS:
        shape = TinyLlama(
            layers=LAYERS,
            hidden=HIDDEN,
            heads=HEADS,
            kv_heads=HEADS,
            head_dim=HEAD_DIM,
            max_positions=MAX_MODEL_LEN,
            seed=SEEDS[name],
            std=0.1,
        )
        make_tiny_llama(places.model(name), shape)


def demo(processes: Processes, places: Places, release: Path, progress: Progress) -> Outcome:
    outcome = Outcome()
    say(f"making two small models, {', '.join(MODELS)}")
    with progress.waiting("the models"):
        make_models(places)
    save(bursts(), places.workload)
    say(f"unpatched upstream starts: with a fixed {HALF // MIB} MiB, then to compute all answers")
    upstream = Upstream(processes, places, release)
    outcome.refusal = upstream.refusal(progress)
    reason = outcome.refusal.partition(". ")[0]  # advice follows
    say(f"a fixed {HALF // MIB} MiB each: {reason or 'NOT refused'}")
    say(f"beside it, starting two `vllm serve` that share {CAPACITY // MIB} MiB")
    asyncio.run(share(processes, places, outcome, progress, upstream))
    return outcome


def keep_curve(outcome: Outcome, png: Path) -> None:
    """Raises Failed."""
    try:
        curve.save(outcome.curve(), png.with_suffix(".json"))
        curve.draw(outcome.curve(), png)
    except (ValueError, OSError) as error:
        raise Failed(f"{png} cannot be drawn: {error}") from error


def main() -> int:
    places, png = Places(Path(sys.argv[1])), Path(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    processes = Processes(places.root, environment(places))
    try:
        with Progress() as progress:
            outcome = demo(processes, places, Path(sys.argv[2]), progress)
        keep_curve(outcome, png)
    except Failed as failure:
        say(f"FAILED: {failure}")
        return 1
    finally:
        processes.end()
    print("\n" + "\n".join(outcome.lines()), flush=True)
    print(f"memory curve: {png} (its figures: {png.with_suffix('.json').name})", flush=True)
    for problem in (problems := outcome.problems()):
        print(f"demo: FAILED: {problem}", flush=True)
    print("FAILED" if problems else "OK")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
