#!/usr/bin/env bash
# Serve the examples (made if they are missing) on HOST:PORT, gRPC and metrics on the ports after it or on GRPC_PORT and METRICS_PORT; ARGS are passed on.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! .venv/bin/python -c 'import onnxruntime, sklearn, treelite' 2>/dev/null; then .venv/bin/python -m pip install --quiet -e '.[examples]'; fi
if [ ! -d examples/repository/speech ]; then .venv/bin/python examples/make_repository.py; fi
port=${PORT:-8000}
after() { if [ "$port" = 0 ]; then echo 0; else echo $((port + $1)); fi; }
ports=(--port "$port" --grpc-port "${GRPC_PORT:-$(after 1)}" --metrics-port "${METRICS_PORT:-$(after 2)}")
# shellcheck disable=SC2086
exec .venv/bin/trivium serve --model-repository examples/repository --allow-python-models --host "${HOST:-0.0.0.0}" "${ports[@]}" ${ARGS:-}
