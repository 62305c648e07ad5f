#!/bin/sh
# demo.sh [PNG]: two engines share one budget of memory; first two of vLLM's, then one of vLLM's and
# one of SGLang's. Each gets more than half of it when it needs it, all answer exactly as their
# unpatched upstream does, and nothing is left behind but a drawing of the memory that each had mapped
# over time and its figures (build/demo.png and .json, or the PNG given; demo-mixed for the mixed pair).
#
# Makes the engines' environments in a temporary folder, or uses $KVCACHED_VENV and
# $KVCACHED_VENV_SGLANG (made with ci/env.sh if need be). Exits with 0 and a last line OK only if all
# that it shows is as promised.
set -eu
png=${1:-$(dirname "$0")/../build/demo.png}
case $png in
  *.png) ;;
  -*) sed -n '2s/:.*//; 2s/^# /usage: ci\//p' "$0" >&2; exit 2 ;;
  *) echo "demo: $png: the name of the drawing must end in .png" >&2; exit 2 ;;
esac
mkdir -p "$(dirname "$png")" # fails now, not after minutes
png=$(cd "$(dirname "$png")" && pwd)/$(basename "$png")
cd "$(dirname "$0")/.."
folder=$(mktemp -d "${TMPDIR:-/tmp}/kvcached-demo.XXXXXX")
venv=${KVCACHED_VENV:-$folder/venv}
venv_sglang=${KVCACHED_VENV_SGLANG:-$folder/venv-sglang}
# Both environments hold the same torch, of gigabytes: fetched once, then linked.
export UV_CACHE_DIR="${UV_CACHE_DIR:-$folder/uv}"
export TMPDIR="$folder" # caches and sockets of whatever runs here go with the folder
# So does compiled Python. It must be kept while this runs: a dozen processes import engines, and
# compiling its 4,500 modules takes each 18 s.
export PYTHONDONTWRITEBYTECODE="" PYTHONPYCACHEPREFIX="$folder/bytecode" MPLCONFIGDIR="$folder/matplotlib"
group=""

cleanup() {
  trap '' INT TERM HUP
  if [ -n "$group" ]; then
    kill -TERM "$group" 2>/dev/null || : # the leader ends its children, and tidies up after them
    wait "$group" 2>/dev/null || :
    tries=0
    while kill -KILL "-$group" 2>/dev/null && [ $tries -lt 50 ]; do # until nobody is there
      tries=$((tries + 1))
      sleep 0.1
    done
  fi
  rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

run() { # run COMMAND...: in a process group of its own, so that all of it can be ended
  setsid "$@" &
  group=$!
  status=0
  wait "$group" || status=$?
  [ "$status" = 0 ] || exit "$status"
  group=""
}

run ci/env.sh "$venv"
run ci/env.sh --engine sglang "$venv_sglang"
run "$venv/bin/python" ci/demo/run.py "$folder" "$(cd "$venv" && pwd)" \
  "$(cd "$venv_sglang" && pwd)" "$png"
