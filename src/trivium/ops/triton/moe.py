"""Mixture of experts as two grouped products over tokens sorted by expert.

Slots are (token, choice) pairs. Each expert's slots are padded to whole blocks of BLOCK_M, so that a program works for one expert; blocks
of an upper bound known on the host are launched and those not needed exit. Few rows an expert: its weights fill the long side of the
matrix instruction, as in `skinny`; many: the tokens do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.triton.activation import KINDS, gated
from trivium.ops.triton.launch import cdiv, next_pow2, on_device, pdl, run, wait_and_trigger


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """How both products are cut."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


@triton.jit(do_not_specialize=["num_slots"])
def _count_kernel(
    ids_ptr,
    counts_ptr,
    ends_ptr,
    filled_ptr,
    num_slots,
    E: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: slots per expert, and where each expert's blocks end."""
    experts = tl.arange(0, BLOCK_E)
    counts = tl.zeros([BLOCK_E], tl.int32)
    wait_and_trigger(PDL)
    for start in range(0, num_slots, BLOCK):
        slots = start + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + slots, mask=slots < num_slots, other=0)
        counts += tl.histogram(ids, BLOCK_E, mask=slots < num_slots)
    tl.store(counts_ptr + experts, counts, mask=experts < E)
    tl.store(filled_ptr + experts, tl.zeros([BLOCK_E], tl.int32), mask=experts < E)
    tl.store(ends_ptr + experts, tl.cumsum((counts + BLOCK_M - 1) // BLOCK_M, axis=0), mask=experts < E)


@triton.jit(do_not_specialize=["num_slots"])
def _sort_kernel(ids_ptr, counts_ptr, ends_ptr, filled_ptr, sorted_ptr, num_slots, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Slots to their expert's blocks. Their order there varies from run to run, which changes no result: rows don't mix."""
    slots = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = slots < num_slots
    wait_and_trigger(PDL)
    ids = tl.load(ids_ptr + slots, mask=mask, other=0)
    blocks = (tl.load(counts_ptr + ids, mask=mask, other=0) + BLOCK_M - 1) // BLOCK_M
    first = tl.load(ends_ptr + ids, mask=mask, other=0) - blocks
    place = tl.atomic_add(filled_ptr + ids, 1, mask=mask)
    tl.store(sorted_ptr + first * BLOCK_M + place, slots, mask=mask)


@triton.jit(do_not_specialize=["num_out"])
def _grouped_kernel(
    x_ptr, w_ptr, out_ptr, sorted_ptr, counts_ptr, ends_ptr, num_out, K, stride_x, stride_we, stride_wn,
    E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS_PER_ROW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    KIND: tl.constexpr, WEIGHT_FIRST: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[slot] = x[slot // SLOTS_PER_ROW] @ w[expert of the slot]^T, with a gated activation if KIND is given (then w has 2 * num_out rows)."""
    block = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    experts = tl.arange(0, BLOCK_E)
    wait_and_trigger(PDL)
    ends = tl.load(ends_ptr + experts, mask=experts < E, other=2147483647)
    expert = tl.sum((ends <= block).to(tl.int32), axis=0)
    if expert >= E:
        return
    count = tl.load(counts_ptr + expert)
    first_block = tl.load(ends_ptr + expert) - (count + BLOCK_M - 1) // BLOCK_M
    m = tl.arange(0, BLOCK_M)
    is_slot = (block - first_block) * BLOCK_M + m < count
    slots = tl.load(sorted_ptr + block * BLOCK_M + m, mask=is_slot, other=0).to(tl.int64)

    x_rows = x_ptr + (slots // SLOTS_PER_ROW)[:, None] * stride_x
    w_rows = w_ptr + expert.to(tl.int64) * stride_we + tl.where(n < num_out, n, 0).to(tl.int64)[:, None] * stride_wn
    up_offset = num_out.to(tl.int64) * stride_wn
    k_in_tile = tl.arange(0, BLOCK_K)
    if WEIGHT_FIRST:
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        acc_up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        acc_up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in tl.range(0, tl.cdiv(K, BLOCK_K), num_stages=STAGES):
        k = step * BLOCK_K + k_in_tile
        if EVEN_K:
            x = tl.load(x_rows + k[None, :], mask=is_slot[:, None], other=0.0)
            w = tl.load(w_rows + k[None, :])
        else:
            x = tl.load(x_rows + k[None, :], mask=is_slot[:, None] & (k < K)[None, :], other=0.0)
            w = tl.load(w_rows + k[None, :], mask=(k < K)[None, :], other=0.0)
        if WEIGHT_FIRST:
            acc = tl.dot(w, tl.trans(x), acc, input_precision=PRECISION)
        else:
            acc = tl.dot(x, tl.trans(w), acc, input_precision=PRECISION)
        if KIND != "":
            if EVEN_K:
                up = tl.load(w_rows + up_offset + k[None, :])
            else:
                up = tl.load(w_rows + up_offset + k[None, :], mask=(k < K)[None, :], other=0.0)
            if WEIGHT_FIRST:
                acc_up = tl.dot(up, tl.trans(x), acc_up, input_precision=PRECISION)
            else:
                acc_up = tl.dot(x, tl.trans(up), acc_up, input_precision=PRECISION)
    if KIND != "":
        acc = gated(acc, acc_up, KIND)
    y = acc.to(out_ptr.dtype.element_ty)
    if WEIGHT_FIRST:
        tl.store(out_ptr + slots[None, :] * num_out + n[:, None], y, mask=is_slot[None, :] & (n < num_out)[:, None])
    else:
        tl.store(out_ptr + slots[:, None] * num_out + n[None, :], y, mask=is_slot[:, None] & (n < num_out)[None, :])


@triton.jit
def _combine_kernel(parts_ptr, weights_ptr, out_ptr, H, TOP_K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """out[t] = sum over choices of weight * part, in order, in float32."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < H
    wait_and_trigger(PDL)
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(TOP_K):
        part = tl.load(parts_ptr + (token * TOP_K + i) * H + columns, mask=mask, other=0.0).to(tl.float32)
        total += part * tl.load(weights_ptr + token * TOP_K + i).to(tl.float32)
    tl.store(out_ptr + token * H + columns, total.to(out_ptr.dtype.element_ty), mask=mask)


def config_for(num_slots: int, num_experts: int) -> MoeConfig:
    """By the rows an expert gets on average."""
    rows = num_slots / num_experts
    if rows <= 16:
        return MoeConfig(block_m=16, block_n=64, block_k=128, num_warps=4, num_stages=3)
    if rows <= 48:
        return MoeConfig(block_m=32, block_n=64, block_k=128, num_warps=4, num_stages=3)
    if rows <= 256:
        return MoeConfig(block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=4)
    return MoeConfig(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3)


def fused_moe(
    x: Tensor, gate_up: Tensor, down: Tensor, topk_weights: Tensor, topk_ids: Tensor, kind: str, *, config: MoeConfig | None = None
) -> Tensor:
    """x [T, H], gate_up [E, 2F, H], down [E, H, F], topk_weights and topk_ids [T, K] → [T, H]: each token's experts, weighed and added."""
    assert kind in KINDS, kind
    assert x.stride(1) == 1 and gate_up.stride(2) == 1 and down.stride(2) == 1
    num_tokens, hidden = x.shape
    num_experts, width = gate_up.shape[0], gate_up.shape[1] // 2
    top_k = topk_ids.shape[1]
    num_slots = num_tokens * top_k
    out = torch.empty_like(x)
    if num_tokens == 0:
        return out
    config = config or config_for(num_slots, num_experts)
    topk_ids, topk_weights = topk_ids.contiguous(), topk_weights.contiguous()
    max_blocks = min(num_slots, cdiv(num_slots + num_experts * (config.block_m - 1), config.block_m))

    def ints(n: int) -> Tensor:
        return torch.empty(n, dtype=torch.int32, device=x.device)

    counts, ends, filled, order = ints(num_experts), ints(num_experts), ints(num_experts), ints(max_blocks * config.block_m)
    hidden_parts = torch.empty(num_slots, width, dtype=x.dtype, device=x.device)
    parts = torch.empty(num_slots, hidden, dtype=x.dtype, device=x.device)
    block_e = max(16, next_pow2(num_experts))
    chunk = 1024
    with on_device(x):
        run(_count_kernel, (1,))(
            topk_ids, counts, ends, filled, num_slots, E=num_experts, BLOCK_E=block_e, BLOCK_M=config.block_m, BLOCK=chunk, num_warps=8, **pdl(x)
        )
        run(_sort_kernel, (cdiv(num_slots, chunk),))(
            topk_ids, counts, ends, filled, order, num_slots, BLOCK_M=config.block_m, BLOCK=chunk, num_warps=8, **pdl(x)
        )
        _grouped(x, gate_up, hidden_parts, order, counts, ends, config, max_blocks, slots_per_row=top_k, kind=kind)
        _grouped(hidden_parts, down, parts, order, counts, ends, config, max_blocks, slots_per_row=1, kind="")
        block = min(next_pow2(hidden), 1024)
        run(_combine_kernel, (num_tokens, cdiv(hidden, block)))(parts, topk_weights, out, hidden, TOP_K=top_k, BLOCK=block, num_warps=4, **pdl(x))
    return out


def _grouped(
    x: Tensor, weight: Tensor, out: Tensor, order: Tensor, counts: Tensor, ends: Tensor, config: MoeConfig, max_blocks: int,
    *, slots_per_row: int, kind: str,
) -> None:  # fmt: skip
    num_out, k = out.shape[1], x.shape[1]
    block_n = config.block_n // 2 if kind and config.block_m * config.block_n >= 128 * 128 else config.block_n  # two accumulators
    run(_grouped_kernel, (max_blocks, cdiv(num_out, block_n)))(
        x, weight, out, order, counts, ends, num_out, k, x.stride(0), weight.stride(0), weight.stride(1),
        E=weight.shape[0], BLOCK_E=max(16, next_pow2(weight.shape[0])), SLOTS_PER_ROW=slots_per_row,
        BLOCK_M=config.block_m, BLOCK_N=block_n, BLOCK_K=config.block_k, KIND=kind, WEIGHT_FIRST=config.block_m < 64,
        EVEN_K=k % config.block_k == 0, PRECISION="ieee" if x.dtype == torch.float32 else "tf32", STAGES=config.num_stages,
        num_warps=config.num_warps, **pdl(x),
    )  # fmt: skip
