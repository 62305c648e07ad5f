"""offline_child.py's other engine: SGLang."""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from offline_child import serve


def run_telling_scheduler(*args: Any, **kwargs: Any) -> None:
    """SGLang's process of a scheduler, whose internal state tells the counters of its storage."""
    from sglang.srt.managers import scheduler  # noqa: PLC0415

    cls = scheduler.Scheduler
    state = cls.get_internal_state

    def telling(it: Any, request: Any) -> Any:
        from sglang.srt.mem_cache.kv_storage import get_kv_storage  # noqa: PLC0415

        output = state(it, request)
        found = {"passes": it.forward_ct}
        if report := getattr(get_kv_storage(), "report", None):
            found |= {key: n for key, n in report().items() if isinstance(n, int)}
        output.internal_state["counters"] = found
        return output

    cls.get_internal_state = telling
    scheduler.run_scheduler_process(*args, **kwargs)


class Sglang:
    """See offline_child.Engine. Its scheduler is a process of its own."""

    def __init__(self, command: dict[str, Any]) -> None:
        # Only this process has an engine.
        from sglang.srt.entrypoints.engine import Engine as Upstream  # noqa: PLC0415

        from kvcached_core.provenance.sglang import provenance  # noqa: PLC0415 - imports SGLang

        class Engine(Upstream):  # type: ignore[misc]
            run_scheduler_process_func = staticmethod(run_telling_scheduler)

        began = time.monotonic()
        self._vocabulary = command["vocabulary"]
        self._engine = Engine(model_path=command["model"], **command["engine"])
        seconds = round(time.monotonic() - began, 1)
        tokens = self._engine.get_server_info()["max_total_num_tokens"]
        self.about = {"start_s": seconds, "tokens": tokens, "build": provenance()}

    def generate(self, requests: int, prompt: int, output: int, seed: int) -> dict[str, Any]:
        draw = random.Random(seed)
        least, end = self._vocabulary // 128, self._vocabulary * 3 // 4  # no special tokens
        prompts = [[draw.randrange(least, end) for _ in range(prompt)] for _ in range(requests)]
        sampling = {"max_new_tokens": output, "temperature": 0, "ignore_eos": True}
        began = time.monotonic()
        answers = self._engine.generate(input_ids=prompts, sampling_params=sampling)
        seconds = time.monotonic() - began
        lengths = {len(answer["output_ids"]) for answer in answers}
        if len(answers) != requests or lengths != {output}:
            raise RuntimeError(f"{len(answers)} answers of {sorted(lengths)} tokens")
        retracted = sum(answer["meta_info"].get("num_retractions", 0) for answer in answers)
        rate = round(requests * (prompt + output) / seconds)
        return {"seconds": round(seconds, 3), "tokens_per_s": rate, "retractions": retracted}

    def counters(self) -> dict[str, Any]:
        try:
            state = self._engine.get_server_info()["internal_states"][0]
            return {"counters": state["counters"]}
        except Exception as error:
            return {"counters": None, "why": f"{type(error).__name__}: {error}"[:500]}


if __name__ == "__main__":
    sys.exit(serve(Sglang))
