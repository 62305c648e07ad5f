#!/bin/sh
# Every gate that needs no build. Runs them all, then says which are red; a missing tool is red.
# Tools come from $KVCACHED_VENV/bin or PATH, at the versions that pyproject.toml pins.
set -u
cd "$(dirname "$0")/.." || exit 2
[ -n "${KVCACHED_VENV:-}" ] && PATH="$KVCACHED_VENV/bin:$PATH"
red=""

gate() { # gate NAME COMMAND...: runs it, remembers a failure
  name=$1
  shift
  if "$@"; then echo "lint: $name: ok"; else
    echo "lint: $name: RED" >&2
    red="$red $name"
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

ruff_check() { have ruff && ruff check --quiet .; }
ruff_format() { have ruff && ruff format --quiet --check .; }
mypy_core() { have mypy && mypy --strict --no-error-summary --package kvcached_core; }
mypy_tools() {
  have mypy && MYPYPATH=tools mypy --strict --no-error-summary tools/*.py ci/*.py
}
cpp_format() {
  have clang-format || return 1
  files=$(find csrc -name '*.cc' -o -name '*.h' | sort)
  [ -n "$files" ] || { echo "lint: csrc holds no C++ files" >&2; return 1; }
  # shellcheck disable=SC2086 # our paths hold no blanks
  clang-format --dry-run -Werror $files
}
directions() {
  have python3 && python3 ci/import_directions.py .
}
paths() { # paths of one machine say nothing to another
  have git || return 1
  files=$(git ls-files --cached --others --exclude-standard)
  [ -n "$files" ] || { echo "lint: git lists no files" >&2; return 1; }
  found=$(printf '%s\n' "$files" | tr '\n' '\0' |
    xargs -0 grep -sInE '(^|[^[:alnum:]_.-])/(work|farm)/' -- /dev/null)
  [ -z "$found" ] || { printf '%s\n' "$found" >&2; return 1; }
}

gate ruff-check ruff_check
gate ruff-format ruff_format
gate mypy-core mypy_core
gate mypy-tools mypy_tools
gate clang-format cpp_format
gate import-directions directions
gate machine-paths paths

[ -z "$red" ] && exit 0
echo "lint: red:$red" >&2
exit 1
