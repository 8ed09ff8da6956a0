#!/usr/bin/env bash
# Remove the environment, caches and built files; nothing that git tracks.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf .venv build dist .coverage .coverage.* .hypothesis .pytest_cache .ruff_cache .import_linter_cache
find . -name __pycache__ -type d -prune -exec rm -rf {} +
