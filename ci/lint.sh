#!/bin/sh
# lint.sh [GATE...]: every gate that needs no build, or those named. Runs them all, then says which
# are red and exits with 1. A missing tool is red: tools come from $KVCACHED_VENV/bin or PATH, at the
# versions that pyproject.toml pins.
set -u
cd "$(dirname "$0")/.." || exit 2
[ -n "${KVCACHED_VENV:-}" ] && PATH="$KVCACHED_VENV/bin:$PATH"
red=""

gate() { # gate NAME: runs the function gate_NAME, remembers a failure
  if "gate_$(echo "$1" | tr - _)"; then echo "lint: $1: ok"; else
    echo "lint: $1: RED" >&2
    red="$red $1"
  fi
}

have() { # have TOOL: there, and at the pinned version if one is pinned
  if ! command -v "$1" >/dev/null 2>&1; then
    echo "lint: $1 is missing: pip install '.[lint]' (or set KVCACHED_VENV to where it is)" >&2
    return 1
  fi
  pin=$(sed -n "s/^lint = .*\"$1==\([^\"]*\)\".*/\1/p" pyproject.toml)
  case $("$1" --version) in
    *"$pin"*) ;;
    *)
      echo "lint: $1 is $("$1" --version), expected $pin: pip install '.[lint]'" >&2
      return 1
      ;;
  esac
}

gate_ruff_check() { have ruff && ruff check --quiet .; }
gate_ruff_format() { have ruff && ruff format --quiet --check .; }
gate_mypy_core() { have mypy && mypy --strict --no-error-summary --package kvcached_core; }
gate_mypy_tools() {
  have mypy && MYPYPATH=tools mypy --strict --no-error-summary tools/*.py ci/*.py
}
gate_mypy_demo() {
  have mypy && MYPYPATH=ci/demo:tests mypy --strict --no-error-summary ci/demo/*.py
}
gate_clang_format() {
  have clang-format || return 1
  files=$(find csrc -name '*.cc' -o -name '*.h' | sort)
  [ -n "$files" ] || { echo "lint: csrc holds no C++ files" >&2; return 1; }
  # shellcheck disable=SC2086 # our paths hold no blanks
  clang-format --dry-run -Werror $files
}
gate_import_directions() {
  have python3 && python3 ci/import_directions.py .
}
gate_machine_paths() { # paths of one machine say nothing to another
  have git || return 1
  files=$(git ls-files --cached --others --exclude-standard)
  [ -n "$files" ] || { echo "lint: git lists no files" >&2; return 1; }
  found=$(printf '%s\n' "$files" | tr '\n' '\0' |
    xargs -0 grep -sInE '(^|[^[:alnum:]_.-])/(work|farm)/' -- /dev/null)
  [ -z "$found" ] || { printf '%s\n' "$found" >&2; return 1; }
}

gates="ruff-check ruff-format mypy-core mypy-tools mypy-demo clang-format import-directions machine-paths"
for name in "$@"; do
  case " $gates " in
    *" $name "*) ;;
    *)
      echo "lint: no gate '$name'; gates: $gates" >&2
      exit 2
      ;;
  esac
done
for name in ${*:-$gates}; do gate "$name"; done

[ -z "$red" ] && exit 0
echo "lint: red:$red" >&2
exit 1
