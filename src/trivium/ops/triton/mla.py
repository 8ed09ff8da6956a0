"""Attention in the latent space of MLA (DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1): all heads of a token share the one
cached vector per token, whose first part is also the value.

Heads fill the rows of the matrix tile, so the cache is read once for BLOCK_H of them. Every token of the batch is an item of its own, or
several (see `decode`), with the tokens up to its position as its length: that serves decoding, and prompts where they are short.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs
from trivium.ops.triton.decode import DecodeConfig, DecodeSchedule, finish_item
from trivium.ops.triton.launch import LOG2E, block_ids, cdiv, next_pow2, on_device, pdl, run, tanh, wait_and_trigger


@dataclass(frozen=True, slots=True)
class MlaConfig:
    """How the kernel is cut."""

    tile: int = 32
    block_h: int = 16
    num_warps: int = 4
    num_stages: int = 2

    @property
    def decode(self) -> DecodeConfig:
        """What the schedule needs to know."""
        return DecodeConfig(tile=self.tile, items_per_sm=2)


@triton.jit(do_not_specialize=["stride_table"], do_not_specialize_on_alignment=["tables_ptr", "rows_ptr", "lens_ptr"])
def _mla_kernel(
    q_ptr, cache_ptr, out_ptr, partial_ptr, lse_ptr, arrivals_ptr, items_ptr, num_items_ptr, tables_ptr, rows_ptr, lens_ptr,
    scale, softcap, stride_qt, stride_qh, stride_cb, stride_cs, stride_table,
    H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_R: tl.constexpr,
    TILE: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """L: entries that are also the value; R: the rest, the rotated part of the key."""
    HEAD_BLOCKS: tl.constexpr = (H + BLOCK_H - 1) // BLOCK_H
    head_block = tl.program_id(0)
    index = tl.program_id(1)
    wait_and_trigger(PDL)
    if index >= tl.load(num_items_ptr):
        return
    token = tl.load(items_ptr + index * 4).to(tl.int64)
    run = tl.load(items_ptr + index * 4 + 1)
    partial_base = tl.load(items_ptr + index * 4 + 2)
    split = tl.load(items_ptr + index * 4 + 3)
    length = tl.load(lens_ptr + token)
    first_tile = run & 0xFFFF
    end_tile = first_tile + (run >> 16)

    h = head_block * BLOCK_H + tl.arange(0, BLOCK_H)
    c = tl.arange(0, BLOCK_L)
    r = tl.arange(0, BLOCK_R)
    n = tl.arange(0, TILE)
    q_rows = q_ptr + token * stride_qt + h[:, None] * stride_qh
    q_latent = tl.load(q_rows + c[None, :], mask=(h < H)[:, None] & (c < L)[None, :], other=0.0)
    q_rotated = tl.load(q_rows + L + r[None, :], mask=(h < H)[:, None] & (r < R)[None, :], other=0.0)

    table = tables_ptr + tl.load(rows_ptr + token).to(tl.int64) * stride_table
    peak = tl.full([BLOCK_H], -1.0e38, tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_L], tl.float32)
    end = tl.minimum(end_tile * TILE, length)
    blocks = block_ids(table, first_tile, end, TILE, PAGE)
    for tile in tl.range(first_tile, end_tile, num_stages=STAGES):
        tokens = tile * TILE + n
        inside = tokens < length
        if PAGE >= TILE:
            cached = cache_ptr + blocks * stride_cb + ((tile * TILE) % PAGE + n)[:, None] * stride_cs
        else:
            cached = cache_ptr + blocks[:, None] * stride_cb + (tokens % PAGE)[:, None] * stride_cs
        blocks = block_ids(table, tile + 1, end, TILE, PAGE)
        latent = tl.load(cached + c[None, :], mask=inside[:, None] & (c < L)[None, :], other=0.0).to(q_latent.dtype)
        rotated = tl.load(cached + L + r[None, :], mask=inside[:, None] & (r < R)[None, :], other=0.0).to(q_latent.dtype)
        scores = tl.dot(q_latent, tl.trans(latent), input_precision=PRECISION)
        scores = tl.dot(q_rotated, tl.trans(rotated), scores, input_precision=PRECISION) * scale
        if SOFTCAP:
            scores = softcap * tanh(scores / softcap)
        scores *= LOG2E
        if WINDOW > 0:
            inside = inside & (tokens >= length - WINDOW)
        scores = tl.where(inside[None, :], scores, -1.0e38)
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        decay = tl.exp2(peak - new_peak)
        p = tl.exp2(scores - new_peak[:, None])
        total = total * decay + tl.sum(p, axis=1)
        acc = acc * decay[:, None]
        acc = tl.dot(p.to(latent.dtype), latent, acc, input_precision=PRECISION)
        peak = new_peak

    own_heads: tl.constexpr = BLOCK_H if H >= BLOCK_H else H
    tl.static_assert(H % own_heads == 0, "heads must fill their blocks")
    out_rows = out_ptr + (token * H + head_block * BLOCK_H) * L
    finish_item(
        acc, peak, total, out_rows, partial_ptr, lse_ptr, arrivals_ptr, partial_base, split, head_block, HEAD_BLOCKS, own_heads, L, BLOCK_H, BLOCK_L
    )


def config_for(num_heads: int, value_dim: int) -> MlaConfig:
    """16 heads a program on the small matrix instruction; 64 of them on the large one."""
    if num_heads % 64 == 0 and value_dim <= 512:
        return MlaConfig(tile=64, block_h=64, num_warps=8, num_stages=2)
    fitting = [block_h for block_h in (32, 16) if num_heads % block_h == 0]
    block_h = fitting[0] if fitting else max(16, next_pow2(num_heads))
    return MlaConfig(tile=32, block_h=block_h, num_warps=4 if block_h == 16 else 8)


def paged_mla(
    query: Tensor, cache: Tensor, block_tables: Tensor, rows: Tensor, lens: Tensor, args: AttentionArgs, value_dim: int, plan: DecodeSchedule,
    arrivals: Tensor, config: MlaConfig,
) -> Tensor:  # fmt: skip
    """query [T, H, L + R], cache [num_blocks, block_size, L + R] → [T, H, L], with L = `value_dim`.

    Token t belongs to row rows[t] of `block_tables` and sees its first lens[t] tokens; `plan` is the schedule of `lens`.
    """
    assert query.stride(2) == 1 and cache.stride(2) == 1
    num_tokens, num_heads, width = query.shape
    out = torch.empty(num_tokens, num_heads, value_dim, dtype=query.dtype, device=query.device)
    if num_tokens == 0:
        return out
    head_blocks = cdiv(num_heads, config.block_h)
    rest = width - value_dim
    assert arrivals.numel() >= plan.max_partials * head_blocks, "too few arrival counters"
    partial = torch.empty(plan.max_partials * num_heads, value_dim, dtype=torch.float32, device=query.device)
    lse = torch.empty(plan.max_partials * num_heads, dtype=torch.float32, device=query.device)
    with on_device(query):
        run(_mla_kernel, (head_blocks, plan.max_items))(
            query, cache, out, partial, lse, arrivals, plan.items, plan.num_items, block_tables, rows, lens,
            args.scale, args.softcap or 0.0, query.stride(0), query.stride(1), cache.stride(0), cache.stride(1), block_tables.stride(0),
            H=num_heads, L=value_dim, R=rest, BLOCK_H=config.block_h, BLOCK_L=next_pow2(value_dim), BLOCK_R=max(16, next_pow2(rest)),
            TILE=config.tile, PAGE=cache.shape[1], WINDOW=args.window or 0, SOFTCAP=args.softcap is not None,
            PRECISION="ieee" if query.dtype == torch.float32 else "tf32", STAGES=config.num_stages, num_warps=config.num_warps, **pdl(query),
        )  # fmt: skip
    return out
