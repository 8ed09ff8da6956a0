"""All layers of a decoder as one op, where a device has such a thing: what to hand over, and the hand-over.

There is no reference here: the layers themselves are it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.batch import ForwardBatch
from trivium.ops.dispatch import fast_path
from trivium.ops.linear import PackedWeight


@dataclass(frozen=True, slots=True)
class Projection:
    weight: PackedWeight
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class LayerParts:
    """One layer: grouped-query attention and a gated feed-forward block, each behind a norm and added to the residual stream."""

    input_norm: Tensor
    qkv: Projection
    q_norm: Tensor | None
    k_norm: Tensor | None
    cos_sin: Tensor
    rotary_dim: int
    interleaved: bool
    attention: AttentionArgs
    output: Projection
    post_attention_norm: Tensor | None
    feed_forward_norm: Tensor
    gate_up: Projection
    down: Projection
    post_feed_forward_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderParts:
    layers: Sequence[LayerParts]
    final_norm: Tensor
    norm_eps: float
    norm_offset: float
    activation: str


class FusedLayers(Protocol):
    """From embeddings to the final norm."""

    def __call__(self, embeddings: Tensor, batch: ForwardBatch, caches: Sequence[KVCache]) -> Tensor:
        """embeddings [T, hidden], overwritten → [T, hidden], normed. The step's keys and values enter the caches."""
        ...


def try_fuse_layers(parts: DecoderParts) -> FusedLayers | None:
    """None where the device has no such op, or not for these layers."""
    if fast := fast_path("fuse_layers", parts.final_norm):
        return fast(parts)
    return None
