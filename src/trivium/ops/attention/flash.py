"""Triton's kernels, but prompts that start in the step through FlashAttention 3 where it is installed, else torch's flash attention.

FlashAttention 3 (Shah et al., https://arxiv.org/abs/2407.08608) takes 119, 249 and 786 us for 16 x 512, 4 x 2048 and 1 x 8192 tokens
(Llama-3-8B's heads, H200) where the paged kernel takes 200, 508 and 1642: with it this is the default. Torch's takes 310 us for the first:
never the default.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs, AttentionBackend, KVCache
from trivium.ops.attention.fresh import FreshRows, attend_fresh, can_attend_fresh, find_fresh, flash_attention_3
from trivium.ops.attention.triton import TritonAttention
from trivium.ops.batch import ForwardBatch


def create_backend(device: torch.device) -> AttentionBackend:
    return FlashPromptAttention(device)


def is_default() -> bool:
    """Whether this back end is ahead of `triton` here."""
    return flash_attention_3() is not None


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
