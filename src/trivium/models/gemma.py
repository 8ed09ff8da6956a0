"""Gemma 2 and 3: Llama's names and four norms a layer. `post_attention_layernorm` means what it says here."""

from __future__ import annotations

from trivium.arch.spec import ModelSpec
from trivium.models.layout import LayerNames, Layout, attention_names, feed_forward_names


def create_layout(spec: ModelSpec) -> Layout:
    return Layout(layer=lambda layer: _layer_names("model", layer))


def create_multimodal_layout(spec: ModelSpec) -> Layout:
    """The language model inside a vision checkpoint; the vision tower stays on disk."""
    root = "language_model.model"
    return Layout(
        layer=lambda layer: _layer_names(root, layer),
        embedding=f"{root}.embed_tokens",
        norm=f"{root}.norm",
        head="language_model.lm_head",
        ignored=(r"vision_tower\..*", r"multi_modal_projector\..*"),
    )


def _layer_names(root: str, layer: int) -> LayerNames:
    prefix = f"{root}.layers.{layer}"
    return LayerNames(
        attention=attention_names(prefix),
        feed_forward=feed_forward_names(f"{prefix}.mlp"),
        input_norm=f"{prefix}.input_layernorm",
        post_attention_norm=f"{prefix}.post_attention_layernorm",
        feed_forward_norm=f"{prefix}.pre_feedforward_layernorm",
        post_feed_forward_norm=f"{prefix}.post_feedforward_layernorm",
    )
