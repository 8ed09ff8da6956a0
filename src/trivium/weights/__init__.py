"""Weights under Hugging Face names from safetensors and GGUF files."""

from __future__ import annotations

from trivium.weights.source import WeightSource, open_source

__all__ = ["WeightSource", "open_source"]
