#!/usr/bin/env bash
# Serve MODEL (default: the packaged one) on HOST:PORT; ARGS are passed on.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC2086
exec .venv/bin/trivium serve ${MODEL:+"$MODEL"} ${HOST:+--host "$HOST"} --port "${PORT:-8000}" ${ARGS:-}
