"""The scheduler half's start line: what is reserved, for whom, and by which build."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path

import pytest

from engine.storage_pair import Pair
from kvcached_core.engines.vllm.log import logger

pytestmark = [pytest.mark.engine]


def test_it_names_budget_sizes_and_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.INFO, logger=logger.name):
        Pair(tmp_path / "budget").close()
    (line,) = {r.getMessage() for r in caplog.records if "on budget" in r.getMessage()}
    stamp = importlib.import_module("vllm.v1.kv_storage._series")
    assert line.startswith(
        "KV storage: kvcached, engine one on budget host:default: reserved 256KiB in "
    )
    assert line.endswith(f", kvcached-vllm-cpu {stamp.VERSION}, series {stamp.SERIES_HASH[:12]}")
