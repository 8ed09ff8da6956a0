"""Products whose rows don't know of each other: `x [M, K] @ W [N, K]^T` in which every element is summed in one order, whatever M is.

One tile shape serves all M, and K is cut into segments that depend on the weight alone. With few rows a program takes one segment of one tile,
so that all multiprocessors read the weight, and a second kernel adds the segments up in order; with many rows a program goes through the
segments itself and adds them up in the same order. Library routines choose tiles and splits by M, which changes the last bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.triton.launch import cdiv, on_device, run

BLOCK_M, BLOCK_N = 64, 128
FEW_ROWS = 256
"""Most rows for which segments run side by side."""
MAX_SEGMENTS = 8
WANTED_PROGRAMS = 256
"""A weight is cut until so many programs read it."""
GROUP_M = 8


@triton.jit(do_not_specialize=["num_rows", "num_out", "stride_s"], do_not_specialize_on_alignment=["out_ptr"])
def _product_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, num_rows, num_out, K, stride_x, stride_w, stride_s,
    SEGMENTS: tl.constexpr, SIDE_BY_SIDE: tl.constexpr, BIAS: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tiles_m = (num_rows + BLOCK_M - 1) // BLOCK_M
    tiles_n = (num_out + BLOCK_N - 1) // BLOCK_N
    pid = tl.program_id(0)
    in_group = GROUP_M * tiles_n
    first_m = pid // in_group * GROUP_M
    group_m = tl.minimum(tiles_m - first_m, GROUP_M)
    m = (first_m + pid % in_group % group_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid % in_group // group_m * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = m < num_rows
    is_out = n < num_out
    x_rows = x_ptr + tl.where(is_row, m, 0).to(tl.int64)[:, None] * stride_x
    w_rows = w_ptr + tl.where(is_out, n, 0).to(tl.int64)[:, None] * stride_w
    k_in_tile = tl.arange(0, BLOCK_K)
    steps = (K + BLOCK_K - 1) // BLOCK_K // SEGMENTS

    if SIDE_BY_SIDE:
        first_segment = tl.program_id(1)
        count: tl.constexpr = 1
    else:
        first_segment = 0
        count: tl.constexpr = SEGMENTS
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for index in tl.static_range(count):
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        begin = (first_segment + index) * steps
        for step in tl.range(begin, begin + steps, num_stages=STAGES):
            k = step * BLOCK_K + k_in_tile
            if EVEN_K:
                x = tl.load(x_rows + k[None, :], mask=is_row[:, None], other=0.0)
                w = tl.load(w_rows + k[None, :])
            else:
                x = tl.load(x_rows + k[None, :], mask=is_row[:, None] & (k < K)[None, :], other=0.0)
                w = tl.load(w_rows + k[None, :], mask=(k < K)[None, :], other=0.0)
            acc = tl.dot(x, tl.trans(w), acc, input_precision=PRECISION)
        total += acc
    if BIAS:
        total += tl.load(bias_ptr + n, mask=is_out, other=0.0).to(tl.float32)[None, :]
    out = out_ptr + first_segment.to(tl.int64) * stride_s if SIDE_BY_SIDE else out_ptr
    at = m.to(tl.int64)[:, None] * num_out + n[None, :]
    tl.store(out + at, total.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_out[None, :])


@triton.jit(do_not_specialize=["count", "num_out"])
def _add_segments_kernel(parts_ptr, bias_ptr, out_ptr, count, num_out, SEGMENTS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    total = tl.zeros([BLOCK], tl.float32)
    for index in tl.static_range(SEGMENTS):
        total += tl.load(parts_ptr + index * count.to(tl.int64) + at, mask=mask, other=0.0)
    if BIAS:
        total += tl.load(bias_ptr + at % num_out, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=mask)


def num_segments(num_out: int, k: int, block_k: int) -> int:
    """Segments of K for a weight [N, K]: enough programs to read it, each with a whole number of equal steps."""
    segments = 1
    while segments < MAX_SEGMENTS and k % (2 * segments * block_k) == 0 and cdiv(num_out, BLOCK_N) * segments < WANTED_PROGRAMS:
        segments *= 2
    return segments


def invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, dtype: torch.dtype | None = None) -> Tensor:
    """x [M, K], weight [N, K], bias [N] → [M, N] in `dtype`, by default x's. A row's result is the same to the bit at any M."""
    num_rows, k = x.shape
    num_out = weight.shape[0]
    assert x.stride(1) == 1 and weight.stride(1) == 1 and weight.shape[1] == k
    out = torch.empty(num_rows, num_out, dtype=dtype or x.dtype, device=x.device)
    if num_rows == 0:
        return out
    block_k = 32 if x.dtype == torch.float32 else 64
    segments = num_segments(num_out, k, block_k)
    programs = cdiv(num_rows, BLOCK_M) * cdiv(num_out, BLOCK_N)
    side_by_side = segments > 1 and num_rows <= FEW_ROWS
    target = torch.empty(segments, num_rows, num_out, dtype=torch.float32, device=x.device) if side_by_side else out
    some_bias = bias if bias is not None else x
    with on_device(x):
        run(_product_kernel, (programs, segments if side_by_side else 1))(
            x, weight, some_bias, target, num_rows, num_out, k, x.stride(0), weight.stride(0), num_rows * num_out,
            SEGMENTS=segments, SIDE_BY_SIDE=side_by_side, BIAS=bias is not None and not side_by_side, EVEN_K=k % block_k == 0,
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=block_k, GROUP_M=GROUP_M,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32", STAGES=4 if x.dtype != torch.float32 else 2, num_warps=4,
        )  # fmt: skip
        if side_by_side:
            count = num_rows * num_out
            run(_add_segments_kernel, (cdiv(count, 1024),))(
                target, some_bias, out, count, num_out, SEGMENTS=segments, BIAS=bias is not None, BLOCK=1024, num_warps=4
            )
    return out


@dataclass(frozen=True, slots=True)
class InvariantWeight:
    """A plain weight [N, K] that is multiplied by `invariant_linear`; see `ops.linear.PackedWeight`."""

    weight: Tensor

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    @property
    def keeps_rows_apart(self) -> bool:
        return True

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return invariant_linear(x, self.weight, bias)

    def wide(self, x: Tensor) -> Tensor:
        return invariant_linear(x, self.weight, None, dtype=torch.float32)
