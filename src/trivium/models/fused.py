"""A decoder's layers handed to the device as one op, where it has one that fits all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.layers.attention import Attention
from trivium.layers.feed_forward import FeedForward
from trivium.layers.linear import Linear
from trivium.ops.decoder import DecoderParts, FusedLayers, LayerParts, Projection, try_fuse_layers

if TYPE_CHECKING:
    from trivium.models.decoder import Decoder, DecoderLayer


def try_fuse(model: Decoder) -> FusedLayers | None:
    """After loading, when weights are packed. None for mixtures of experts, latent attention, several ranks, and unpacked weights."""
    layers = [_parts(layer) for layer in model.layers]
    found = [layer for layer in layers if layer is not None]
    if len(found) < len(layers):
        return None
    spec = model.spec
    return try_fuse_layers(DecoderParts(found, model.norm.weight, spec.norm_eps, spec.norm_offset, spec.activation))


def _parts(layer: DecoderLayer) -> LayerParts | None:
    attention, feed_forward = layer.attention, layer.feed_forward
    if not isinstance(attention, Attention) or not isinstance(feed_forward, FeedForward):
        return None
    if attention.parallel.size > 1 or attention.backend.name != "cpu":
        return None
    projections = [_projection(linear) for linear in (attention.qkv, attention.output, feed_forward.gate_up, feed_forward.down)]
    qkv, output, gate_up, down = projections
    if qkv is None or output is None or gate_up is None or down is None:
        return None
    return LayerParts(
        input_norm=layer.input_norm.weight,
        qkv=qkv,
        q_norm=attention.q_norm.weight if attention.q_norm else None,
        k_norm=attention.k_norm.weight if attention.k_norm else None,
        cos_sin=attention.rope.cos_sin,
        rotary_dim=attention.rope.rotary_dim,
        interleaved=attention.rope.interleaved,
        attention=attention.args,
        output=output,
        post_attention_norm=layer.post_attention_norm.weight if layer.post_attention_norm else None,
        feed_forward_norm=layer.feed_forward_norm.weight,
        gate_up=gate_up,
        down=down,
        post_feed_forward_norm=layer.post_feed_forward_norm.weight if layer.post_feed_forward_norm else None,
    )


def _projection(linear: Linear) -> Projection | None:
    return None if linear.packed is None else Projection(linear.packed, linear.bias)
