"""Checkpoint layouts by name (`ModelSpec.weight_layout`), created lazily."""

from __future__ import annotations

from importlib import import_module

from trivium.arch.spec import ModelSpec
from trivium.models.layout import Layout

LAYOUTS: dict[str, str] = {
    "llama": "trivium.models.llama:create_layout",
    "phi3": "trivium.models.phi3:create_layout",
    "gemma2": "trivium.models.gemma:create_layout",
    "gemma3": "trivium.models.gemma:create_layout",
    "gemma3_multimodal": "trivium.models.gemma:create_multimodal_layout",
    "mixtral": "trivium.models.mixtral:create_layout",
    "qwen3_moe": "trivium.models.qwen3_moe:create_layout",
    "deepseek": "trivium.models.deepseek:create_layout",
}


def create_layout(spec: ModelSpec) -> Layout:
    module, _, function = LAYOUTS[spec.weight_layout].partition(":")
    return getattr(import_module(module), function)(spec)
