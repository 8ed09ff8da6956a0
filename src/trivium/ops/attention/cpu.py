"""Attention on the CPU through the compiled kernels, and plain torch for what they don't do (MLA, types other than float32 and bf16)."""

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

    def forward(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs) -> Tensor:
        if not supports(query, cache):
            return super().forward(query, cache, batch, args)
        return paged_attention(query, cache, batch, args)
