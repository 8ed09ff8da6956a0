"""Qwen3-MoE: Llama's names with a router and numbered experts below `mlp`."""

from __future__ import annotations

from dataclasses import replace

from trivium.arch.spec import ModelSpec
from trivium.layers.moe import MoeNames
from trivium.models.layout import LayerNames, Layout
from trivium.models.llama import layer_names as llama_names


def create_layout(spec: ModelSpec) -> Layout:
    return Layout(layer=_layer_names)


def _layer_names(layer: int) -> LayerNames:
    mlp = f"model.layers.{layer}.mlp"
    return replace(llama_names(layer), moe=MoeNames(router=f"{mlp}.gate", expert=lambda index: expert_names(mlp, index)))


def expert_names(mlp: str, index: int) -> tuple[str, str, str]:
    """Gate, up, down of one expert."""
    prefix = f"{mlp}.experts.{index}"
    return f"{prefix}.gate_proj", f"{prefix}.up_proj", f"{prefix}.down_proj"
