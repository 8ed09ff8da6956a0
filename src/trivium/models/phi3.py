"""Phi-3: Llama's names, but query, key and value are one tensor, and so are gate and up."""

from __future__ import annotations

from trivium.arch.spec import ModelSpec
from trivium.models.layout import LayerNames, Layout, attention_names, feed_forward_names


def create_layout(spec: ModelSpec) -> Layout:
    return Layout(layer=_layer_names)


def _layer_names(layer: int) -> LayerNames:
    prefix = f"model.layers.{layer}"
    return LayerNames(
        attention=attention_names(prefix, stacked=True),
        feed_forward=feed_forward_names(f"{prefix}.mlp", stacked=True),
        input_norm=f"{prefix}.input_layernorm",
        feed_forward_norm=f"{prefix}.post_attention_layernorm",
    )
