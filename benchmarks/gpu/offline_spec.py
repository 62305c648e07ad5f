"""The engines that offline.py compares: `NAME=SPEC` as an engine's arguments and environment."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offline_forks import FORKS, RUNNERS

from kvcached_core.config import parse_settings, parse_size

MODES = ("static", "kvcached", "peer")
# What switches upstream's kvcached on. No other engine may inherit it.
PEER_SWITCHES = {"ENABLE_KVCACHED": "true", "KVCACHED_AUTOPATCH": "1"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # becomes a file name


@dataclass(frozen=True)
class Common:
    """What holds for every engine unless its own spec says otherwise."""

    fork: str
    """One of FORKS."""
    runner: str
    cache: int
    """Bytes. Static's KV cache; of the others addresses and limit."""
    utilization: float
    """See offline_forks.Fork."""
    environment: Mapping[str, str]
    engine: Mapping[str, Any]


@dataclass(frozen=True)
class Spec:
    """One engine. Raised where a spec is made: ValueError, naming the engine."""

    name: str
    mode: str
    runner: str
    engine: dict[str, Any]
    """Arguments of LLM or Engine, beside the model."""
    environment: dict[str, str]
    """On top of what `inherited` leaves of the parent's."""

    def inherited(self, parent: Mapping[str, str]) -> dict[str, str]:
        """The environment of the engine's process."""
        kept = {key: value for key, value in parent.items() if key not in PEER_SWITCHES}
        return {**kept, **self.environment}


def parse_spec(text: str, common: Common) -> Spec:
    """From `NAME=MODE[,key=value...]` or `NAME={"mode": MODE, ...}`.

    Keys of every mode: `runner`, `cache`, `utilization`, `tp` (GPUs, each of which has a part of
    every layer, and `cache` bytes for its part), `env.VARIABLE`, `engine.ARGUMENT`; of `peer` also
    `contiguous`; of `kvcached` also all settings of the elastic storage.
    """
    name, _, given = text.partition("=")
    try:
        if not _NAME.fullmatch(name):
            raise ValueError("a name is letters, digits, '.', '_' and '-'")
        keys = json.loads(given) if given.startswith("{") else _pairs(given)
        return _spec(name, keys, common)
    except ValueError as error:
        raise ValueError(f"--engine {text}: {error}") from None


def _pairs(text: str) -> dict[str, Any]:
    mode, *rest = text.split(",")
    pairs = [pair.partition("=") for pair in rest]
    if lacking := [key for key, equals, _ in pairs if not equals]:
        raise ValueError(f"{lacking[0]!r} is no key=value")
    raw = {key: value for key, _, value in pairs}
    return {"mode": mode, **{k: v if k.startswith("env.") else _value(v) for k, v in raw.items()}}


def _value(text: str) -> Any:
    """A number, true, false, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _spec(name: str, keys: dict[str, Any], common: Common) -> Spec:
    mode = keys.pop("mode", None)
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is none of {', '.join(MODES)}")
    own = {key[4:]: str(keys.pop(key)) for key in list(keys) if key.startswith("env.")}
    given = {key[7:]: keys.pop(key) for key in list(keys) if key.startswith("engine.")}
    runner = keys.pop("runner", "first" if mode == "peer" else common.runner)
    if runner not in RUNNERS or (mode == "peer" and runner != "first"):
        raise ValueError(f"runner {runner!r}: {'first' if mode == 'peer' else ', '.join(RUNNERS)}")
    cache = parse_size(keys.pop("cache", common.cache), "cache")
    fork = FORKS[common.fork]
    usual = fork.engine(cache, keys.pop("utilization", common.utilization))
    environment = fork.environment(runner)
    if (ranks := keys.pop("tp", 1)) != 1:
        engine, variables = fork.tensor_parallel(int(ranks), cache)
        usual, environment = usual | engine, environment | variables
    engine = {**usual, **common.engine, **given}
    if mode == "peer":
        contiguous = str(keys.pop("contiguous", True)).lower()
        environment |= {**PEER_SWITCHES, "KVCACHED_CONTIGUOUS_LAYOUT": contiguous}
    if mode == "kvcached":
        settings = {"limit": cache, **keys}
        parse_settings(settings, "kvcached")  # else the engine would refuse half a minute later
        engine |= {"kv_storage_backend": "kvcached", "kv_storage_config": settings}
    elif keys:
        raise ValueError(f"{mode} has no key {', '.join(sorted(keys))}")
    return Spec(name, mode, runner, engine, {**environment, **common.environment, **own})
