"""benchmarks/gpu/offline.py drives several engines; here they are fakes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu" / "offline.py"
FAKE = Path(__file__).with_name("fake_engine.py")
DEADLINE_S = 60  # guards against a hang


@dataclass
class Done:
    status: int
    printed: str
    result: dict[str, Any]
    log: list[str]
    """What the fakes did, in order: name, command, round, begin or end."""

    @property
    def summary(self) -> dict[str, Any]:
        last = self.printed.splitlines()[-1]
        assert last.startswith("RESULT ")
        return dict(json.loads(last.removeprefix("RESULT ")))

    def rounds(self, name: str) -> list[dict[str, Any]]:
        return list(self.result["engines"][name]["rounds"])


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "fakes"
        self.env = {**os.environ, "FAKE_LOG": str(self.log)}

    def start(self, *more: str, **fakes: str) -> subprocess.Popen[str]:
        """`fakes`: by name, what is behind `NAME=`; underscores there are blanks in FAKE."""
        child = shlex.join([sys.executable, str(FAKE)])
        command = [sys.executable, str(BENCHMARK), str(self.folder / "out.json")]
        command += ["--child-command", child, "--log", str(self.folder), "--settle", "0"]
        for name, spec in fakes.items():
            command += ["--engine", f"{name}={spec},env.FAKE_NAME={name}"]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*command, *more], env=self.env, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )

    def end(self, running: subprocess.Popen[str]) -> Done:
        printed, _ = running.communicate(timeout=DEADLINE_S)
        out = self.folder / "out.json"
        assert out.exists(), printed
        result = json.loads(out.read_text())
        return Done(running.returncode, printed, result, self.log.read_text().splitlines())

    def run(self, *more: str, **fakes: str) -> Done:
        return self.end(self.start(*more, **fakes))

    def nobody_runs(self) -> bool:
        """Whether the processes that a fake told of are gone."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        pids = [int(pid) for words in lines if words[1] == "pids" for pid in words[2:]]
        assert pids
        return not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_engines_live_together_and_take_turns(bench: Bench) -> None:
    bench.env["FAKE_MEETS"] = "3"
    done = bench.run("--rounds", "3", a="static", b="kvcached", c="peer")
    assert done.status == 0, done.printed
    turns = [line for line in done.log if "generate" in line]
    assert turns == [  # seed 0 is the warm-up
        f"{name} generate {turn} {edge}"
        for turn in range(4)
        for name in "abc"
        for edge in ("begin", "end")
    ]
    starts = [line for line in done.log if "start" in line]
    assert {line.split()[2] for line in starts[:3]} == {"begin"}  # all at once
    assert done.result["engines"]["a"]["start"]["started_beside"] == ["b", "c"]
    assert done.result["complete"] and "command" in done.result


@pytest.mark.parametrize(("option", "begun"), [("--warm", "aabcbc"), ("--serial", "aabbcc")])
def test_who_starts_alone(bench: Bench, option: str, begun: str) -> None:
    done = bench.run("--rounds", "1", option, a="static", b="kvcached", c="static")
    starts = [line.split() for line in done.log if "start" in line]
    assert [words[0] for words in starts[:2]] == ["a", "a"]
    if option == "--serial":
        assert "".join(words[0] for words in starts) == begun
    else:
        assert sorted(words[0] for words in starts[2:4]) == ["b", "c"]
    beside = {n: e["start"]["started_beside"] for n, e in done.result["engines"].items()}
    assert beside["a"] == [] and beside["b"] == (["c"] if option == "--warm" else [])


def test_medians_ratios_and_noise(bench: Bench) -> None:
    done = bench.run(
        "--rounds",
        "3",
        a="static,env.FAKE_RATES=1 100 110 90",
        b="kvcached,env.FAKE_RATES=1 50 66 45",
    )
    a, b = done.summary["engines"]["a"], done.summary["engines"]["b"]
    assert (a["median"], a["ratio"], done.summary["noise"]) == (100, 1, 0.1)
    assert (b["median"], b["ratio"], b["rounds_ratio"], b["noise"]) == (50, 0.5, [0.5, 0.6], 0.32)
    assert done.summary == done.result["summary"]


def test_counters_of_each_round(bench: Bench) -> None:
    done = bench.run(
        *("--rounds", "2", "--requests", "5"),
        a="static",
        b="kvcached",
        c="kvcached,env.FAKE=has no counters",
    )
    assert [made["counters"] for made in done.rounds("b")] == [{"created": 13}, {"created": 18}]
    assert [made["change"] for made in done.rounds("b")] == [{"created": 5}] * 2
    assert done.summary["engines"]["b"]["change"] == {"created": 10}
    assert done.summary["engines"]["c"]["change"] is None
    assert [(made["counters"], made["why"]) for made in done.rounds("c")] == [
        (None, "nobody counts")
    ] * 2
    assert "counters" not in done.rounds("a")[0]


FAILURES = {
    "fails at start": "start: RuntimeError: no engine today",
    "hangs at start": "start: no answer in time",
    "dies in round 2": "generate: ended with status 7",
    "hangs in round 2": "generate: no answer in time",
    "is stubborn in round 2": "generate: no answer in time",
}


@pytest.mark.parametrize("how", FAILURES)
def test_an_engine_that_fails_leaves_the_others(bench: Bench, how: str) -> None:
    deadlines = ["--start-deadline", "4", "--round-deadline", "1", "--grace", "1"]
    done = bench.run("--rounds", "3", *deadlines, a="static", bad=f"kvcached,env.FAKE={how}")
    assert done.status == 1
    assert done.summary["failed"] == {"bad": FAILURES[how]}
    assert f"bad failed: {FAILURES[how]}" in done.printed
    assert "a line of the log of bad" in done.printed
    assert len(done.rounds("a")) == 3 and len(done.rounds("bad")) == ("round" in how)
    if "hangs" in how or "stubborn" in how:
        assert bench.nobody_runs()


def test_an_answer_that_is_none(bench: Bench) -> None:
    done = bench.run("--rounds", "2", a="static,env.FAKE=babbles in round 2")
    assert done.status == 1 and "b'what?'" in done.summary["failed"]["a"]


def test_killed_in_a_round_it_kills_and_keeps_what_it_has(bench: Bench) -> None:
    running = bench.start(
        "--grace", "1", a="static", bad="kvcached,env.FAKE=is stubborn in round 2"
    )
    end = time.monotonic() + DEADLINE_S
    while "pids" not in (bench.log.read_text() if bench.log.exists() else ""):
        assert time.monotonic() < end
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    done = bench.end(running)
    assert done.status == 128 + signal.SIGTERM
    assert bench.nobody_runs()
    assert not done.result["complete"]
    assert (len(done.rounds("a")), len(done.rounds("bad"))) == (2, 1)


def test_memory_of_the_device(bench: Bench) -> None:
    mib = bench.folder / "mib"
    mib.write_text("100")
    tool = bench.folder / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\ncase "$*" in *memory.used*) cat "$FAKE_MIB";;'
        ' *name*) echo "A GPU, 1000, 1.2";; *) echo "1, 50";; esac\n'
    )
    tool.chmod(0o755)
    bench.env |= {"FAKE_MIB": str(mib), "PATH": f"{bench.folder}:{bench.env['PATH']}"}
    done = bench.run("--rounds", "2", "--warm", "--settle", "0.8", a="static", b="kvcached")
    assert done.status == 0, done.printed
    assert done.result["machine"]["gpu"] == "A GPU" and done.result["machine"]["driver"] == "1.2"
    for engine in done.result["engines"].values():
        assert engine["start"]["mib"] == {"before": 100, "after": 100}
        assert engine["idle_mib"]["of_process"] is None and engine["idle_mib"]["why"]
        found = [made["mib"] for made in engine["rounds"]]
        assert found[0] == {"idle": 100, "end": 900, "settled": 100}
        assert found[1]["settled"] == 150
    assert done.summary["engines"]["b"]["over_idle_mib"] == 50


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("a=elastic", "mode 'elastic'"),
        ("a=static,page_size=2MiB", "static has no key page_size"),
        ("a=kvcached,page_siz=2MiB", "page_siz"),
        ("a=kvcached,page_size", "no key=value"),
        ("a=peer,runner=second", "runner 'second'"),
        ("a/b=static", "a name is"),
    ],
)
def test_specs_that_are_refused(bench: Bench, spec: str, says: str) -> None:
    running = bench.start("--engine", spec)
    printed, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 2 and says in printed
    assert not bench.log.exists()  # nothing was started


def test_what_an_engine_is_given(bench: Bench) -> None:
    bench.env["ENABLE_KVCACHED"] = "true"  # of the caller's shell: for peers only
    more = ["--static-cache", "3GiB", "--env", "X=1", "--engine-args", '{"max_model_len": 512}']
    more += ["--engine", 'd={"mode": "kvcached", "layout": "per-layer", "engine.seed": 3}']
    done = bench.run(
        *more, "--rounds", "1", a="static,cache=1GiB", b="kvcached,reserve_pages=4", c="peer"
    )
    engines = done.result["engines"]
    sizes = {name: engine["engine"]["kv_cache_memory_bytes"] for name, engine in engines.items()}
    assert sizes == {"a": 1 << 30, "b": 3 << 30, "c": 3 << 30, "d": 3 << 30}
    assert engines["b"]["engine"]["kv_storage_config"] == {"limit": 3 << 30, "reserve_pages": 4}
    assert engines["d"]["engine"]["kv_storage_config"]["layout"] == "per-layer"
    assert engines["d"]["engine"]["seed"] == 3
    assert "kv_storage_backend" not in engines["a"]["engine"] | engines["c"]["engine"]
    assert all(engine["engine"]["max_model_len"] == 512 for engine in engines.values())
    switches = {name: engine["environment"] for name, engine in engines.items()}
    assert switches["c"]["KVCACHED_CONTIGUOUS_LAYOUT"] == "true"
    assert switches["c"]["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert switches["b"]["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert all(switches[name]["X"] == "1" for name in "abcd")
    assert {line for line in done.log if "enabled" in line} == {"c enabled"}


def test_what_an_engine_of_sglang_is_given(bench: Bench) -> None:
    more = ["--fork", "sglang", "--static-cache", "3GiB", "--rounds", "1"]
    done = bench.run(*more, a="static", b="kvcached,page_size=2MiB", c="peer")
    engines = done.result["engines"]
    for engine in engines.values():
        assert engine["engine"]["max_total_tokens"] == (3 << 30) // (128 << 10)
        assert not {key for key in engine["environment"] if key.startswith("VLLM")}
    assert engines["b"]["engine"]["kv_storage_config"] == {"limit": 3 << 30, "page_size": "2MiB"}
    assert "kv_storage_backend" not in engines["a"]["engine"] | engines["c"]["engine"]


@pytest.mark.parametrize(
    ("fork", "argument"), [("vllm", "tensor_parallel_size"), ("sglang", "tp_size")]
)
def test_engines_on_two_devices(bench: Bench, fork: str, argument: str) -> None:
    more = ["--fork", fork, "--static-cache", "3GiB", "--rounds", "1"]
    done = bench.run(*more, a="static,tp=2", b="kvcached,tp=2", c="static")
    engines = done.result["engines"]
    for name in "ab":
        given = engines[name]["engine"]
        assert given[argument] == 2 and given["disable_custom_all_reduce"] is True
        assert engines[name]["environment"]["NCCL_NVLS_ENABLE"] == "0"
        if fork == "sglang":  # it counts tokens, of which each device has a half
            assert given["max_total_tokens"] == 2 * (3 << 30) // (128 << 10)
    assert argument not in engines["c"]["engine"]
    assert "NCCL_NVLS_ENABLE" not in engines["c"]["environment"]
