"""Attention on the CPU through the compiled kernels, and plain torch for types other than float32 and bf16."""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.errors import ConfigError
from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.attention.reference import ReferenceAttention
from trivium.ops.batch import ForwardBatch
from trivium.ops.cpu.attention import paged_attention, supports
from trivium.ops.cpu.library import kernels


def create_backend(device: torch.device) -> CPUAttention:
    """Raises `ConfigError` where the kernels can't be built; "auto" chooses the reference there."""
    if kernels() is None:
        raise ConfigError("attention_backend cpu needs the compiled CPU kernels, and they are not available here.", param="attention_backend")
    return CPUAttention()


class CPUAttention(ReferenceAttention):
    """What a query gets doesn't depend on the batch, the chunking or the number of threads."""

    name = "cpu"
    is_batch_invariant = True

    def forward(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs) -> Tensor:
        if not supports(query, cache):
            return super().forward(query, cache, batch, args)
        return paged_attention(query, cache, batch, args)

    def forward_mla(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs, value_dim: int) -> Tensor:
        """The latent is key and value of one head that all query heads share; its rotated part is weighed along and cut off."""
        shared = cache.key.unsqueeze(1)  # [num_blocks, 1, block_size, L + R]
        one_head = KVCache(shared, shared)
        if not supports(query, one_head):
            return super().forward_mla(query, cache, batch, args, value_dim)
        return paged_attention(query, one_head, batch, args)[..., :value_dim]
