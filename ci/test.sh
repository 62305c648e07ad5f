#!/bin/sh
# test.sh: everything that CI runs, from a clean clone with only git, Python >= 3.10 and g++.
#
# Environment, lint, the series' proof, the tests without an engine, the tests with one. The demo is
# run by hand: it is for people, and its figures depend on who else uses the machine.
# KVCACHED_VENV names the environment (default .venv); the first part that fails ends it.
set -eu
cd "$(dirname "$0")/.."
KVCACHED_VENV=${KVCACHED_VENV:-$PWD/.venv}
export KVCACHED_VENV
# Where compiled Python is not kept, each engine's process compiles thousands of modules again.
export PYTHONDONTWRITEBYTECODE="" PYTHONPYCACHEPREFIX="$KVCACHED_VENV/pycache"
started=$(date +%s)

part() { # part NAME COMMAND...: says when it starts, and how long it took
  name=$1 begun=$(date +%s)
  shift
  echo "== $name"
  "$@" || { echo "test: $name: RED" >&2; exit 1; }
  echo "== $name: ok, $(($(date +%s) - begun)) s"
}

tests() { # tests ARGUMENT...: pytest; an empty selection is red (exit code 5)
  "$KVCACHED_VENV/bin/pytest" -q -p no:cacheprovider --durations=5 "$@"
}

part environment ci/env.sh "$KVCACHED_VENV"
part lint ci/lint.sh
part series "$KVCACHED_VENV/bin/python" tools/patches.py check vllm
part "tests without an engine" tests -m "not engine and not gpu"
part "tests with an engine" tests -m "engine and not gpu"
echo "test: all green, $(($(date +%s) - started)) s"
