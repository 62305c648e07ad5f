"""What vLLM does, unpatched: whatever vLLM is first on PYTHONPATH.

python expected_vllm.py FOLDER: writes there why an engine with a fixed half does not start, then
reads the workload and writes the token ids of every answer. One process does both, since importing
vLLM takes longer than either.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from arguments import VLLM
from scene import CAPACITY, HALF, SAME, Places
from workload import Answers, Key, Request, by_model, load, save_answers


def start(places: Places, model: str, memory: int) -> Any:
    """An engine with that much memory for its KV cache. Raises ValueError if it is too little."""
    from vllm import LLM  # noqa: PLC0415 (after the check in main)

    return LLM(str(places.model(model)), kv_cache_memory_bytes=memory, **VLLM)


def refusal(places: Places) -> str:
    """Why an engine with half of the memory does not start; empty if it does, or else fails."""
    try:
        start(places, SAME.engines[-1].model, HALF)
    except ValueError as error:
        return str(error) if "KV cache is needed" in str(error) else ""
    return ""


def answer(places: Places, model: str, asked: list[tuple[Key, Request]]) -> Answers:
    from vllm import SamplingParams  # noqa: PLC0415

    engine = start(places, model, CAPACITY)
    sampling = [
        SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
        for _, request in asked
    ]
    outputs = engine.generate([r.prompt for _, r in asked], sampling, use_tqdm=False)
    return {key: list(o.outputs[0].token_ids) for (key, _), o in zip(asked, outputs, strict=True)}


def main() -> None:
    places = Places(Path(sys.argv[1]))
    if importlib.util.find_spec("vllm.v1.kv_storage") is not None:
        sys.exit("expected_vllm.py: this vLLM is the fork; put upstream's first on PYTHONPATH")
    draft = places.refusal.with_suffix(".new")
    draft.write_text(refusal(places))
    draft.rename(places.refusal)  # whoever waits for it finds it whole
    answers: Answers = {}
    for model, asked in by_model(load(places.workload), "vllm").items():
        answers |= answer(places, model, asked)
    save_answers(answers, places.expected("vllm"))


if __name__ == "__main__":
    main()
