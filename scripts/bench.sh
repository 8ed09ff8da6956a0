#!/usr/bin/env bash
# Measure serving MODEL (default: the packaged one) on this machine's CPU; ARGS go to the benchmark.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
# shellcheck disable=SC2086
exec python benchmarks/cpu_serving.py --model "${MODEL:-$(trivium pull)}" ${ARGS:-}
