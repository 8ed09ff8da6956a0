#!/usr/bin/env bash
# Measure serving on this machine's CPU; arguments go to the benchmark.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python benchmarks/cpu_serving.py "$@"
