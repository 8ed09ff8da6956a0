"""Triton's kernels, but prompts that start in the step through torch's flash attention.

Not the default: with unequal lengths torch's kernel takes 310 us where the paged one takes 236 (16 prompts of 512 tokens, Llama-3-8B's heads,
H200), and as long at 2,048. It is here for devices and releases of torch where that differs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs, AttentionBackend, KVCache
from trivium.ops.attention.fresh import FreshRows, attend_fresh, can_attend_fresh, find_fresh
from trivium.ops.attention.triton import TritonAttention
from trivium.ops.batch import ForwardBatch


def create_backend(device: torch.device) -> AttentionBackend:
    return FlashPromptAttention(device)


class FlashPromptAttention(TritonAttention):
    """See the module."""

    name = "flash"

    def plan(self, batch: ForwardBatch) -> None:
        super().plan(batch)
        # A prompt's bits must not depend on whether a part of it was cached: with fixed splits one kernel reads all of them.
        if self.fixed_split_tokens is None:
            batch.attn.fresh = find_fresh(batch)

    def wants_fresh(self, batch: ForwardBatch, args: AttentionArgs, dtype: torch.dtype) -> bool:
        return batch.attn.fresh is not None and can_attend_fresh(args, dtype, self.device)

    def forward_fresh(self, query: Tensor, key: Tensor, value: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs) -> Tensor:
        fresh: FreshRows = batch.attn.fresh
        begin = fresh.first_token
        of_fresh = attend_fresh(query[begin:], key[begin:], value[begin:], fresh, args)
        if not begin:
            return of_fresh
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self.paged(query[:begin], cache, batch, args, fresh.first_row, out)
        out[begin:].copy_(of_fresh)
        return out
