"""Pairs of engines, each on one budget, answer as upstream does. Started by ci/demo.sh.

python run.py FOLDER VLLM SGLANG PNG: a folder of its own, which the caller removes; the engines'
environments; where the memory curve goes, with its figures beside it, and that of the mixed pair
under the same name with -mixed. Must lead its process group.
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
    MIXED,
    MODELS,
    PAIRS,
    SAME,
    Pair,
    Places,
)
from servers import Failed
from sharing import share
from workload import save, workload

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
    for model in MODELS:
        shape = TinyLlama(
            layers=LAYERS,
            hidden=HIDDEN,
            heads=HEADS,
            kv_heads=HEADS,
            head_dim=HEAD_DIM,
            max_positions=MAX_MODEL_LEN,
            seed=model.seed,
            std=0.1,
            letters=model.letters,
        )
        make_tiny_llama(places.model(model.name), shape)


def demo(
    processes: Processes, places: Places, progress: Progress, outcomes: dict[Pair, Outcome]
) -> None:
    """Fills in the outcomes. Raises Failed."""
    say(f"making {len(MODELS)} small models")
    with progress.waiting("the models"):
        make_models(places)
    save(workload(), places.workload)
    say(f"unpatched vLLM starts: with a fixed {HALF // MIB} MiB, then to compute all its answers")
    vllm = Upstream(processes, places, "vllm")
    refusal = vllm.refusal(progress)
    reason = refusal.partition(". ")[0]  # advice follows
    say(f"a fixed {HALF // MIB} MiB each: {reason or 'NOT refused'}")
    for outcome in outcomes.values():
        outcome.refusal = refusal
    say(f"beside it, starting two `vllm serve` that share {CAPACITY // MIB} MiB")
    asyncio.run(share(processes, places, outcomes[SAME], progress, [vllm]))
    say(f"the mixed pair: `vllm serve` and SGLang's server share {CAPACITY // MIB} MiB")
    say("beside them, unpatched SGLang computes all its answers")
    sglang = Upstream(processes, places, "sglang")
    asyncio.run(share(processes, places, outcomes[MIXED], progress, [vllm, sglang]))


def drawing(png: Path, pair: Pair) -> Path:
    return png if pair == SAME else png.with_stem(f"{png.stem}-{pair.name}")


def keep_curve(outcome: Outcome, png: Path) -> None:
    """Raises Failed."""
    try:
        curve.save(outcome.curve(), png.with_suffix(".json"))
        curve.draw(outcome.curve(), png)
    except (ValueError, OSError) as error:
        raise Failed(f"{png} cannot be drawn: {error}") from error


def tell(outcome: Outcome, png: Path) -> None:
    print("\n" + "\n".join(outcome.lines()), flush=True)
    print(f"memory curve: {png} (its figures: {png.with_suffix('.json').name})", flush=True)
    for problem in outcome.problems():
        print(f"demo: FAILED: {problem}", flush=True)


def main() -> int:
    root, vllm, sglang, png = map(Path, sys.argv[1:])
    places = Places(root, {"vllm": vllm, "sglang": sglang})
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    processes = Processes(places.root, environment(places))
    outcomes = {pair: Outcome(pair) for pair in PAIRS}
    try:
        with Progress() as progress:
            demo(processes, places, progress, outcomes)
        for pair, outcome in outcomes.items():
            keep_curve(outcome, drawing(png, pair))
    except Failed as failure:
        say(f"FAILED: {failure}")
        return 1
    finally:
        processes.end()
    for pair, outcome in outcomes.items():
        tell(outcome, drawing(png, pair))
    failed = any(outcome.problems() for outcome in outcomes.values())
    print("FAILED" if failed else "OK")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
