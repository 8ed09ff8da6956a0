#!/usr/bin/env bash
# Every check and test that runs without a GPU. WORKERS=n sets how many test processes run at a time.
set -uo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
cores=$(getconf _NPROCESSORS_ONLN)
workers=${WORKERS:-$((cores < 4 ? cores : 4))}
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
failed=()
bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s== %s%s\n' "$bold" "$1" "$plain"; }

scripts/check.sh || failed+=("static checks")

if command -v g++ c++ >/dev/null; then
    say "CPU kernels"
    # Their tests are skipped where there is no compiler; where there is one, a failed build must not pass as that.
    $python -m trivium.ops.cpu.build || failed+=("CPU kernels")
fi

say "tests/null within its time"
# Processor time, so that a busy machine does not fail the build.
times=$(mktemp)
TIMEFORMAT='%U %S'
exec 3>&2
{ time $python -m pytest -q tests/null 2>&3 || failed+=("tests/null"); } 2>"$times"
seconds=$(awk '{ print int($1 + $2) }' "$times")
rm -f "$times"
echo "tests/null took $seconds s of processor time (limit: 60 s)"
((seconds <= 60)) || failed+=("tests/null takes too long")

say "tests/null and tests/unit, $workers at a time, with coverage"
$python -m pytest -q -n "$workers" --dist loadfile --cov --cov-report= tests/null tests/unit || failed+=("tests/unit")

say "tests/api"
# One at a time: these measure how soon a server does things.
$python -m pytest -q --cov --cov-append --cov-report= tests/api || failed+=("tests/api")
$python scripts/coverage_gate.py || failed+=("coverage")

for what in "${failed[@]}"; do echo "failed: $what" >&2; done
exit $((${#failed[@]} > 0))
