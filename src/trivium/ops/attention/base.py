"""The interface of an attention back end, and the layout of the paged cache that all of them share.

Cache of a layer, keys and values apart: `[num_blocks, num_kv_heads, block_size, head_dim]`, so that one head's run of a block is
contiguous. `permute(0, 2, 1, 3)` gives the layout other libraries call NHD, without a copy. MLA keeps one tensor
`[num_blocks, block_size, kv_lora_rank + rope_dim]` instead. Block 0 belongs to nobody: padding reads and writes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.ops.batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class KVCache:
    """One layer's part of the cache. For MLA `value` is None and `key` holds the compressed latent followed by the rotated key."""

    key: Tensor
    value: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionArgs:
    """What one layer's attention needs to know besides tensors."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    """A token sees itself and the `window - 1` tokens before it; None: all before it."""
    softcap: float | None = None
    """Scores become `softcap * tanh(scores / softcap)` before masking."""


class AttentionBackend(ABC):
    """Causal attention of each row's new tokens over everything the row has in the cache, the new tokens included.

    Keys and values of the step are already written when `forward` runs (`ops.kv_write`).
    """

    name: str
    is_batch_invariant: bool = False
    """What a token gets is the same to the bit whatever rows are computed with it and however its own are cut into chunks."""

    is_capturable: bool = False
    """Steps can be captured in a CUDA graph: how many rows and tokens there are is read on the device alone."""

    @abstractmethod
    def plan(self, batch: ForwardBatch) -> None:
        """Once a step, before the first layer: prepare what all layers share and leave it in `batch.attn`. No device synchronization."""

    @abstractmethod
    def forward(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs) -> Tensor:
        """query [T, num_heads, head_dim] → [T, num_heads, head_dim]."""

    def wants_fresh(self, batch: ForwardBatch, args: AttentionArgs, dtype: torch.dtype) -> bool:
        """Whether `forward_fresh` is to be called in place of `forward`."""
        return False

    def forward_fresh(self, query: Tensor, key: Tensor, value: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs) -> Tensor:
        """As `forward`, given the step's own keys and values, too: [T, num_kv_heads, head_dim], rotated, each head contiguous."""
        raise NotImplementedError

    @abstractmethod
    def forward_mla(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs, value_dim: int) -> Tensor:
        """Attention in the latent space: query [T, num_heads, kv_lora_rank + rope_dim], all heads share the one cached vector per token,
        whose first `value_dim` entries are the value → [T, num_heads, value_dim]."""
