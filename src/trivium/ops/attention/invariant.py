"""Triton's attention for batch invariance: every token goes through one kernel, with one tile shape, over its keys in order.

What a token gets then depends on neither the rows beside it nor on how its prompt was cut: a decoded token is computed as the same token of a
prompt would be. The price is that long rows are not split over multiprocessors while they decode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs, AttentionBackend, KVCache
from trivium.ops.attention.triton import TritonAttention
from trivium.ops.batch import ForwardBatch
from trivium.ops.triton import prefill
from trivium.ops.triton.launch import next_pow2


def create_backend(device: torch.device) -> AttentionBackend:
    return InvariantAttention(device)


class InvariantAttention(TritonAttention):
    """See the module. Not for latent attention, whose kernel splits rows."""

    name = "invariant"
    is_batch_invariant = True

    def forward(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs) -> Tensor:
        group = args.num_heads // args.num_kv_heads
        head_bytes = next_pow2(args.head_dim) * query.element_size()
        config = prefill.PrefillConfig(block_m=max(64, next_pow2(group)), tile=64 if head_bytes <= 256 else 32, num_warps=4, num_stages=2)
        return prefill.paged_prefill(query, cache, batch.block_tables, batch.query_starts, batch.seq_lens, args, config)

    def forward_mla(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs, value_dim: int) -> Tensor:
        raise NotImplementedError("refused before anything runs: see engine.invariance")
