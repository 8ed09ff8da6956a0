"""Products of very few rows with a weight matrix: `x [M, K] @ W [N, K]^T` where M is 1 to 8, bound by reading W once.

A program takes a few rows of W whole, all of its loads in flight at once, and issues them before it waits for the kernel that makes x.
What a decode layer does around its products is folded in: RMSNorm of x (each program norms x again: x comes from L2), bias, the gated
activation, the addition to the residual stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.triton.activation import KINDS, gated
from trivium.ops.triton.launch import cdiv, next_pow2, on_device, pdl, run, wait_and_trigger

MAX_ROWS = 8


@dataclass(frozen=True, slots=True)
class MatvecConfig:
    """Rows of W a program takes, and its warps."""

    rows: int = 1
    num_warps: int = 8


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit(do_not_specialize=["num_out"])
def _matvec_kernel(
    x_ptr, w_ptr, bias_ptr, norm_ptr, residual_ptr, out_ptr, stride_x, stride_w, stride_r, stride_o, num_out, eps,
    M: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr,
    KIND: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, OFFSET: tl.constexpr, RESIDUAL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK_K)
    inside = n < num_out
    mask = inside[:, None] & (k < K)[None, :]
    rows = w_ptr + n.to(tl.int64)[:, None] * stride_w + k[None, :]
    w = tl.load(rows, mask=mask, other=0.0, eviction_policy="evict_first")
    if KIND != "":
        up = tl.load(rows + num_out.to(tl.int64) * stride_w, mask=mask, other=0.0, eviction_policy="evict_first")
    if NORM:
        scale = tl.load(norm_ptr + k, mask=k < K, other=0.0).to(tl.float32) + OFFSET
    wait_and_trigger(PDL)

    m = tl.arange(0, BLOCK_M)
    y = tl.zeros([BLOCK_M, ROWS], tl.float32)
    y_up = tl.zeros([BLOCK_M, ROWS], tl.float32)
    for i in tl.static_range(M):
        x = tl.load(x_ptr + i * stride_x + k, mask=k < K, other=0.0).to(tl.float32)
        factor = 1.0
        if NORM:
            factor = tl.rsqrt(tl.sum(x * x, axis=0) / K + eps)  # multiplies the sum: the products don't wait for it
            x *= scale
        if KIND == "":
            dot = tl.sum(w.to(tl.float32) * x[None, :], axis=1)
        else:
            dot, dot_up = tl.reduce((w.to(tl.float32) * x[None, :], up.to(tl.float32) * x[None, :]), 1, _add_pairs)
            y_up = tl.where((m == i)[:, None], (dot_up * factor)[None, :], y_up)
        y = tl.where((m == i)[:, None], (dot * factor)[None, :], y)
    out_mask = (m < M)[:, None] & inside[None, :]
    if BIAS:
        y += tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)[None, :]
        if KIND != "":
            y_up += tl.load(bias_ptr + num_out + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    if KIND != "":
        y = gated(y, y_up, KIND)
    if RESIDUAL:
        y += tl.load(residual_ptr + m[:, None] * stride_r + n[None, :], mask=out_mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + m[:, None] * stride_o + n[None, :], y.to(out_ptr.dtype.element_ty), mask=out_mask)


def config_for(num_rows: int, k: int, *, is_gated: bool) -> MatvecConfig:
    """About 16 KB of W a program: enough loads in flight, few registers."""
    rows = max(1, min(8, 4096 // next_pow2(k)))
    if is_gated and rows > 1:
        rows //= 2
    return MatvecConfig(rows=rows, num_warps=max(1, min(16, next_pow2(k) * rows // 512)))


def matvec(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, kind: str = "", norm: Tensor | None = None, norm_eps: float = 1e-6,
    norm_offset: float = 0.0, residual: Tensor | None = None, out: Tensor | None = None, config: MatvecConfig | None = None,
) -> Tensor:  # fmt: skip
    """x [M, K], M at most `MAX_ROWS`; weight [N, K], bias [N] → [M, N], or [M, N / 2] with an activation `kind`, whose gates are the first
    N / 2 rows. `norm` [K]: x is first normed by it; `residual` [M, N]: added to the result; `out` may be the residual."""
    num_rows, k = x.shape
    assert 1 <= num_rows <= MAX_ROWS
    assert kind in ("", *KINDS), kind
    assert x.stride(1) == 1 and weight.stride(1) == 1 and weight.shape[1] == k
    num_out = weight.shape[0] // 2 if kind else weight.shape[0]
    if out is None:
        out = torch.empty(num_rows, num_out, dtype=x.dtype, device=x.device)
    config = config or config_for(num_rows, k, is_gated=bool(kind))
    with on_device(x):
        run(_matvec_kernel, (cdiv(num_out, config.rows),))(
            x, weight, bias if bias is not None else x, norm if norm is not None else x, residual if residual is not None else x, out,
            x.stride(0), weight.stride(0), residual.stride(0) if residual is not None else 0, out.stride(0), num_out, norm_eps,
            M=num_rows, K=k, ROWS=config.rows, BLOCK_K=next_pow2(k), BLOCK_M=next_pow2(num_rows), KIND=kind, BIAS=bias is not None,
            NORM=norm is not None, OFFSET=norm_offset, RESIDUAL=residual is not None, num_warps=config.num_warps, **pdl(x),
        )  # fmt: skip
    return out
