#!/usr/bin/env bash
# Serve MODEL (default: the packaged one) on HOST:PORT (default: every interface, 8000); ARGS are passed on.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC2086
exec .venv/bin/trivium serve ${MODEL:+"$MODEL"} --host "${HOST:-0.0.0.0}" --port "${PORT:-8000}" ${ARGS:-}
