"""Products of one row with a weight matrix: `W [N, K] @ x [K]`, bound by reading W once.

A program takes a few rows of W whole and issues all of its loads before it waits for the kernel that makes x, so that W already streams
while that one drains. K is cut into up to three powers of two (14336 = 8192 + 4096 + 2048): no lane loads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.triton.activation import KINDS, gated
from trivium.ops.triton.launch import cdiv, on_device, pdl, run, wait_and_trigger

MAX_K = 32768


@dataclass(frozen=True, slots=True)
class GemvConfig:
    """Rows of W a program takes (with a gated activation: of each half), and its warps."""

    rows: int = 1
    num_warps: int = 8


@triton.jit
def _load_row(rows, mask, START: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr):
    k = START + tl.arange(0, BLOCK)
    if START + BLOCK > K:
        mask = mask & (k < K)[None, :]
    return tl.load(rows + k[None, :], mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _load_x(x_ptr, START: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr):
    k = START + tl.arange(0, BLOCK)
    return tl.load(x_ptr + k, mask=k < K, other=0.0).to(tl.float32)[None, :]


@triton.jit(do_not_specialize=["num_out"])
def _gemv_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, stride_w, num_out,
    K: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = n < num_out
    mask = inside[:, None]
    rows = w_ptr + n.to(tl.int64)[:, None] * stride_w
    w0 = _load_row(rows, mask, 0, K0, K)
    if K1 > 0:
        w1 = _load_row(rows, mask, K0, K1, K)
    if K2 > 0:
        w2 = _load_row(rows, mask, K0 + K1, K2, K)
    if KIND != "":
        up_rows = rows + num_out.to(tl.int64) * stride_w
        u0 = _load_row(up_rows, mask, 0, K0, K)
        if K1 > 0:
            u1 = _load_row(up_rows, mask, K0, K1, K)
        if K2 > 0:
            u2 = _load_row(up_rows, mask, K0 + K1, K2, K)
    if BIAS:
        bias = tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)
        if KIND != "":
            up_bias = tl.load(bias_ptr + num_out + n, mask=inside, other=0.0).to(tl.float32)
    wait_and_trigger(PDL)

    x0 = _load_x(x_ptr, 0, K0, K)
    y = tl.sum(w0.to(tl.float32) * x0, axis=1)
    if KIND != "":
        up = tl.sum(u0.to(tl.float32) * x0, axis=1)
    if K1 > 0:
        x1 = _load_x(x_ptr, K0, K1, K)
        y += tl.sum(w1.to(tl.float32) * x1, axis=1)
        if KIND != "":
            up += tl.sum(u1.to(tl.float32) * x1, axis=1)
    if K2 > 0:
        x2 = _load_x(x_ptr, K0 + K1, K2, K)
        y += tl.sum(w2.to(tl.float32) * x2, axis=1)
        if KIND != "":
            up += tl.sum(u2.to(tl.float32) * x2, axis=1)
    if BIAS:
        y += bias
        if KIND != "":
            up += up_bias
    if KIND != "":
        y = gated(y, up, KIND)
    tl.store(out_ptr + n, y.to(out_ptr.dtype.element_ty), mask=inside)


def segments(k: int) -> tuple[int, int, int]:
    """Up to three descending powers of two that add up to `k`, or to a little more."""
    first = 1 << (k.bit_length() - 1)
    rest = k - first
    if rest == 0:
        return first, 0, 0
    second = 1 << (rest.bit_length() - 1)
    rest -= second
    return first, second, 1 << (rest - 1).bit_length() if rest else 0


def config_for(num_out: int, k: int, *, is_gated: bool) -> GemvConfig:
    """Measured in whole decode steps: 16 KB of W a program for long rows, half of that for short ones."""
    if k >= 4096 and num_out >= 4096:
        return GemvConfig(rows=1 if is_gated else 2, num_warps=8)
    rows = max(1, min(8, 4096 // k))
    rows = 1 << (rows.bit_length() - 1)
    if is_gated and rows > 1:
        rows //= 2
    warps = 1 << max(0, (k * rows // 512).bit_length() - 1)
    return GemvConfig(rows=rows, num_warps=max(1, min(8, warps)))


def gemv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, kind: str = "", config: GemvConfig | None = None) -> Tensor:
    """x [1, K]; weight [N, K], bias [N] → [1, N], or [1, N / 2] with an activation `kind`, whose gates are the first N / 2 rows."""
    k = x.shape[1]
    assert x.shape[0] == 1 and k <= MAX_K
    assert kind in ("", *KINDS), kind
    assert x.stride(1) == 1 and weight.stride(1) == 1 and weight.shape[1] == k
    num_out = weight.shape[0] // 2 if kind else weight.shape[0]
    out = torch.empty(1, num_out, dtype=x.dtype, device=x.device)
    config = config or config_for(num_out, k, is_gated=bool(kind))
    k0, k1, k2 = segments(k)
    with on_device(x):
        run(_gemv_kernel, (cdiv(num_out, config.rows),))(
            x, weight, bias if bias is not None else x, out, weight.stride(0), num_out,
            K=k, K0=k0, K1=k1, K2=k2, ROWS=config.rows, KIND=kind, BIAS=bias is not None, num_warps=config.num_warps, **pdl(x),
        )  # fmt: skip
    return out
