"""What upstream does, unpatched: whatever vLLM is first on PYTHONPATH.

python expected.py FOLDER: writes there why an engine with a fixed half does not start, then reads
the workload and writes the token ids of every answer, burst by burst. One process does both, since
importing vLLM takes longer than either.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from scene import CAPACITY, HALF, MODELS, Places, engine_arguments
from workload import Burst, load

Answers = list[list[list[int]]]  # burst, request, token


def start(places: Places, model: str, memory: int) -> Any:
    """An engine with that much memory for its KV cache. Raises ValueError if it is too little."""
    from vllm import LLM  # noqa: PLC0415 (after the check in main)

    arguments: dict[str, Any] = engine_arguments()
    return LLM(str(places.model(model)), kv_cache_memory_bytes=memory, **arguments)


def refusal(places: Places) -> str:
    """Why an engine with half of the memory does not start; empty if it does, or else fails."""
    try:
        start(places, MODELS[-1], HALF)
    except ValueError as error:
        return str(error) if "KV cache is needed" in str(error) else ""
    return ""


def answer(places: Places, model: str, bursts: list[Burst]) -> dict[tuple[int, int], list[int]]:
    """The answers of one model's requests, by burst and request."""
    from vllm import SamplingParams  # noqa: PLC0415

    engine = start(places, model, CAPACITY)
    asked = [
        ((i, j), request)
        for i, burst in enumerate(bursts)
        for j, request in enumerate(burst.requests)
        if request.model == model
    ]
    sampling = [
        SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
        for _, request in asked
    ]
    outputs = engine.generate([r.prompt for _, r in asked], sampling, use_tqdm=False)
    return {key: list(o.outputs[0].token_ids) for (key, _), o in zip(asked, outputs, strict=True)}


def main() -> None:
    places = Places(Path(sys.argv[1]))
    if importlib.util.find_spec("vllm.v1.kv_storage") is not None:
        sys.exit("expected.py: the vLLM here is the fork; put upstream's first on PYTHONPATH")
    draft = places.refusal.with_suffix(".new")
    draft.write_text(refusal(places))
    draft.rename(places.refusal)  # whoever waits for it finds it whole
    bursts = load(places.workload)
    found: dict[tuple[int, int], list[int]] = {}
    for model in MODELS:
        found |= answer(places, model, bursts)
    answers: Answers = [
        [found[i, j] for j in range(len(burst.requests))] for i, burst in enumerate(bursts)
    ]
    places.expected.write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
