"""One request at a time: the same batches in static and in elastic, so the same tokens.

For what rounds so coarsely that any other batch changes answers. A page is as few blocks as fit
its granules, none is kept that no request uses, and requests are of many lengths: pages come and go
from each to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.processes import Engines, Run
from gpu.conftest import Note
from gpu.load import SHAPE, job
from support.tiny_model import make_adapter

pytestmark = [pytest.mark.gpu]

COUNT = 300
MOST_TOKENS = 12
ALONE = {
    "max_num_seqs": 1,
    "enable_prefix_caching": False,
    "compilation_config": {"cudagraph_capture_sizes": [1]},
}
CHURN = {"capacity": "64GiB", "prefix_bound": "0B", "reserve_pages": 0}
# vLLM's kernels for adapters take halves only, and add parts up in any order unless told not to.
IN_ORDER = {"VLLM_BATCH_INVARIANT": "1"}


@dataclass(frozen=True)
class Feature:
    runner: str
    engine: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    adapters: list[str | None] = field(default_factory=lambda: [None])
    most_tokens: int = MOST_TOKENS

    def job(self) -> dict[str, Any]:
        made = job(self.runner, COUNT, **{**ALONE, **self.engine})
        made["environment"] |= self.environment
        made |= {"adapters": self.adapters, "most_tokens": self.most_tokens}
        return {**made, "one_by_one": "max_num_seqs" in self.engine}


def fp8_first(folder: Path) -> Feature:
    return Feature("first", {"kv_cache_dtype": "fp8"})


def fp8_second(folder: Path) -> Feature:
    return Feature("second", {"kv_cache_dtype": "fp8"})


def lora(folder: Path) -> Feature:
    made = [str(make_adapter(folder / f"adapter{seed}", SHAPE, seed)) for seed in (1, 2)]
    engine = {"dtype": "bfloat16", "enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    # With room for one sequence vLLM's own start has an illegal access on a GPU, static too.
    engine |= {"max_num_seqs": 8, "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8]}}
    # Short answers: a token takes a tenth of a second so.
    return Feature("second", engine, IN_ORDER, [None, *made], most_tokens=4)


MAKE = {"fp8-first": fp8_first, "fp8-second": fp8_second, "lora": lora}


@pytest.mark.parametrize("name", MAKE)
def test_alone_every_token_is_statics(
    engines: Engines, note: Note, tmp_path: Path, name: str
) -> None:
    make: Callable[[Path], Feature] = MAKE[name]
    given = make(tmp_path)
    static: Run = engines.run(f"static-{name}", given.job())
    elastic = engines.elastic(f"alone-{name}", CHURN, **given.job())
    pairs = list(zip(static["tokens"], elastic["tokens"], strict=True))
    note(
        f"alone, {name}",
        requests=len(pairs),
        distinct=len({tuple(tokens) for tokens in static["tokens"]}),
        different=sum(theirs != ours for theirs, ours in pairs),
        seconds={"static": static["run_seconds"], "elastic": elastic["run_seconds"]},
    )
    if len(given.adapters) > 1:
        _check_each_adapter_counts(static["tokens"])
    assert len({tuple(tokens) for tokens in static["tokens"]}) > COUNT // 2
    assert all(theirs == ours for theirs, ours in pairs)


def _check_each_adapter_counts(tokens: list[list[int]]) -> None:
    """The same prompt, without an adapter and with each of two, has three answers."""
    triples = list(zip(tokens[0::3], tokens[1::3], tokens[2::3], strict=False))
    different = sum(len({tuple(answer) for answer in triple}) == 3 for triple in triples)
    assert different > len(triples) // 2
