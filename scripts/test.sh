#!/usr/bin/env bash
# Every check and test that runs without a GPU, in one pytest run at the end so that its closing line counts them all.
set -uo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
workers=${WORKERS:-$(( $(nproc) < 4 ? $(nproc) : 4 ))}
status=0

scripts/check.sh || status=1

printf '\n\033[1m== tests/null within its time\033[0m\n'
start=$SECONDS
$python -m pytest -q tests/null || status=1
elapsed=$((SECONDS - start))
echo "tests/null took $elapsed s (limit: 20 s)"
[ $elapsed -le 20 ] || { echo "failed: tests/null is too slow" >&2; status=1; }

printf '\n\033[1m== all tests, %s at a time\033[0m\n' "$workers"
$python -m pytest -q -n "$workers" --dist loadfile --cov --cov-report= tests || status=1
$python scripts/coverage_gate.py || status=1
exit $status
