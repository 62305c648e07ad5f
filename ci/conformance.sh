#!/bin/sh
# conformance.sh [--as-is] [--core | --backend NAME [--profile FILE]] ENGINE[==VERSION] [ARGUMENT...]
#
# Whether the pin of that engine and version, or somebody's storage backend on it, keeps what the
# interface says; docs/conformance.md says what that is. Ends with a table, and with 1 if a row is red.
# --core: the short selection that CI runs of pins beside the default ones. --backend: a backend by
# the name of its entry point, FILE telling how to set it up. ARGUMENTs are pytest's.
#
# ci/env.sh makes the environment, or brings it up to date: the pin's own (ci/env.sh --where says which),
# or what KVCACHED_CONFORMANCE_VENV names. --as-is: it is there, and is taken as it is.
set -eu
cd "$(dirname "$0")/.."
usage() { sed -n '2s/^# /usage: ci\//p' "$0" >&2; exit 2; }
selection=all as_is="" profile=""
while [ $# -gt 0 ]; do
  case $1 in
    --as-is) as_is=1 ;;
    --core) [ $selection = all ] || usage
      selection=core ;;
    --backend) [ $selection = all ] || usage
      selection=backend KVCACHED_TEST_BACKEND=${2:-}; shift $(($# > 1))
      [ -n "$KVCACHED_TEST_BACKEND" ] || { echo "conformance: --backend: which one?" >&2; exit 2; } ;;
    --profile) [ -r "${2:-}" ] || { echo "conformance: --profile ${2:-}: no such file" >&2; exit 2; }
      profile=$(realpath "$2"); shift ;;
    -*) usage ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || usage
[ $selection = backend ] || [ -z "$profile" ] || {
  echo "conformance: --profile: it tells how to set up the backend of --backend; name one" >&2
  exit 2
}
[ -z "${KVCACHED_TEST_BACKEND:-}" ] || export KVCACHED_TEST_BACKEND
[ -z "$profile" ] || export KVCACHED_TEST_PROFILE="$profile"
pin=$1
shift
dir=$(ci/env.sh --engine "$pin" --where)
dir=${KVCACHED_CONFORMANCE_VENV:-$dir}
case ${pin%%==*} in
  vllm) mark=engine tests=tests/engine ;;
  sglang) mark=sglang tests=tests/engine_sglang ;;
esac
[ -n "$as_is" ] || ci/env.sh --engine "$pin" "$dir"
[ -x "$dir/bin/pytest" ] || {
  echo "conformance: --as-is: $dir holds no environment with pytest; ci/env.sh makes one" >&2
  exit 2
}
dir=$(realpath "$dir")
# Only what bears the kit's mark is imported: other tests look at inner things of one release.
marked=$(grep -lE 'mark\.conformance\(' "$tests"/test_*.py)
[ $selection != all ] || marked="$marked $(grep -lE 'mark\.conformance\(' tests/vmm/test_*.py tests/budget/test_*.py)"
export PYTHONDONTWRITEBYTECODE="" PYTHONPYCACHEPREFIX="$dir/pycache" PYTHONPATH="$PWD/tests"
[ $selection != backend ] || "$dir/bin/python" -m support.any_backend "${pin%%==*}"
# shellcheck disable=SC2086 # a list of files
exec "$dir/bin/pytest" -q -p no:cacheprovider -p support.conformance --conformance "$selection" \
  --conformance-subject "$pin${KVCACHED_TEST_BACKEND:+, backend $KVCACHED_TEST_BACKEND}" \
  -m "not gpu and ($mark or not (engine or sglang))" $marked "$@"
