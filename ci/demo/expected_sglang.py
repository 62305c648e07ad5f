"""What SGLang does, unpatched: whatever SGLang is first on PYTHONPATH.

python expected_sglang.py FOLDER: reads the workload there and writes the text of every answer.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from arguments import SGLANG, SGLANG_TOKENS
from scene import Places
from workload import Answers, Key, Request, by_model, load, save_answers


def answer(places: Places, model: str, asked: list[tuple[Key, Request]]) -> Answers:
    from sglang import Engine  # noqa: PLC0415 (after the check in main)

    path = str(places.model(model))
    engine = Engine(model_path=path, max_total_tokens=SGLANG_TOKENS, **SGLANG)
    sampling = [
        {
            "temperature": 0,
            "max_new_tokens": request.max_tokens,
            "ignore_eos": True,
            "skip_special_tokens": False,
        }
        for _, request in asked
    ]
    outputs = engine.generate([r.prompt for _, r in asked], sampling)
    engine.shutdown()
    return {key: output["text"] for (key, _), output in zip(asked, outputs, strict=True)}


def main() -> None:
    places = Places(Path(sys.argv[1]))
    if importlib.util.find_spec("sglang.srt.mem_cache.kv_storage") is not None:
        sys.exit("expected_sglang.py: this SGLang is the fork; put upstream's first on PYTHONPATH")
    answers: Answers = {}
    for model, asked in by_model(load(places.workload), "sglang").items():
        answers |= answer(places, model, asked)
    save_answers(answers, places.expected("sglang"))


if __name__ == "__main__":
    main()
