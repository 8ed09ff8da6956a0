"""Prompts that start in this step: everything they attend to is among the step's own keys and values, still in one piece.

A kernel for plain tensors can then compute their attention, without reading back what was just written to the paged cache.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

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


FA3_MODULES = ("fa3_fwd_interface", "flash_attn_interface")
"""Where FlashAttention 3 installs itself: the forward-only distribution `fa3-fwd`, and a build from source."""


@cache
def flash_attention_3() -> Any | None:
    """Its module, where it is installed and runs (Hopper), else None."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        return None
    found = next((name for name in FA3_MODULES if importlib.util.find_spec(name)), None)
    return import_module(found) if found else None


def can_attend_fresh(args: AttentionArgs, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a kernel for plain tensors computes this layer's attention."""
    is_plain = args.window is None and args.softcap is None and args.head_dim % 8 == 0 and args.head_dim <= 256
    dtypes = (torch.bfloat16,) if flash_attention_3() else (torch.bfloat16, torch.float16)
    return device.type == "cuda" and is_plain and dtype in dtypes


def attend_fresh(query: Tensor, key: Tensor, value: Tensor, rows: FreshRows, args: AttentionArgs) -> Tensor:
    """query [T, heads, head_dim], key and value [T, key-value heads, head_dim] of the fresh rows' tokens, heads contiguous → as query."""
    if fa3 := flash_attention_3():
        out = fa3.flash_attn_varlen_func(
            query, key, value, rows.starts, rows.starts, rows.max_len, rows.max_len, softmax_scale=args.scale, causal=True
        )
        return out[0] if isinstance(out, tuple) else out  # releases differ in whether the sums come along
    return torch.ops.aten._flash_attention_forward(
        query, key, value, rows.starts, rows.starts, rows.max_len, rows.max_len, 0.0, True, False, scale=args.scale
    )[0]
