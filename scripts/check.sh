#!/usr/bin/env bash
# Static checks: lint, format, types, layers. All of them run even if one fails.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
failed=()
bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
run() {
    printf '\n%s== %s%s\n' "$bold" "$1" "$plain"
    shift
    "$@" || failed+=("$*")
}
run "lint" $bin/ruff check --output-format concise .
run "format" $bin/ruff format --check --output-format concise .
run "types" $bin/basedpyright --pythonpath $bin/python
run "layers" $bin/lint-imports --no-logo --no-cache
for command in "${failed[@]}"; do echo "failed: $command" >&2; done
exit $((${#failed[@]} > 0))
