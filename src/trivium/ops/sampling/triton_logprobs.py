"""Triton kernel for what logprobs need from a whole line: normalizer and rank. One program a line, so that a result does not depend on the batch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.sampling.triton_common import BY_LINE
from trivium.ops.triton.launch import on_device, run

TILE = 4096


@triton.jit(do_not_specialize_on_alignment=BY_LINE)
def _normalize_kernel(logits_ptr, stride, token_ids_ptr, sums_ptr, ranks_ptr, vocab_size, TILE: tl.constexpr):
    line = tl.program_id(0)
    line_ptr = logits_ptr + line.to(tl.int64) * stride
    chosen = tl.load(line_ptr + tl.load(token_ids_ptr + line)).to(tl.float32)
    maximum = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    num_above = tl.full((), 0, tl.int32)
    start = 0
    while start < vocab_size:
        ids = start + tl.arange(0, TILE)
        x = tl.load(line_ptr + ids, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(maximum, tl.max(x, axis=0))
        shift = tl.where(higher > -float("inf"), higher, 0.0)
        total = total * tl.exp(maximum - shift) + tl.sum(tl.exp(x - shift), axis=0)
        maximum = higher
        num_above += tl.sum((x > chosen).to(tl.int32), axis=0)
        start += TILE
    tl.store(sums_ptr + line, maximum + tl.log(total))
    tl.store(ranks_ptr + line, num_above.to(tl.int64) + 1)


def normalize(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """logits [N, V] of any float type, token_ids [N] int64 → (log-sum-exp [N] float32, rank of the token [N] int64, from 1)."""
    num_lines, vocab_size = logits.shape
    assert logits.stride(1) == 1
    sums = torch.empty(num_lines, dtype=torch.float32, device=logits.device)
    ranks = torch.empty(num_lines, dtype=torch.int64, device=logits.device)
    if num_lines:
        with on_device(logits):
            run(_normalize_kernel, (num_lines,))(logits, logits.stride(0), token_ids, sums, ranks, vocab_size, TILE=TILE, num_warps=8)
    return sums, ranks
