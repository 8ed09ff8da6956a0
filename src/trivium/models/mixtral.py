"""Mixtral: Llama's names with `block_sparse_moe`, whose w1, w3 and w2 are gate, up and down."""

from __future__ import annotations

from dataclasses import replace

from trivium.arch.spec import ModelSpec
from trivium.layers.moe import MoeNames
from trivium.models.layout import LayerNames, Layout
from trivium.models.llama import layer_names as llama_names


def create_layout(spec: ModelSpec) -> Layout:
    return Layout(layer=_layer_names)


def _layer_names(layer: int) -> LayerNames:
    moe = f"model.layers.{layer}.block_sparse_moe"

    def expert(index: int) -> tuple[str, str, str]:
        prefix = f"{moe}.experts.{index}"
        return f"{prefix}.w1", f"{prefix}.w3", f"{prefix}.w2"

    return replace(llama_names(layer), moe=MoeNames(router=f"{moe}.gate", expert=expert))
