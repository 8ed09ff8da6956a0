"""How a checkpoint names its tensors: what a family file says, and all that it says."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trivium.layers.attention import AttentionNames
from trivium.layers.feed_forward import FeedForwardNames
from trivium.layers.mla import MlaNames
from trivium.layers.moe import MoeNames


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Names inside one layer. Norms, in the order they run; `post_*` only where the spec has norms after the blocks."""

    attention: AttentionNames | MlaNames
    feed_forward: FeedForwardNames
    input_norm: str
    feed_forward_norm: str
    moe: MoeNames | None = None
    post_attention_norm: str = ""
    post_feed_forward_norm: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of a whole model, without `.weight`."""

    layer: Callable[[int], LayerNames]
    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    ignored: Sequence[str] = field(default=())
    """Regular expressions (whole names) of tensors that a checkpoint may hold and that we don't need."""

    def is_ignored(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in (*IGNORED, *self.ignored))


IGNORED = (r".*\.rotary_emb\.inv_freq", r".*\.self_attn\.masked_bias", r".*\.self_attn\.bias")
"""Buffers that old releases saved along: they follow from the config."""


def attention_names(prefix: str, *, stacked: bool = False) -> AttentionNames:
    """`self_attn` as Llama names it; `stacked`: query, key and value are one tensor."""
    attention = f"{prefix}.self_attn"
    qkv = [f"{attention}.qkv_proj"] if stacked else [f"{attention}.{part}_proj" for part in "qkv"]
    return AttentionNames(qkv=qkv, output=f"{attention}.o_proj", q_norm=f"{attention}.q_norm", k_norm=f"{attention}.k_norm")


def feed_forward_names(prefix: str, *, stacked: bool = False) -> FeedForwardNames:
    """`gate_proj`, `up_proj` and `down_proj` below `prefix`; `stacked`: gate and up are one tensor."""
    gate_up = [f"{prefix}.gate_up_proj"] if stacked else [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
    return FeedForwardNames(gate_up=gate_up, down=f"{prefix}.down_proj")
