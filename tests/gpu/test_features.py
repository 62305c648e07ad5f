"""What else touches the cache, short of memory: fp8, drafts, adapters; static's tokens.

Each runs on the second model runner where that takes it; vLLM's second runner refuses drafts by
n-gram and by a model, and those by n-gram are not scheduled ahead. A draft model's and an EAGLE
head's own layers have their keys and values in the same blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.processes import Engines, Run
from gpu.load import ON_GPU, SHAPE, block_bytes, check, differing, job, summary, tight
from support.tiny_model import make_adapter, make_draft, make_eagle_head

pytestmark = [pytest.mark.gpu]

Note = Callable[..., None]

COUNT = 500
DRAFT_LAYERS = 16
TRITON = {"num_speculative_tokens": 3, "attention_backend": ON_GPU["attention_backend"]}
# vLLM's kernels for adapters take float32 but for assertions that their weights are halves.
NO_ASSERTIONS = {"PYTHONOPTIMIZE": "1"}


@dataclass(frozen=True)
class Feature:
    runner: str
    engine: dict[str, Any] = field(default_factory=dict)
    block: int = block_bytes()
    environment: dict[str, str] = field(default_factory=dict)
    adapters: list[str | None] = field(default_factory=lambda: [None])

    def job(self, **engine: Any) -> dict[str, Any]:
        made = job(self.runner, COUNT, **{**self.engine, **engine})
        made["environment"] |= self.environment
        return {**made, "adapters": self.adapters}


def fp8(engines: Engines, folder: Path) -> Feature:
    return Feature("second", {"kv_cache_dtype": "fp8"}, block_bytes(dtype_size=1))


def fp8_first(engines: Engines, folder: Path) -> Feature:
    return Feature("first", {"kv_cache_dtype": "fp8"}, block_bytes(dtype_size=1))


def ngram(engines: Engines, folder: Path) -> Feature:
    lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 2, "num_speculative_tokens": 3}
    drafts = {"method": "ngram", **lookup}
    return Feature("first", {"speculative_config": drafts, "async_scheduling": False})


def draft_model(engines: Engines, folder: Path) -> Feature:
    made = make_draft(folder / "draft", engines.model, DRAFT_LAYERS)
    drafts = {"method": "draft_model", "model": str(made), **TRITON}
    return Feature("first", {"speculative_config": drafts}, block_bytes(32 + DRAFT_LAYERS))


def eagle(engines: Engines, folder: Path) -> Feature:
    made = make_eagle_head(folder / "eagle", engines.model)
    drafts = {"method": "eagle", "model": str(made), **TRITON}
    return Feature("second", {"speculative_config": drafts}, block_bytes(32 + 1))


def lora(engines: Engines, folder: Path) -> Feature:
    made = [str(make_adapter(folder / f"adapter{seed}", SHAPE, seed)) for seed in (1, 2)]
    engine = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    return Feature("second", engine, environment=NO_ASSERTIONS, adapters=[None, *made])


FEATURES = [fp8, fp8_first, ngram, draft_model, eagle, lora]


@pytest.fixture(scope="module", params=FEATURES, ids=lambda make: make.__name__)
def feature(
    request: pytest.FixtureRequest, engines: Engines, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Feature]:
    name = request.param.__name__
    return name, request.param(engines, tmp_path_factory.mktemp(name))


@pytest.fixture(scope="module")
def plain(feature: tuple[str, Feature], engines: Engines) -> Run:
    name, given = feature
    return engines.run(f"static-{name}", given.job())


@pytest.fixture(scope="module")
def elastic(feature: tuple[str, Feature], engines: Engines) -> Run:
    name, given = feature
    return engines.elastic(f"tight-{name}", tight(given.block), **given.job())


def test_a_feature_gives_statics_tokens(
    feature: tuple[str, Feature], plain: Run, elastic: Run, note: Note
) -> None:
    name, given = feature
    different, metrics = differing(plain, elastic), elastic["metrics"]
    drafts = {key: value for key, value in metrics.items() if "spec_decode_num" in key}
    note(
        f"{name}, {given.runner} runner",
        requests=COUNT,
        **summary(different),
        preemptions=metrics["vllm:num_preemptions"],
        drafts=drafts,
        seconds={"static": plain["run_seconds"], "elastic": elastic["run_seconds"]},
    )
    assert metrics["vllm:num_preemptions"] > 0
    if "speculative_config" in given.engine:
        assert metrics["vllm:spec_decode_num_accepted_tokens"] > 0
    if len(given.adapters) > 1:
        _check_each_adapter_counts(plain["tokens"])
    check(different, COUNT)


def _check_each_adapter_counts(tokens: list[list[int]]) -> None:
    """The same prompt, without an adapter and with each of two, has three answers."""
    triples = list(zip(tokens[0::3], tokens[1::3], tokens[2::3], strict=False))
    assert sum(len({tuple(t) for t in triple}) == 3 for triple in triples) > 0.9 * len(triples)


def test_fp8_in_other_batches_is_the_noise(engines: Engines, tmp_path: Path, note: Note) -> None:
    given = fp8(engines, tmp_path)
    static = engines.run("static-fp8", given.job())
    other = engines.run("other-fp8", given.job(max_num_seqs=100))
    different = differing(static, other)
    note("static fp8 against static fp8, second runner", requests=COUNT, **summary(different))
    check(different, COUNT)
