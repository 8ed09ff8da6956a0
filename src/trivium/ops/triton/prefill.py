"""Paged attention of rows with any number of new tokens: causal, over the row's cached prefix and the new tokens alike.

FlashAttention-2's loop (Dao, https://arxiv.org/abs/2307.08691). A program takes BLOCK_Q consecutive tokens of a row and all G query
heads of one key head, packed token by token into BLOCK_M matrix rows: that keeps tiles full at small G, wastes little on the diagonal,
and reads keys once for all the heads that share them. Tiles that every packed row sees in full run without masks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.triton.launch import LOG2E, block_ids, next_pow2, num_sms, on_device, pdl, run, tanh, wait_and_trigger


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """How the prefill kernel is cut; chosen by measurement (`benchmarks/kernels.py`)."""

    block_m: int = 128
    tile: int = 64
    num_warps: int = 8
    num_stages: int = 3


@triton.jit
def _find_row(query_starts_ptr, num_rows, index, BLOCK_Q: tl.constexpr, CHUNK: tl.constexpr):
    """The row that owns query tile `index` when row r's tiles start at `query_starts[r] // BLOCK_Q + r`: no prefix sum needed, and at
    most one tile a row stays empty."""
    found = 0
    for start in range(0, num_rows, CHUNK):
        rows = start + tl.arange(0, CHUNK)
        begins = tl.load(query_starts_ptr + rows, mask=rows < num_rows, other=0)
        found += tl.sum(((begins // BLOCK_Q + rows <= index) & (rows < num_rows)).to(tl.int32), axis=0)
    return found - 1


@triton.jit
def _attend_tiles(
    acc, peak, total, q, k_base, v_base, table, first_tile, end_tile, position, seq_end, scale, softcap,
    stride_kb, stride_ks, stride_vb, stride_vs,
    D: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Online softmax over tiles [first_tile, end_tile). `position` [BLOCK_M]: of each packed row; `seq_end`: end of the readable tokens."""
    n = tl.arange(0, TILE)
    d = tl.arange(0, BLOCK_D)
    end = tl.minimum(end_tile * TILE, seq_end)
    blocks = block_ids(table, first_tile, end, TILE, PAGE)  # a tile ahead: see `decode`
    for tile in tl.range(first_tile, end_tile, num_stages=STAGES):
        tokens = tile * TILE + n
        if PAGE >= TILE:
            offset = (tile * TILE) % PAGE + n
            k_rows = k_base + blocks * stride_kb + offset[:, None] * stride_ks + d[None, :]
            v_rows = v_base + blocks * stride_vb + offset[:, None] * stride_vs + d[None, :]
        else:
            k_rows = k_base + blocks[:, None] * stride_kb + (tokens % PAGE)[:, None] * stride_ks + d[None, :]
            v_rows = v_base + blocks[:, None] * stride_vb + (tokens % PAGE)[:, None] * stride_vs + d[None, :]
        blocks = block_ids(table, tile + 1, end, TILE, PAGE)
        if MASKED:
            mask = (tokens < seq_end)[:, None] & (d < D)[None, :]
            k = tl.load(k_rows, mask=mask, other=0.0)
            v = tl.load(v_rows, mask=mask, other=0.0)
        elif BLOCK_D == D:
            k = tl.load(k_rows)
            v = tl.load(v_rows)
        else:
            k = tl.load(k_rows, mask=(d < D)[None, :], other=0.0)
            v = tl.load(v_rows, mask=(d < D)[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION)
        if SOFTCAP:
            scores = softcap * LOG2E * tanh(scores * scale / softcap)
        else:
            scores *= scale * LOG2E
        if MASKED:
            visible = tokens[None, :] <= position[:, None]
            if WINDOW > 0:
                visible = visible & (tokens[None, :] > position[:, None] - WINDOW)
            # Finite: rows that see nothing of this tile gather weight 1 per token, which the first token they do see scales to zero.
            scores = tl.where(visible, scores, -1.0e38)
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        decay = tl.exp2(peak - new_peak)
        p = tl.exp2(scores - new_peak[:, None])
        total = total * decay + tl.sum(p, axis=1)
        acc = acc * decay[:, None]
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc, input_precision=PRECISION)
        peak = new_peak
    return acc, peak, total


@triton.jit(do_not_specialize=["num_rows", "stride_table"], do_not_specialize_on_alignment=["tables_ptr", "query_starts_ptr", "seq_lens_ptr"])
def _prefill_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, tables_ptr, query_starts_ptr, seq_lens_ptr, num_rows, scale, softcap,
    stride_qt, stride_qh, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs, stride_table,
    HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr,
    TILE: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
    CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    index = tl.num_programs(0) - 1 - tl.program_id(0)  # a row's last tiles have most to read: first, so that none of them ends the launch
    head = tl.program_id(1)
    wait_and_trigger(PDL)
    base = tl.load(query_starts_ptr)
    row = _find_row(query_starts_ptr, num_rows, index + base // BLOCK_Q, BLOCK_Q, CHUNK)
    begin = tl.load(query_starts_ptr + row)
    query_len = tl.load(query_starts_ptr + row + 1) - begin
    first = (index + base // BLOCK_Q - begin // BLOCK_Q - row) * BLOCK_Q
    if first >= query_len:
        return
    seq_len = tl.load(seq_lens_ptr + row)

    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    token = first + m // G
    q_mask = ((m < BLOCK_Q * G) & (token < query_len))[:, None] & (d < D)[None, :]
    q_token = (begin + token).to(tl.int64)
    q_head = head * G + m % G
    q = tl.load(q_ptr + q_token[:, None] * stride_qt + q_head[:, None] * stride_qh + d[None, :], mask=q_mask, other=0.0)

    position = seq_len - query_len + token
    first_position = seq_len - query_len + first
    last_position = tl.minimum(first_position + BLOCK_Q, seq_len) - 1
    start_tile = 0
    if WINDOW > 0:
        start_tile = tl.maximum(first_position - WINDOW + 1, 0) // TILE
        # A tile is whole if its first token is inside the last position's window and its last token is not after the first position.
        whole_from = (tl.maximum(last_position - WINDOW + 1, 0) + TILE - 1) // TILE
    else:
        whole_from = 0
    end_tile = last_position // TILE + 1
    whole_from = tl.minimum(whole_from, end_tile)
    whole_end = tl.maximum((first_position + 1) // TILE, whole_from)

    table = tables_ptr + row.to(tl.int64) * stride_table
    k_base = k_ptr + head * stride_kh
    v_base = v_ptr + head * stride_vh
    peak = tl.full([BLOCK_M], -1.0e38, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if WINDOW > 0:
        acc, peak, total = _attend_tiles(
            acc, peak, total, q, k_base, v_base, table, start_tile, whole_from, position, last_position + 1, scale, softcap,
            stride_kb, stride_ks, stride_vb, stride_vs, D, BLOCK_D, TILE, PAGE, WINDOW, SOFTCAP, True, PRECISION, STAGES,
        )  # fmt: skip
    acc, peak, total = _attend_tiles(
        acc, peak, total, q, k_base, v_base, table, whole_from, whole_end, position, last_position + 1, scale, softcap,
        stride_kb, stride_ks, stride_vb, stride_vs, D, BLOCK_D, TILE, PAGE, WINDOW, SOFTCAP, False, PRECISION, STAGES,
    )  # fmt: skip
    acc, peak, total = _attend_tiles(
        acc, peak, total, q, k_base, v_base, table, whole_end, end_tile, position, last_position + 1, scale, softcap,
        stride_kb, stride_ks, stride_vb, stride_vs, D, BLOCK_D, TILE, PAGE, WINDOW, SOFTCAP, True, PRECISION, STAGES,
    )  # fmt: skip

    acc = acc / total[:, None]
    out = out_ptr + (q_token * (HKV * G) + q_head)[:, None] * D + d[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=q_mask)


def config_for(args: AttentionArgs, num_tokens: int, num_rows: int, max_query_len: int, itemsize: int) -> PrefillConfig:
    """Tiles as large as the queries fill, smaller where large ones would leave multiprocessors idle.

    Heads of 128 measured on an H200 (blocks of 16, bf16): 16 x 512 tokens 236 -> 200 us with 64 rows of queries and 2 stages, 4 x 2048 640 -> 508
    and 1 x 8192 2250 -> 1642 us with tiles of 128 x 128 and 2 stages.
    """
    group = args.num_heads // args.num_kv_heads
    head_bytes = next_pow2(args.head_dim) * itemsize
    is_short = max_query_len * group <= 16
    is_narrow = num_tokens * group // 128 * args.num_kv_heads < num_sms() or (head_bytes == 256 and max_query_len <= 1024)
    block_m = max(16 if is_short else 64 if is_narrow else 128, next_pow2(group))  # few choices: each is a kernel to compile
    tile = 32 if head_bytes > 256 else 128 if head_bytes == 256 and block_m >= 128 else 64
    return PrefillConfig(block_m=block_m, tile=tile, num_warps=8 if block_m >= 128 else 4, num_stages=2 if head_bytes >= 256 else 3)


def paged_prefill(
    query: Tensor, cache: KVCache, block_tables: Tensor, query_starts: Tensor, seq_lens: Tensor, args: AttentionArgs, config: PrefillConfig,
    *, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """query [T, Hq, D] → [T, Hq, D].

    Row r owns tokens query_starts[r] .. query_starts[r + 1] of `query`, at the last positions of its `seq_lens[r]` cached tokens;
    `query_starts` may begin above 0 (then the tokens before it are left as they are in `out`).
    """
    assert cache.value is not None
    assert query.stride(2) == 1 and cache.key.stride(3) == 1 and cache.value.stride(3) == 1
    num_tokens, num_heads, dim = query.shape
    if out is None:
        out = torch.empty(num_tokens, num_heads, dim, dtype=query.dtype, device=query.device)
    num_rows = seq_lens.shape[0]
    if num_tokens == 0 or num_rows == 0:
        return out
    group = num_heads // args.num_kv_heads
    block_q = config.block_m // group
    assert block_q >= 1, "block_m must hold a group of query heads"
    with on_device(query):
        run(_prefill_kernel, (num_tokens // block_q + num_rows + 1, args.num_kv_heads))(
            query, cache.key, cache.value, out, block_tables, query_starts, seq_lens, num_rows, args.scale, args.softcap or 0.0,
            query.stride(0), query.stride(1), *cache.key.stride()[:3], *cache.value.stride()[:3], block_tables.stride(0),
            HKV=args.num_kv_heads, G=group, D=dim, BLOCK_D=next_pow2(dim), BLOCK_M=config.block_m, BLOCK_Q=block_q, TILE=config.tile,
            PAGE=cache.key.shape[2], WINDOW=args.window or 0, SOFTCAP=args.softcap is not None,
            PRECISION="ieee" if query.dtype == torch.float32 else "tf32", STAGES=config.num_stages,
            CHUNK=128, num_warps=config.num_warps, **pdl(query),
        )  # fmt: skip
    return out
