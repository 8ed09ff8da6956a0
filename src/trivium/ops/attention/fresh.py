"""Prompts that start in this step: everything they attend to is among the step's own keys and values, still in one piece.

A kernel for plain tensors can then compute their attention, without reading back what was just written to the paged cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs
from trivium.ops.batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class FreshRows:
    """The last rows of a batch, from `first_row`, whose tokens begin at `first_token`."""

    first_row: int
    first_token: int
    starts: Tensor  # [rows + 1] int32, from 0
    max_len: int


def find_fresh(batch: ForwardBatch) -> FreshRows | None:
    """The rows at the end of the batch that have nothing in the cache but this step's tokens. None when there are none, or inside a graph."""
    starts, lens = batch.query_starts_cpu, batch.seq_lens_cpu
    if starts is None or lens is None:
        return None
    first = len(lens)
    while first > batch.num_decodes and lens[first - 1] == starts[first] - starts[first - 1]:
        first -= 1
    if first == len(lens):
        return None
    begin = starts[first]
    device_starts = batch.query_starts[first:]
    return FreshRows(first, begin, device_starts - begin if begin else device_starts, max(lens[first:]))


def can_attend_fresh(args: AttentionArgs, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch's kernel computes this layer's attention."""
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and args.window is None
        and args.softcap is None
        and args.head_dim % 8 == 0
        and args.head_dim <= 256
    )


def attend_fresh(query: Tensor, key: Tensor, value: Tensor, rows: FreshRows, args: AttentionArgs) -> Tensor:
    """query [T, heads, head_dim], key and value [T, key-value heads, head_dim] of the fresh rows' tokens, heads contiguous → as query."""
    return torch.ops.aten._flash_attention_forward(
        query, key, value, rows.starts, rows.starts, rows.max_len, rows.max_len, 0.0, True, False, scale=args.scale
    )[0]
