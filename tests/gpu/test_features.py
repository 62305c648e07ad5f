"""Drafts, short of memory: static's tokens.

vLLM's second runner refuses drafts by n-gram and by a model, and those by n-gram are not scheduled
ahead. A draft model's and an EAGLE head's own layers have their keys and values in the same blocks;
with the head's layer a block is no whole granules of a GPU, so that its pages share some.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.processes import Engines, Run
from gpu.compare import compare_runs
from gpu.conftest import Note
from gpu.load import ON_GPU, SHAPE, block_bytes, job, tight
from support.tiny_model import make_draft, make_eagle_head

pytestmark = [pytest.mark.gpu]

COUNT = 500
DRAFT_LAYERS = 16
TRITON = {"num_speculative_tokens": 3, "attention_backend": ON_GPU["attention_backend"]}


@dataclass(frozen=True)
class Drafts:
    runner: str
    engine: dict[str, Any]
    block: int = block_bytes()

    def job(self) -> dict[str, Any]:
        return job(self.runner, COUNT, **self.engine)


def ngram(engines: Engines, folder: Path) -> Drafts:
    lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 2, "num_speculative_tokens": 3}
    drafts = {"method": "ngram", **lookup}
    return Drafts("first", {"speculative_config": drafts, "async_scheduling": False})


def draft_model(engines: Engines, folder: Path) -> Drafts:
    made = make_draft(folder / "draft", engines.model, DRAFT_LAYERS)
    drafts = {"method": "draft_model", "model": str(made), **TRITON}
    return Drafts("first", {"speculative_config": drafts}, block_bytes(SHAPE.layers + DRAFT_LAYERS))


def eagle(engines: Engines, folder: Path) -> Drafts:
    made = make_eagle_head(folder / "eagle", engines.model)
    drafts = {"method": "eagle", "model": str(made), **TRITON}
    return Drafts("second", {"speculative_config": drafts}, block_bytes(SHAPE.layers + 1))


MAKE: list[Callable[[Engines, Path], Drafts]] = [ngram, draft_model, eagle]


@pytest.mark.parametrize("make", MAKE, ids=lambda make: make.__name__)
def test_drafts_give_statics_tokens(
    engines: Engines, note: Note, tmp_path: Path, make: Callable[[Engines, Path], Drafts]
) -> None:
    name, given = make.__name__, make(engines, tmp_path)
    plain: Run = engines.run(f"static-{name}", given.job())
    elastic = engines.elastic(f"tight-{name}", tight(given.block), **given.job())
    found, metrics = compare_runs(plain, elastic), elastic["metrics"]
    note(
        f"{name}, {given.runner} runner",
        **found.summary(),
        preemptions=metrics["vllm:num_preemptions"],
        drafts={key: value for key, value in metrics.items() if "spec_decode_num" in key},
        seconds={"static": plain["run_seconds"], "elastic": elastic["run_seconds"]},
    )
    assert metrics["vllm:num_preemptions"] > 0
    assert metrics["vllm:spec_decode_num_accepted_tokens"] > 0
    found.check()
