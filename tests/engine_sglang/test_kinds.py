"""Caches that are not plain float ones give upstream's tokens too, while requests give way for want
of memory. Ranges without memory are inaccessible: an access ends the engine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
from packaging.version import Version

from engine.processes import Run
from engine_sglang.processes import SglangEngines
from engine_sglang.test_elastic import BOLD, BUSY_CHECKS
from support.tiny_kinds import LATENT_RANK, LATENT_ROPE, make_tiny_latent, make_tiny_windows

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.conformance("parity")]

PAGE_TOKENS = 64
PAGES = 20
try:
    RELEASE = Version(version("kvcached-sglang"))
except PackageNotFoundError:  # collected where SGLang is not, to be left out
    RELEASE = Version("0")
# From then on such a cache on a CPU wants AMX, and kernels for it that no package brings here.
FP8_ANYWHERE = Version("0.5.20") > RELEASE
FP8 = {"engine": {"kv_cache_dtype": "fp8_e4m3"}}
FP8_TOKEN = 4 * 2 * 64  # layers, keys and values, numbers of a byte
LATENT = LATENT_RANK + LATENT_ROPE
LATENT_TOKEN = 4 * LATENT * 4
WINDOWS_TOKEN = 2 * 2 * 64 * 4  # of the two layers of either kind
WINDOWS_PAGES = 24  # of which a request of the greatest length takes 18
WINDOWS_LIMIT = WINDOWS_PAGES * PAGE_TOKENS * WINDOWS_TOKEN


def tight(
    engines: SglangEngines, name: str, token: int, job: dict[str, Any], pages: int = PAGES
) -> Run:
    """Too little for what runs at once."""
    page = PAGE_TOKENS * token
    storage = {"page_size": page, "limit": pages * page}
    environment = {**BUSY_CHECKS, **BOLD, **job.get("environment", {})}
    return engines.elastic(name, storage, **{**job, "environment": environment})


@pytest.fixture(scope="module")
def fp8(engines: SglangEngines) -> tuple[Run, Run, int]:
    theirs = engines.run("upstream-fp8", dict(FP8), upstream=True)
    return tight(engines, "fp8", FP8_TOKEN, FP8), theirs, PAGES * PAGE_TOKENS * FP8_TOKEN


@pytest.fixture(scope="module")
def latent(
    engines: SglangEngines, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, Run, int]:
    model = make_tiny_latent(tmp_path_factory.mktemp("latent"))
    job = {"model": str(model), "attention": "absorb"}
    theirs = engines.run("upstream-latent", dict(job), upstream=True)
    return tight(engines, "latent", LATENT_TOKEN, job), theirs, PAGES * PAGE_TOKENS * LATENT_TOKEN


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_windows(tmp_path_factory.mktemp("windows")))


@pytest.fixture(scope="module")
def upstream_windows(engines: SglangEngines, windowed: str) -> Run:
    job = {"model": windowed, "attention": "translate"}
    return engines.run("upstream-windows", job, upstream=True)


@pytest.fixture(scope="module")
def windows(engines: SglangEngines, windowed: str, upstream_windows: Run) -> tuple[Run, Run, int]:
    """Pages of one size for either pool; prefixes dropped at the end."""
    job = {"model": windowed, "attention": "translate", "flush": True}
    ours = tight(engines, "windows", WINDOWS_TOKEN, job, WINDOWS_PAGES)
    return ours, upstream_windows, WINDOWS_LIMIT


@pytest.fixture(scope="module")
def paged_windows(engines: SglangEngines, windowed: str) -> Run:
    """Pages of 16 tokens, and no tree: windows' slots go as requests run, or with them."""
    job = {
        "model": windowed,
        "attention": "translate",
        "count": 40,
        "engine": {"page_size": 16, "disable_radix_cache": True},
        "environment": {
            "TRITON_INTERPRET": "1",
            # Without a tree SGLang sizes the windows' pool by what is cleared late, at most, and
            # its check while requests run does not count one that waits between two chunks.
            "SGLANG_SWA_EVICTION_INTERVAL": "16",
            "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "0",
        },
    }
    return tight(engines, "paged-windows", WINDOWS_TOKEN, job, WINDOWS_PAGES)


@pytest.fixture(params=[*(["fp8"] if FP8_ANYWHERE else []), "latent", "windows"])
def pair(request: pytest.FixtureRequest) -> tuple[Run, Run, int]:
    """With little memory, upstream's, and the limit."""
    made: tuple[Run, Run, int] = request.getfixturevalue(request.param)
    return made


def test_tokens_while_requests_give_way(pair: tuple[Run, Run, int]) -> None:
    ours, theirs, limit = pair
    assert len(theirs["tokens"]) == 200
    answers = zip(ours["tokens"], theirs["tokens"], strict=True)
    assert sum(mine != other for mine, other in answers) <= _may_differ(ours)
    assert theirs["retractions"] == 0 < ours["retractions"]
    assert ours["memory_peak"] <= limit


def _may_differ(run: Run) -> int:
    """In another batch a number of a byte may be rounded to its neighbour: one request of a hundred
    may then have other tokens."""
    bytes_only = run["inside"]["tensors"][0][2] == "torch.uint8"
    return len(run["tokens"]) // 100 if bytes_only else 0


def test_what_can_be_taken_has_memory(pair: tuple[Run, Run, int]) -> None:
    ours = pair[0]
    assert ours["inside"]["looks"]["count"] > 50
    assert ours["inside"]["looks"]["wrong"] == []
    assert set(ours["inside"]["backend"]["page_tokens"]) == {PAGE_TOKENS}


def test_tensors_are_upstreams_but_for_their_length(pair: tuple[Run, Run, int]) -> None:
    ours, theirs, _ = pair
    for mine, other in zip(ours["inside"]["tensors"], theirs["inside"]["tensors"], strict=True):
        assert (mine[0][1:], mine[2]) == (other[0][1:], other[2])


if FP8_ANYWHERE:

    def test_a_number_of_an_fp8_cache_takes_a_byte(fp8: tuple[Run, Run, int]) -> None:
        shapes = fp8[0]["inside"]["tensors"]
        assert [dtype for _, _, dtype in shapes] == ["torch.uint8"] * 8
        assert [stride for _, stride, _ in shapes] == [[FP8_TOKEN, 32, 1]] * 8

else:

    def test_an_fp8_cache_is_refused_in_upstreams_words(fp8: tuple[Run, Run, int]) -> None:
        for run in fp8[:2]:
            assert run.result is None
            assert "ValueError: CPU FP8 KV cache requires Intel AMX support." in run.log


def test_a_latent_cache_has_one_tensor_a_layer(latent: tuple[Run, Run, int]) -> None:
    ours = latent[0]["inside"]
    assert ours["pool"].endswith("MLATokenToKVPool")
    assert [stride for _, stride, _ in ours["tensors"]] == [[LATENT, LATENT, 1]] * 4


def test_windows_have_a_pool_and_pages_of_their_own(windows: tuple[Run, Run, int]) -> None:
    ours, theirs, _ = windows
    assert ours["inside"]["allocator"].endswith("SWATokenToKVPoolAllocator")
    assert ours["inside"]["tree"] == theirs["inside"]["tree"]
    assert len(ours["inside"]["backend"]["page_tokens"]) == 2
    assert ours["inside"]["backend"]["pages_released"] > 0
    assert ours["memory_flushed"] == 4 * PAGE_TOKENS * WINDOWS_TOKEN  # padding's and the reserve


def test_windows_of_larger_pages_without_a_tree(paged_windows: Run, upstream_windows: Run) -> None:
    assert paged_windows["tokens"] == upstream_windows["tokens"][:40]
    assert paged_windows["retractions"] > 0
    assert paged_windows["memory_peak"] <= WINDOWS_LIMIT
    assert paged_windows["inside"]["tree"].endswith("SWAChunkCache")
    assert paged_windows["inside"]["looks"]["wrong"] == []
    assert paged_windows["memory_after_run"] == 4 * PAGE_TOKENS * WINDOWS_TOKEN
