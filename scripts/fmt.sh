#!/usr/bin/env bash
# Format, and fix what ruff can fix by itself.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/ruff check --fix .
.venv/bin/ruff format .
