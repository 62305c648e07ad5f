#!/bin/sh
# test.sh: everything that CI runs, from a clean clone with only git, Python >= 3.10 and g++.
#
# Environments, lint, the proof of each series, the tests without an engine, the tests with vLLM and,
# beside them, with SGLang, whose output comes last. The demo is run by hand: it is for people, and its
# figures depend on who else uses the machine.
# The environments are where ci/env.sh has them (KVCACHED_VENV and KVCACHED_VENV_SGLANG name other folders
# for the default pins); the first part that fails ends it.
set -eu
cd "$(dirname "$0")/.."
KVCACHED_VENV=$(realpath -m "$(ci/env.sh --where)")
KVCACHED_VENV_SGLANG=$(realpath -m "$(ci/env.sh --engine sglang --where)")
export KVCACHED_VENV KVCACHED_VENV_SGLANG
# Both environments hold the same torch, of gigabytes: fetched once, then linked.
export UV_CACHE_DIR="${UV_CACHE_DIR:-$PWD/.cache/uv}"
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

by_default() { env --default-signal=INT "$@"; } # a shell's background jobs ignore it
tests() { # tests ENVIRONMENT ARGUMENT...: pytest; an empty selection is red (exit code 5)
  pytest=$1/bin/pytest
  shift
  by_default "$pytest" -q -p no:cacheprovider --durations=5 "$@"
}

part environment ci/env.sh "$KVCACHED_VENV"
part "environment of SGLang" ci/env.sh --engine sglang "$KVCACHED_VENV_SGLANG"
part lint ci/lint.sh
series() { # series PIN: proved on its release; of a pin that is not the default, fetched first
  case $1 in *==*) "$KVCACHED_VENV/bin/python" tools/vendor.py "$1" || return 1 ;; esac
  "$KVCACHED_VENV/bin/python" tools/patches.py check "$1"
}
for file in vendored/*/upstream.yaml vendored/*/*/upstream.yaml; do
  [ -e "$file" ] || continue # no pin beside the default ones
  pin=${file#vendored/} pin=$(dirname "$pin" | sed 's|/|==|')
  part "series of $pin" series "$pin"
done
part "tests without an engine" tests "$KVCACHED_VENV" -n 2 --dist loadfile \
  -m "not engine and not sglang and not gpu"
others() { # others ENGINE: its pins that are not the default one
  for file in vendored/"$1"/*/upstream.yaml; do
    [ ! -e "$file" ] || echo "$1==$(basename "$(dirname "$file")")"
  done
}
for pin in $(others vllm) $(others sglang); do # now: two of them at a time do not go
  part "environment of $pin" ci/env.sh --engine "$pin"
done
core_modes() { # of the pins that nobody has taken yet: by whoever is through with its own tests
  for pin in $(others vllm) $(others sglang); do
    mkdir "$taken/$pin" 2>/dev/null || continue
    part "core modes of $pin" by_default ci/conformance.sh --as-is --core "$pin"
  done
}
with_sglang() {
  part "tests with SGLang" tests "$KVCACHED_VENV_SGLANG" -m sglang tests/engine_sglang
  core_modes
}
# Engines wait much for each other's processes: two of them use two cores better than one.
log=$(mktemp) taken=$(mktemp -d)
with_sglang >"$log" 2>&1 &
beside=$!
# Red or not, what it said is shown; it may be gone by then.
trap 'kill $(ps -o pid= --ppid $beside) $beside 2>/dev/null || :; cat "$log"; rm -rf "$log" "$taken"' EXIT
trap 'exit 130' INT TERM
part "tests with vLLM" tests "$KVCACHED_VENV" -m "engine and not gpu"
core_modes
wait $beside || exit 1
trap - EXIT INT TERM
cat "$log"
rm -rf "$log" "$taken"
echo "test: all green, $(($(date +%s) - started)) s"
