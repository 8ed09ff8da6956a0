"""Paged attention of rows with one new token each: split-KV (flash-decoding) with a schedule made on the device.

The query heads that share a key head fill the rows of one matrix tile, so a key is read once for all of them. What bounds the time is
reading the cache; for that every multiprocessor needs several tiles in flight, whatever the batch and however unequal its rows. So rows
are cut into *items*, runs of tiles of about equal length. A captured graph fixes the launch but not the lengths: the grid covers the most
items a batch of its size can have, and a small kernel, once a step, cuts the rows by the lengths it finds in `seq_lens` (the others
exit at once). Rows of one item write their output themselves; partial results of the others are merged by whichever program arrives last.
Flash-decoding: Dao et al., https://crfm.stanford.edu/2023/10/12/flashdecoding.html.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.triton.launch import LOG2E, block_ids, cdiv, next_pow2, num_sms, on_device, pdl, run, tanh, wait_and_trigger

ITEM_FIELDS = 4
"""(row, first tile | tiles << 16, slot of the row's first partial result or -1, splits of the row | this split << 16)."""


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How the decode kernel is cut; chosen by measurement (`benchmarks/kernels.py`)."""

    tile: int = 64
    """Tokens of keys and values a program reads at once."""
    num_warps: int = 4
    num_stages: int = 3
    items_per_sm: int = 4
    """Items times key heads wanted for each multiprocessor."""
    min_tiles: int = 1
    """Tiles below which a row is not cut."""


@dataclass(frozen=True, slots=True)
class DecodeSchedule:
    """What the scheduling kernel wrote for one batch, one window and one number of key heads."""

    items: Tensor  # [max_items, ITEM_FIELDS] int32
    num_items: Tensor  # [1] int32
    max_items: int
    max_partials: int


@triton.jit(do_not_specialize=["num_rows", "target", "max_splits", "fixed_tiles"], do_not_specialize_on_alignment=["seq_lens_ptr"])
def _schedule_kernel(
    seq_lens_ptr, items_ptr, num_items_ptr, num_rows, target, max_splits, fixed_tiles,
    TILE: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr, MIN_TILES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program. `target` items are wanted in all; `fixed_tiles` > 0 cuts every row the same way whatever else is in the batch."""
    rows = tl.arange(0, BLOCK)
    valid = rows < num_rows
    wait_and_trigger(PDL)
    lens = tl.load(seq_lens_ptr + rows, mask=valid, other=0)
    first = tl.zeros_like(lens)
    if WINDOW > 0:
        first = tl.maximum(lens - WINDOW, 0) // TILE
    tiles = (lens + TILE - 1) // TILE - first
    if fixed_tiles > 0:
        run = fixed_tiles
    else:
        run = tl.maximum((tl.sum(tiles, axis=0) + target - 1) // target, MIN_TILES)
    splits = tl.minimum(tl.maximum((tiles + run - 1) // run, 1), max_splits)  # an empty row still needs its output written
    per_split = tl.maximum((tiles + splits - 1) // splits, 1)
    splits = tl.maximum((tiles + per_split - 1) // per_split, 1)
    splits = tl.where(valid, splits, 0)
    starts = tl.cumsum(splits, axis=0) - splits
    shared = tl.where(splits > 1, splits, 0)
    partial = tl.where(splits > 1, tl.cumsum(shared, axis=0) - shared, -1)
    tl.store(num_items_ptr, tl.sum(splits, axis=0))
    for split in range(tl.max(splits, axis=0)):
        mask = split < splits
        start = first + split * per_split
        count = tl.maximum(tl.minimum(per_split, tiles - split * per_split), 0)
        item = items_ptr + (starts + split) * 4
        tl.store(item, rows, mask=mask)
        tl.store(item + 1, start | (count << 16), mask=mask)
        tl.store(item + 2, partial, mask=mask)
        tl.store(item + 3, splits | (split << 16), mask=mask)


@triton.jit
def finish_item(
    acc, peak, total, out_rows, partial_ptr, lse_ptr, arrivals_ptr, partial_base, split, lane,
    LANES: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Store an item's result at `out_rows` [G, D], or, if its row has other items, leave it as a partial result; the last program to
    arrive merges those. acc [BLOCK_H, BLOCK_D] is weighted by `total`, in the base-2 domain of `peak`; LANES programs share an item."""
    h = tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    mask = (h < G)[:, None] & (d < D)[None, :]
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]  # an empty row gives zeros
    if partial_base < 0:
        tl.store(out_rows + h[:, None] * D + d[None, :], acc.to(out_rows.dtype.element_ty), mask=mask)
    else:
        splits = split & 0xFFFF
        own = ((partial_base + (split >> 16)) * LANES + lane) * G
        tl.store(partial_ptr + (own + h)[:, None] * D + d[None, :], acc, mask=mask, cache_modifier=".cg")
        tl.store(lse_ptr + own + h, peak + tl.log2(total), mask=h < G, cache_modifier=".cg")
        tl.debug_barrier()  # all threads' partial results before the one thread's arrival
        arrivals = arrivals_ptr + partial_base * LANES + lane
        if tl.atomic_add(arrivals, 1, sem="acq_rel") == splits - 1:
            tl.store(arrivals, 0)  # as the next launch expects it
            peak = tl.full([BLOCK_H], -1.0e38, tl.float32)
            total = tl.zeros([BLOCK_H], tl.float32)
            acc = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
            UNROLL: tl.constexpr = 4 if BLOCK_H * BLOCK_D <= 4096 else 1  # loads in flight, as far as registers go
            for s in tl.range(0, splits, loop_unroll_factor=UNROLL):
                at = ((partial_base + s) * LANES + lane) * G
                lse = tl.load(lse_ptr + at + h, mask=h < G, other=-1.0e38, cache_modifier=".cg")
                part = tl.load(partial_ptr + (at + h)[:, None] * D + d[None, :], mask=mask, other=0.0, cache_modifier=".cg")
                new_peak = tl.maximum(peak, lse)
                decay = tl.exp2(peak - new_peak)
                weight = tl.exp2(lse - new_peak)
                total = total * decay + weight
                acc = acc * decay[:, None] + part * weight[:, None]
                peak = new_peak
            acc = acc / total[:, None]
            tl.store(out_rows + h[:, None] * D + d[None, :], acc.to(out_rows.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["stride_table"], do_not_specialize_on_alignment=["tables_ptr", "seq_lens_ptr"])
def _decode_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, partial_ptr, lse_ptr, arrivals_ptr, items_ptr, num_items_ptr, tables_ptr, seq_lens_ptr,
    scale, softcap, stride_qt, stride_qh, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs, stride_table,
    HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    index = tl.program_id(1)
    wait_and_trigger(PDL)
    if index >= tl.load(num_items_ptr):
        return
    row = tl.load(items_ptr + index * 4)
    run = tl.load(items_ptr + index * 4 + 1)
    partial_base = tl.load(items_ptr + index * 4 + 2)
    split = tl.load(items_ptr + index * 4 + 3)
    seq_len = tl.load(seq_lens_ptr + row)
    first_tile = run & 0xFFFF
    num_tiles = run >> 16

    h = tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    head_mask = (h < G)[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + row.to(tl.int64) * stride_qt + (head * G + h)[:, None] * stride_qh + d[None, :], mask=head_mask, other=0.0)

    table = tables_ptr + row.to(tl.int64) * stride_table
    k_base = k_ptr + head * stride_kh
    v_base = v_ptr + head * stride_vh
    n = tl.arange(0, TILE)
    peak = tl.full([BLOCK_H], -1.0e38, tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    # Block ids are fetched one tile ahead by hand: as an indirection inside the loop they would halve the depth of its pipeline.
    end_tile = first_tile + num_tiles
    end = tl.minimum(end_tile * TILE, seq_len)
    blocks = block_ids(table, first_tile, end, TILE, PAGE)
    for tile in tl.range(first_tile, end_tile, num_stages=STAGES):
        tokens = tile * TILE + n
        inside = tokens < seq_len
        if PAGE >= TILE:  # the tile lies in one block
            offset = (tile * TILE) % PAGE + n
            k_rows = k_base + blocks * stride_kb + offset[:, None] * stride_ks
            v_rows = v_base + blocks * stride_vb + offset[:, None] * stride_vs
        else:
            k_rows = k_base + blocks[:, None] * stride_kb + (tokens % PAGE)[:, None] * stride_ks
            v_rows = v_base + blocks[:, None] * stride_vb + (tokens % PAGE)[:, None] * stride_vs
        blocks = block_ids(table, tile + 1, end, TILE, PAGE)
        if BLOCK_D == D:
            mask = inside[:, None]
        else:
            mask = inside[:, None] & (d < D)[None, :]
        k = tl.load(k_rows + d[None, :], mask=mask, other=0.0)
        v = tl.load(v_rows + d[None, :], mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION) * scale
        if SOFTCAP:
            scores = softcap * tanh(scores / softcap)
        scores *= LOG2E
        if WINDOW > 0:
            inside = inside & (tokens >= seq_len - WINDOW)
        scores = tl.where(inside[None, :], scores, -1.0e38)
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        decay = tl.exp2(peak - new_peak)
        p = tl.exp2(scores - new_peak[:, None])
        total = total * decay + tl.sum(p, axis=1)
        acc = acc * decay[:, None] + tl.dot(p.to(q.dtype), v.to(q.dtype), input_precision=PRECISION)
        peak = new_peak

    out_rows = out_ptr + (row.to(tl.int64) * (HKV * G) + head * G) * D
    finish_item(acc, peak, total, out_rows, partial_ptr, lse_ptr, arrivals_ptr, partial_base, split, head, HKV, G, D, BLOCK_H, BLOCK_D)


def config_for(args: AttentionArgs, itemsize: int) -> DecodeConfig:
    """The measured default for a head size: about 32 KB of keys and values a tile and one tile ahead. A deeper pipeline costs more in
    programs that no longer fit on a multiprocessor side by side than it gains."""
    row_bytes = next_pow2(args.head_dim) * itemsize
    return DecodeConfig(tile=64 if row_bytes <= 256 else 32, num_stages=2, items_per_sm=2 if row_bytes <= 128 else 4)


def schedule(
    seq_lens: Tensor,
    args: AttentionArgs,
    config: DecodeConfig,
    *,
    lanes: int | None = None,
    fixed_split_tokens: int | None = None,
    max_seq_len: int = 0,
) -> DecodeSchedule:
    """Cut the rows of seq_lens [B] int32 into items, on the device. `lanes` programs, by default the key heads, work on each item.

    `fixed_split_tokens` cuts each row by its own length alone, so that its result doesn't depend on the batch bit for bit; `max_seq_len`
    then bounds the number of items.
    """
    num_rows = seq_lens.shape[0]
    target = max(1, num_sms(seq_lens.device.index) * config.items_per_sm // (lanes or args.num_kv_heads))
    if fixed_split_tokens is None:
        fixed, max_splits = 0, target
        max_items, max_partials = num_rows + target, 2 * target + 1
    else:
        fixed = cdiv(fixed_split_tokens, config.tile)
        max_splits = cdiv(max_seq_len, fixed * config.tile) + 1
        max_items = max_partials = num_rows * max_splits
    items = torch.empty(max_items, ITEM_FIELDS, dtype=torch.int32, device=seq_lens.device)
    num_items = torch.empty(1, dtype=torch.int32, device=seq_lens.device)
    block = max(next_pow2(num_rows), 256)
    with on_device(seq_lens):
        run(_schedule_kernel, (1,))(
            seq_lens, items, num_items, num_rows, target, max_splits, fixed,
            TILE=config.tile, WINDOW=args.window or 0, BLOCK=block, MIN_TILES=config.min_tiles,
            num_warps=max(1, min(16, block // 32)), **pdl(seq_lens),
        )  # fmt: skip
    return DecodeSchedule(items=items, num_items=num_items, max_items=max_items, max_partials=max_partials)


def paged_decode(
    query: Tensor, cache: KVCache, block_tables: Tensor, seq_lens: Tensor, args: AttentionArgs, plan: DecodeSchedule, arrivals: Tensor,
    config: DecodeConfig, *, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """query [B, Hq, D], one token a row → [B, Hq, D]. A row of length 0 gives zeros.

    `arrivals`: int32 zeros, at least `plan.max_partials * Hkv`, left as zeros; not to be shared between streams.
    """
    assert cache.value is not None
    assert query.stride(2) == 1 and cache.key.stride(3) == 1 and cache.value.stride(3) == 1
    num_rows, num_heads, dim = query.shape
    if out is None:
        out = torch.empty(num_rows, num_heads, dim, dtype=query.dtype, device=query.device)
    if num_rows == 0:
        return out
    kv_heads = args.num_kv_heads
    group = num_heads // kv_heads
    assert arrivals.numel() >= plan.max_partials * kv_heads, "too few arrival counters"
    partial = torch.empty(plan.max_partials * num_heads, dim, dtype=torch.float32, device=query.device)
    lse = torch.empty(plan.max_partials * num_heads, dtype=torch.float32, device=query.device)
    with on_device(query):
        run(_decode_kernel, (kv_heads, plan.max_items))(
            query, cache.key, cache.value, out, partial, lse, arrivals, plan.items, plan.num_items, block_tables, seq_lens,
            args.scale, args.softcap or 0.0, query.stride(0), query.stride(1), *cache.key.stride()[:3], *cache.value.stride()[:3],
            block_tables.stride(0), HKV=kv_heads, G=group, D=dim, BLOCK_H=max(16, next_pow2(group)), BLOCK_D=next_pow2(dim),
            TILE=config.tile, PAGE=cache.key.shape[2], WINDOW=args.window or 0, SOFTCAP=args.softcap is not None,
            PRECISION="ieee" if query.dtype == torch.float32 else "tf32", STAGES=config.num_stages,
            num_warps=config.num_warps, **pdl(query),
        )  # fmt: skip
    return out
