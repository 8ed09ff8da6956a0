"""Tensor names that Llama introduced; Mistral, Qwen2 and Qwen3 kept them."""

from __future__ import annotations

from trivium.arch.spec import ModelSpec
from trivium.models.layout import LayerNames, Layout, attention_names, feed_forward_names


def create_layout(spec: ModelSpec) -> Layout:
    return Layout(layer=layer_names)


def layer_names(layer: int) -> LayerNames:
    prefix = f"model.layers.{layer}"
    return LayerNames(
        attention=attention_names(prefix),
        feed_forward=feed_forward_names(f"{prefix}.mlp"),
        input_norm=f"{prefix}.input_layernorm",
        feed_forward_norm=f"{prefix}.post_attention_layernorm",
    )
