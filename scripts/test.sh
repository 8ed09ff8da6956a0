#!/usr/bin/env bash
# Every check and test that runs without a GPU. WORKERS=n sets how many test processes run at a time.
set -uo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
cores=$(getconf _NPROCESSORS_ONLN)
workers=${WORKERS:-$((cores < 4 ? cores : 4))}
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
failed=()

scripts/check.sh || failed+=("static checks")

if command -v g++ c++ >/dev/null; then
    printf '\n\033[1m== CPU kernels\033[0m\n'
    # Their tests are skipped where there is no compiler; where there is one, a failed build must not pass as that.
    $python -m trivium.ops.cpu.build || failed+=("CPU kernels")
fi

printf '\n\033[1m== tests/null within its time\033[0m\n'
# Processor time, so that a busy machine does not fail the build.
times=$(mktemp)
TIMEFORMAT='%U %S'
exec 3>&2
{ time $python -m pytest -q tests/null 2>&3 || failed+=("tests/null"); } 2>"$times"
seconds=$(awk '{ print int($1 + $2) }' "$times")
rm -f "$times"
echo "tests/null took $seconds s of processor time (limit: 20 s)"
((seconds <= 20)) || failed+=("tests/null takes too long")

printf '\n\033[1m== tests/null and tests/unit, %s at a time, with coverage\033[0m\n' "$workers"
$python -m pytest -q -n "$workers" --dist loadfile --cov --cov-report= tests/null tests/unit || failed+=("tests/unit")

printf '\n\033[1m== tests/api\033[0m\n'
# One at a time: these measure how soon a server does things.
$python -m pytest -q --cov --cov-append --cov-report= tests/api || failed+=("tests/api")
$python scripts/coverage_gate.py || failed+=("coverage")

for what in "${failed[@]}"; do echo "failed: $what" >&2; done
exit $((${#failed[@]} > 0))
