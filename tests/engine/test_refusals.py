"""What elastic storage cannot serve is refused by the name of the option that asks for it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec

from kvcached_core.engines.vllm import support
from kvcached_core.engines.vllm.backend import KvcachedBackend, settings_of
from kvcached_core.engines.vllm.planner import instance_name
from kvcached_core.provenance import vllm as provenance
from support.tiny_model import make_tiny_llama

pytestmark = [pytest.mark.engine, pytest.mark.conformance("refusals")]

Configure = Callable[..., VllmConfig]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def configure(model: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def build(**given: Any) -> VllmConfig:
        arguments = {
            "model": str(model),
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 256,
            "kv_storage_backend": "kvcached",
            **given,
        }
        return EngineArgs(**arguments).create_engine_config()

    return build


@pytest.fixture(scope="module")
def clean(model: Path) -> VllmConfig:
    return EngineArgs(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        kv_storage_backend="kvcached",
    ).create_engine_config()


# --- the rules, on a real configuration changed in one place ---

# Option of the message, where the rule looks, a value that asks for it.
CHANGES: list[tuple[str, str, Any]] = [
    ("--device", "device_config.device_type", "xpu"),
    ("--decode-context-parallel-size", "parallel_config.decode_context_parallel_size", 2),
    ("--prefill-context-parallel-size", "parallel_config.prefill_context_parallel_size", 2),
    (
        "--distributed-executor-backend",
        "parallel_config.distributed_executor_backend",
        "external_launcher",
    ),
    ("--distributed-executor-backend", "parallel_config.distributed_executor_backend", "ray"),
    ("--distributed-executor-backend", "parallel_config.distributed_executor_backend", object),
    ("--data-parallel-backend", "parallel_config.data_parallel_backend", "ray"),
    ("--nnodes", "parallel_config.nnodes", 2),
    ("--enable-elastic-ep", "parallel_config.enable_elastic_ep", True),
    ("--kv-offloading-size", "cache_config.kv_offloading_size", 1.0),
    ("--kv-cache-dtype", "cache_config.cache_dtype", "fp8_per_token_head"),
    ("--kv-transfer-config", "kv_transfer_config", SimpleNamespace()),
    ("--speculative-config", "speculative_config", SimpleNamespace(method="medusa")),
    ("--scheduler-cls", "scheduler_config.scheduler_cls", "mine.Scheduler"),
    ("--watermark", "scheduler_config.watermark", 0.01),
    ("--enable-return-routed-experts", "model_config.enable_return_routed_experts", True),
]


def changed(config: VllmConfig, path: str, value: Any) -> VllmConfig:
    """A copy of `config` in which `path` has `value`. Fails where upstream has no such field."""
    copied = copy.copy(config)
    *parents, name = path.split(".")
    holder: Any = copied
    for parent in parents:
        inner = copy.copy(getattr(holder, parent))
        object.__setattr__(holder, parent, inner)
        holder = inner
    assert hasattr(holder, name), f"VllmConfig has no {path} any more: the rule looks at nothing"
    object.__setattr__(holder, name, value)
    return copied


@pytest.mark.parametrize(("option", "path", "value"), CHANGES)
def test_rule(clean: VllmConfig, option: str, path: str, value: Any) -> None:
    support.check_supported(clean)
    with pytest.raises(ValueError, match="does not work with") as refusal:
        support.check_supported(changed(clean, path, value))
    named = str(refusal.value).split("does not work with ")[1].split(": ")[0].split(", ")
    assert option in named
    assert "--kv-storage-backend=static" in str(refusal.value)


def test_a_remembered_size_is_refused(clean: VllmConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_STARTUP_PLAN", "1")
    with pytest.raises(ValueError, match="VLLM_ENABLE_STARTUP_PLAN"):
        support.check_supported(clean)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_several_ranks_are_served(clean: VllmConfig, kind: str) -> None:
    two = changed(clean, "parallel_config.world_size", 2)
    support.check_supported(changed(two, "device_config.device_type", kind))


def test_another_way_to_sleep_is_refused(clean: VllmConfig) -> None:
    asleep = changed(clean, "model_config.sleep_mode_backend", "checkpoint")
    support.check_supported(asleep)  # nobody sleeps
    with pytest.raises(ValueError, match="--sleep-mode-backend"):
        support.check_supported(changed(asleep, "model_config.enable_sleep_mode", True))


ACCEPTED: list[tuple[str, Any]] = [
    ("model_config.enable_sleep_mode", True),
    ("scheduler_config.async_scheduling", True),
    ("lora_config", SimpleNamespace()),
    ("cache_config.cache_dtype", "fp8"),
    *[("speculative_config", SimpleNamespace(method=method)) for method in support._DRAFTS],
]


@pytest.mark.parametrize(("path", "value"), ACCEPTED)
def test_what_works_is_not_refused(clean: VllmConfig, path: str, value: Any) -> None:
    support.check_supported(changed(clean, path, value))


def test_methods_of_drafting_are_upstreams() -> None:
    from vllm.config.speculative import SpeculativeMethod

    assert set(support._DRAFTS) <= set(every_literal(SpeculativeMethod))


def every_literal(alias: Any) -> list[Any]:
    return [v for a in get_args(alias) for v in ([a] if isinstance(a, str) else every_literal(a))]


def test_both_runners_are_served(clean: VllmConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    for second in (False, True):
        monkeypatch.setattr(VllmConfig, "use_v2_model_runner", property(lambda _, v=second: v))
        support.check_supported(clean)


def test_every_rule_is_tried_above() -> None:
    tried = {option for option, _, _ in CHANGES}
    tried |= {"VLLM_ENABLE_STARTUP_PLAN", "--sleep-mode-backend"}
    for option, _, _ in support._RULES:
        assert set(option.split(", ")) <= tried


# --- the same from the command line's arguments, where this machine can build them ---


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("--kv-offloading-size", {"kv_offloading_size": 1.0}),
        (
            "--kv-transfer-config",
            {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
        ),
        (
            "--speculative-config",
            {
                "speculative_config": {
                    "method": "ngram_gpu",
                    "num_speculative_tokens": 2,
                    "prompt_lookup_max": 2,
                }
            },
        ),
        ("--scheduler-cls", {"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}),
        ("--watermark", {"watermark": 0.1}),
    ],
)
def test_option_is_refused_by_its_name(
    configure: Configure, option: str, given: dict[str, Any]
) -> None:
    if "kv_transfer_config" in given:
        from vllm.config import KVTransferConfig

        given = {"kv_transfer_config": KVTransferConfig(**given["kv_transfer_config"])}
    with pytest.raises(ValueError, match=f"does not work with .*{option}"):
        configure(**given)


@pytest.mark.parametrize(
    ("storage", "text"),
    [
        ({"capcity": "1GiB"}, "unknown key 'capcity'; allowed are "),
        ({"capacity": "1 gigabyte"}, "capacity: found '1 gigabyte'"),
        ({"capacity": "0B"}, "capacity: found '0B'"),
        ({"capacity": None}, "capacity: found None"),
        ({"weight": 0}, "weight: found 0"),
        ({"prefix_bound": "-1MiB"}, "prefix_bound: found '-1MiB'"),
        ({"name": "a/b"}, "name: found 'a/b'"),
        ({"capacity": "1GiB", "limit": "2GiB"}, "lower limit or raise capacity"),
    ],
)
def test_a_bad_setting_is_refused(configure: Configure, storage: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as refusal:
        configure(kv_storage_config=storage)
    assert "--kv-storage-config" in str(refusal.value) and text in str(refusal.value)


def test_an_unknown_backend_is_refused_with_those_there_are(configure: Configure) -> None:
    with pytest.raises(
        ValueError, match=r"--kv-storage-backend: unknown backend 'kvcache'.*static"
    ):
        configure(kv_storage_backend="kvcache")


def test_settings_for_static_are_refused(configure: Configure) -> None:
    with pytest.raises(ValueError, match=r"--kv-storage-config is given, but .*static"):
        configure(kv_storage_backend="static", kv_storage_config={"capacity": "1GiB"})


# --- a configuration that passes ---


def test_a_unique_name_is_made_once(configure: Configure) -> None:
    one, two = configure(), configure()
    name = settings_of(one).name
    assert name is not None and name.startswith("vllm-")
    assert settings_of(two).name != name
    KvcachedBackend.check_config(one)
    assert settings_of(one).name == name
    copied = pickle.loads(pickle.dumps(one))
    KvcachedBackend.check_config(copied)
    assert settings_of(copied).name == name


def test_replicas_are_told_apart_though_each_is_told_that_it_is_alone(
    configure: Configure,
) -> None:
    config = configure(kv_storage_config={"name": "mine"}, data_parallel_size=2)
    KvcachedBackend.check_config(config)  # and again, in the engine core
    parallel = config.parallel_config
    parallel.data_parallel_size = 1  # as vLLM tells replicas of a dense model
    names = []
    for parallel.data_parallel_index in (0, 1):
        KvcachedBackend.check_config(config)
        names.append(instance_name(config, settings_of(config)))
    assert names == ["mine/dp0", "mine/dp1"]
    alone = configure(kv_storage_config={"name": "mine"})
    assert instance_name(alone, settings_of(alone)) == "mine"


def test_a_given_name_and_the_callers_settings_are_left_alone(configure: Configure) -> None:
    given = {"name": "mine", "capacity": "1GiB"}
    assert settings_of(configure(kv_storage_config=given)).name == "mine"
    unnamed = {"capacity": "1GiB"}
    configure(kv_storage_config=unnamed)
    assert unnamed == {"capacity": "1GiB"}


def test_the_option_does_not_change_the_hash(configure: Configure) -> None:
    static = configure(kv_storage_backend="static").compute_hash()
    assert configure().compute_hash() == static
    assert configure(kv_storage_config={"capacity": "1GiB"}).compute_hash() == static


def test_metrics_name_the_storage_only_where_it_is_not_static(configure: Configure) -> None:
    static = configure(kv_storage_backend="static").cache_config.metrics_info()
    assert not [key for key in static if key.startswith("kv_storage")]
    assert configure().cache_config.metrics_info()["kv_storage_backend"] == "kvcached"


def test_fields_that_the_adapter_reads_are_upstreams(clean: VllmConfig) -> None:
    for path in (
        "model_config.max_model_len",
        "model_config.original_max_model_len",
        "cache_config.kv_cache_memory_bytes",
        "cache_config.num_gpu_blocks_override",
        "parallel_config.data_parallel_index",
        "parallel_config.data_parallel_size",
    ):
        holder, name = path.split(".")
        assert hasattr(getattr(clean, holder), name), path


def test_check_config_opens_nothing(configure: Configure, tmp_path: Path) -> None:
    folder = tmp_path / "budget"
    configure(kv_storage_config={"budget_dir": str(folder)})
    assert not folder.exists()


def test_two_packages_over_each_other_are_refused(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure()
    # Any package beside the fork will do for the other owner.
    monkeypatch.setattr(provenance, "OWNERS", (*provenance.OWNERS, "torch"))
    with pytest.raises(RuntimeError, match="pip uninstall -y kvcached-vllm-cpu torch"):
        configure()


# --- models ---


def attention(layers: int = 2) -> KVCacheGroupSpec:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=None)
    return KVCacheGroupSpec([f"layer{i}" for i in range(layers)], spec)


def test_a_model_with_other_state_than_attention_is_refused() -> None:
    mamba = KVCacheGroupSpec(["ssm"], MambaSpec(block_size=16, shapes=((1,),), dtypes=(None,)))
    config = KVCacheConfig(4, [SimpleNamespace()], [attention(), mamba])
    with pytest.raises(ValueError, match=r"MambaSpec \(layer ssm\).*FullAttentionSpec"):
        support.check_groups([config])
    support.check_groups([KVCacheConfig(4, [SimpleNamespace()], [attention()])])


def test_a_model_without_a_kv_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="no KV cache"):
        support.check_groups([KVCacheConfig(4, [], [])])


def test_the_names_of_served_specs_are_upstreams() -> None:
    from vllm.v1 import kv_cache_interface

    for name in support._SPECS:
        assert isinstance(getattr(kv_cache_interface, name), type)
    assert "kv_cache_specs" in kv_cache_interface.UniformTypeKVCacheSpecs.__dataclass_fields__


def test_a_setting_that_is_not_served_here(clean: VllmConfig) -> None:
    asked = copy.deepcopy(clean)
    asked.cache_config.kv_storage_config = {"check_ranks": "off"}
    with pytest.raises(ValueError, match="check_ranks is only of SGLang"):
        KvcachedBackend.check_config(asked)
