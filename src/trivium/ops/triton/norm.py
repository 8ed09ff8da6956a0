"""RMSNorm, alone and after a residual addition: one row of tokens a program, read once, float32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.triton.launch import next_pow2, on_device, pdl, run, wait_and_trigger


@triton.jit
def _rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, stride_x, stride_r, stride_o, eps,
    N: tl.constexpr, BLOCK: tl.constexpr, OFFSET: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32) + OFFSET  # before the wait: weights don't change
    wait_and_trigger(PDL)
    x = tl.load(x_ptr + row * stride_x + cols, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * stride_r + cols, mask=mask, other=0.0).to(tl.float32)
        summed = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + row * stride_r + cols, summed, mask=mask)
        x = summed.to(tl.float32)  # the norm of what the next layer will read
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / N + eps)
    tl.store(out_ptr + row * stride_o + cols, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=mask)


def _num_warps(block: int) -> int:
    """16-byte loads need `block / 8` threads; more than 16 warps only add to the reduction."""
    return max(1, min(16, block // 256))


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> Tensor:
    """x [..., H], rows contiguous → `x / rms(x) * (weight + offset)`."""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty_like(rows)
    _launch(rows, rows, weight, out, eps, offset, add=False)
    return out.view(x.shape)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """x, residual [T, H] → (normed, residual), the residual updated in place to `x + residual`."""
    out = torch.empty_like(x)
    _launch(x, residual, weight, out, eps, offset, add=True)
    return out, residual


def _launch(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, eps: float, offset: float, *, add: bool) -> None:
    assert x.stride(-1) == 1 and residual.stride(-1) == 1, "rows must be contiguous"
    num_rows, width = x.shape
    if num_rows == 0:
        return
    block = next_pow2(width)
    with on_device(x):
        run(_rms_norm_kernel, (num_rows,))(
            x, residual, weight, out, x.stride(0), residual.stride(0), out.stride(0), eps,
            N=width, BLOCK=block, OFFSET=offset, ADD=add, num_warps=_num_warps(block), **pdl(x),
        )  # fmt: skip
