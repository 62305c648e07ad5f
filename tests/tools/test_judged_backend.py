"""What names the backend that the conformance kit judges: a wrong name or profile is refused before
any engine starts, with the file, the key, what stands there and what may."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import REPOSITORY

from support.any_backend import Subject, from_environment, installed

KEYS = "keys are config, path, tight, unused"


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a backend `mine` for vLLM, in the folder `toy` beside it."""
    installed(tmp_path / "toy", "vllm.kv_storage_backends", "mine", "package:Mine")
    file = tmp_path / "mine.json"
    monkeypatch.setenv("KVCACHED_TEST_BACKEND", "mine")
    monkeypatch.setenv("KVCACHED_TEST_PROFILE", str(file))
    return file


def test_every_key(profile: Path) -> None:
    given = {"config": {"a": 1}, "tight": {"b": 2}, "unused": "inaccessible", "path": "toy"}
    profile.write_text(json.dumps(given))
    where = str(profile.parent / "toy")
    wanted = Subject("mine", {"a": 1}, {"b": 2}, "inaccessible", where)
    assert from_environment("vllm") == wanted
    assert not wanted.accessible


def test_no_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVCACHED_TEST_BACKEND", raising=False)
    assert from_environment("vllm") is None


def test_without_a_profile_and_the_engines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVCACHED_TEST_PROFILE", raising=False)
    for name in ("kvcached", "static"):
        monkeypatch.setenv("KVCACHED_TEST_BACKEND", name)
        assert from_environment("sglang") == Subject(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[1]", f"[1] is no JSON object with {KEYS.replace(' are', '')}"),
        ('{"confg": {}}', f"unknown key 'confg'; {KEYS}"),
        ('{"config": [1]}', "config: [1] is no JSON object of settings"),
        ('{"tight": "8MiB"}', "tight: '8MiB' is no JSON object of settings"),
        ('{"tight": null}', "tight: None is no JSON object of settings"),
        ('{"unused": "free"}', "unused: 'free' is none of accessible, inaccessible"),
        ('{"unused": ["x"]}', "unused: ['x'] is none of accessible, inaccessible"),
        ('{"path": "toys"}', "path: 'toys' is no folder; it is relative to the profile's"),
        ('{"path": 3}', "path: 3 is no folder; it is relative to the profile's"),
    ],
)
def test_a_bad_profile_is_refused(profile: Path, text: str, said: str) -> None:
    profile.write_text(text)
    with pytest.raises(ValueError) as refused:
        from_environment("vllm")
    assert str(refused.value).startswith(f"{profile}: {said}")


def test_a_profile_that_cannot_be_read(profile: Path) -> None:
    with pytest.raises(ValueError, match=r"mine\.json: No such file"):
        from_environment("vllm")
    profile.mkdir()
    with pytest.raises(ValueError, match=r"mine\.json: Is a directory"):
        from_environment("vllm")
    profile.rmdir()
    profile.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"mine\.json: not JSON: 'utf-8'"):
        from_environment("vllm")


def test_a_name_without_an_entry_point(profile: Path) -> None:
    profile.write_text('{"path": "toy"}')
    with pytest.raises(ValueError) as refused:
        from_environment("sglang")
    assert "'mine': no entry point of sglang.kv_storage_backends" in str(refused.value)
    assert str(refused.value).endswith("there are: kvcached, static")


# --- the command ---


def run(*arguments: str, **variables: str) -> tuple[int, str]:
    command = [str(REPOSITORY / "ci" / "conformance.sh"), "--as-is", *arguments]
    env: dict[str, Any] = {**os.environ, "KVCACHED_CONFORMANCE_VENV": sys.prefix, **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_command_says_it_and_starts_nothing(profile: Path) -> None:
    profile.write_text('{"confg": {}}')
    file = ["--profile", str(profile), "vllm"]
    assert run("--backend", "mine", *file) == (
        2,
        f"conformance: {profile}: unknown key 'confg'; {KEYS}\n",
    )
    profile.write_text("{}")
    status, said = run("--backend", "mine", *file)
    assert status == 2 and said.startswith("conformance: backend 'mine': no entry point of vllm.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--backend", "conformance: --backend: which one?"),
        ("--backend mine --profile none.json vllm", "--profile none.json: no such file"),
        ("--profile README.md vllm", "--profile: it tells how to set up the backend of --backend"),
        ("--core --backend mine vllm", "usage: ci/conformance.sh"),
        ("--backend mine", "usage: ci/conformance.sh"),
        ("tpu", "--engine tpu: no such engine; choose vllm or sglang"),
        ("vllm==1", "--engine vllm==1: no such pin; there are: "),
    ],
)
def test_arguments_that_mean_nothing(arguments: str, said: str) -> None:
    status, text = run(*arguments.split())
    assert status == 2 and said in text


def test_as_is_needs_an_environment(tmp_path: Path) -> None:
    status, said = run("vllm", KVCACHED_CONFORMANCE_VENV=str(tmp_path))
    assert (status, said) == (
        2,
        f"conformance: --as-is: {tmp_path} holds no environment with pytest; ci/env.sh makes one\n",
    )
