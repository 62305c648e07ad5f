"""--kv-storage-backend and --kv-storage-config: what is wrong is refused by the option's name."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from engine_sglang.arguments import resolve, server_args, settings
from support.tiny_model import make_tiny_llama

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.usefixtures("sglang_variables"),
    pytest.mark.conformance("refusals"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_llama(tmp_path_factory.mktemp("model")))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Backends by entry point, in place of those of this environment."""
    from sglang.srt.mem_cache import kv_storage

    points: dict[str, str] = {}

    def entry_points(group: str) -> list[EntryPoint]:
        assert group == "sglang.kv_storage_backends"
        return [EntryPoint(name, value, group) for name, value in points.items()]

    monkeypatch.setattr(kv_storage, "entry_points", entry_points)
    kv_storage._load.cache_clear()
    return points


def parsed(model: str, *options: str) -> Any:
    from sglang.srt.server_args import prepare_server_args

    given = ["--model-path", model, "--device", "cpu", "--attention-backend", "torch_native"]
    return resolve(prepare_server_args([*given, *options]))


def test_static_is_the_default(model: str) -> None:
    from sglang.srt.mem_cache.kv_storage import KVStorageBackend, kv_storage_class

    args = server_args(model)
    assert (args.kv_storage_backend, args.kv_storage_config) == ("static", None)
    assert kv_storage_class(args) is KVStorageBackend


def test_a_backend_that_is_not_installed(model: str, installed: dict[str, str]) -> None:
    installed["other"] = "engine_sglang.scarce:Scarce"
    with pytest.raises(ValueError, match="--kv-storage-backend: unknown backend 'kvcached'") as e:
        parsed(model, "--kv-storage-backend", "kvcached")
    assert "Installed: other, static." in str(e.value)
    assert "Is the package that provides it installed in this environment?" in str(e.value)


def test_a_backend_of_another_type(model: str, installed: dict[str, str]) -> None:
    installed["wrong"] = "json:JSONDecoder"
    with pytest.raises(TypeError, match=r"--kv-storage-backend: entry point 'wrong'.*JSONDecoder"):
        server_args(model, kv_storage_backend="wrong")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "--kv-storage-config: not JSON: Expecting property name"),
        ("[1]", r"--kv-storage-config: \[1\] is not an object of JSON"),
        ("3", "--kv-storage-config: 3 is not an object of JSON"),
    ],
)
def test_settings_that_are_no_object(model: str, given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed(model, "--kv-storage-config", given)
    with pytest.raises(ValueError, match=message):
        server_args(model, kv_storage_config=given)


def test_static_takes_no_settings(model: str) -> None:
    with pytest.raises(ValueError, match="--kv-storage-config is given, but --kv-storage-backend"):
        parsed(model, "--kv-storage-config", '{"a": 1}')


def test_settings_come_as_text_or_object(model: str, installed: dict[str, str]) -> None:
    installed["scarce"] = "engine_sglang.scarce:Scarce"
    wanted = {"floor": 700}
    for given in (
        parsed(model, "--kv-storage-backend=scarce", f"--kv-storage-config={json.dumps(wanted)}"),
        server_args(model, kv_storage_backend="scarce", kv_storage_config=wanted),
        server_args(model, kv_storage_backend="scarce", kv_storage_config=json.dumps(wanted)),
    ):
        assert settings(given) == wanted
    with pytest.raises(ValueError, match="--kv-storage-config: unknown key 'roof'"):
        server_args(model, kv_storage_backend="scarce", kv_storage_config={"roof": 1})


def test_the_backend_sees_arguments_that_are_resolved(
    model: str, installed: dict[str, str]
) -> None:
    from engine_sglang.scarce import Scarce

    installed["scarce"] = "engine_sglang.scarce:Scarce"
    server_args(model, kv_storage_backend="scarce", kv_storage_config={})
    assert Scarce.checked[-1] == {"page_size": 1, "attention": "torch_native"}


def test_the_build_says_what_it_is() -> None:
    from sglang.srt.mem_cache.kv_storage import _series

    assert _series.DISTRIBUTION == "kvcached-sglang"
    series = Path(__file__).resolve().parents[2] / "patches" / "sglang" / _series.UPSTREAM
    assert (series / "series").is_file()
    assert _series.VERSION.startswith(_series.UPSTREAM.partition(".post")[0] + ".post")
    assert Path(_series.__file__).name == "_series.py"
