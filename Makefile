# Every target is one short script in scripts/; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev serve serve-repository chat test test-gpu fmt check bench docs clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  Variables: PORT=8000 HOST=0.0.0.0 MODEL=folder-or-name ARGS="more flags" PYTHON=python3.11 TORCH_ARGS="pip arguments for torch"'
	@echo '  serve-repository takes the two ports after PORT for gRPC and metrics; GRPC_PORT=… METRICS_PORT=… name others'

setup:  ## make .venv and install everything that serving needs
	@scripts/setup.sh serve

setup-dev:  ## the same, with the tools for tests
	@scripts/setup.sh dev

serve: setup  ## serve a model on port 8000
	@scripts/serve.sh

serve-repository: setup  ## serve examples/repository, models of every kind, made if it is missing
	@scripts/serve_repository.sh

chat: setup  ## talk to a model in this terminal
	@.venv/bin/trivium chat $(MODEL)

test: setup-dev  ## every check and test that runs without a GPU
	@scripts/test.sh

test-gpu: setup-dev  ## the tests that need a CUDA device
	@.venv/bin/python -m pytest tests/gpu

fmt: setup-dev  ## format and fix what can be fixed
	@scripts/fmt.sh

check: setup-dev  ## lint, types, layers: no tests
	@scripts/check.sh

bench: setup-dev  ## measure serving on this machine's CPU
	@scripts/bench.sh

docs: setup-dev  ## write the generated pages of docs/
	@.venv/bin/python scripts/generate_docs.py

clean:  ## remove the environment and everything that was built
	@scripts/clean.sh
