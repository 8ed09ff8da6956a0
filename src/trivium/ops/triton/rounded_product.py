"""Products in which inputs are rounded to 8 bits as well: int8 (W8A8) and float8 on the tensor cores, from one row to any number.

Inputs get a scale per row, or, where weights have several groups, per row and group.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.triton.launch import cdiv, next_pow2, on_device, pdl, run, trigger, wait
from trivium.ops.triton.quantized_product import Codes, ProductConfig, step_of

FP8_MAX = 448.0
LIBRARY_ROWS = 64
"""Rows from which the vendor's library multiplies float8 with a scale per row and output."""


@triton.jit
def _round_kernel(x_ptr, out_ptr, scales_ptr, num_in, num_groups, stride_x, stride_o, GROUP: tl.constexpr, BLOCK: tl.constexpr, TOP: tl.constexpr,
                  INTEGERS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    row, group = tl.program_id(0), tl.program_id(1)
    wait(PDL)
    trigger(PDL)
    end = tl.minimum(group * GROUP + GROUP, num_in)
    top = tl.zeros([BLOCK], tl.float32)
    for start in range(group * GROUP, end, BLOCK):
        k = start + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.abs(tl.load(x_ptr + row.to(tl.int64) * stride_x + k, mask=k < end, other=0.0).to(tl.float32)))
    scale = tl.maximum(tl.max(top, axis=0) / TOP, 1e-30)
    tl.store(scales_ptr + row * num_groups + group, scale)
    for start in range(group * GROUP, end, BLOCK):
        k = start + tl.arange(0, BLOCK)
        y = tl.load(x_ptr + row.to(tl.int64) * stride_x + k, mask=k < end, other=0.0).to(tl.float32) / scale
        if INTEGERS:
            y = (y + 12582912.0) - 12582912.0  # to the nearest whole number, ties to even
        else:
            y = tl.minimum(tl.maximum(y, -TOP), TOP)
        tl.store(out_ptr + row.to(tl.int64) * stride_o + k, y.to(out_ptr.dtype.element_ty), mask=k < end)


def round_rows(x: Tensor, dtype: torch.dtype, group: int, num_groups: int) -> tuple[Tensor, Tensor]:
    """x [M, K] → int8 or float8_e4m3fn [M, K], and float32 [M, G]: what one step of each row's group is worth."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty(x.shape[0], num_groups, dtype=torch.float32, device=x.device)
    is_integer = dtype == torch.int8
    with on_device(x):
        run(_round_kernel, (x.shape[0], num_groups))(
            x, out, scales, x.shape[1], num_groups, x.stride(0), out.stride(0), GROUP=group, BLOCK=min(1024, next_pow2(group)),
            TOP=127.0 if is_integer else FP8_MAX, INTEGERS=is_integer, num_warps=4, **pdl(x),
        )  # fmt: skip
    return out, scales


@triton.jit(do_not_specialize=["num_rows"])
def _rounded_kernel(
    x_ptr, x_scales_ptr, codes_ptr, scales_ptr, bias_ptr, out_ptr, num_rows, num_out, num_in, num_steps, num_groups, stride_x, stride_w, stride_o,
    GROUP: tl.constexpr, STEP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUPED: tl.constexpr, INTEGERS: tl.constexpr,
    BIAS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside, present = n < num_out, m < num_rows
    row = codes_ptr + tl.minimum(n, num_out - 1).to(tl.int64)[:, None] * stride_w
    x_row = x_ptr + tl.minimum(m, num_rows - 1).to(tl.int64)[None, :] * stride_x
    wait(PDL)
    trigger(PDL)
    SUMS: tl.constexpr = tl.int32 if INTEGERS else tl.float32
    sums = tl.zeros([BLOCK_N, BLOCK_M], SUMS)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(0, num_steps, num_stages=STAGES):
        k = step * STEP + tl.arange(0, STEP)
        w = tl.load(row + k[None, :], mask=(k < num_in)[None, :], other=0.0)
        x = tl.load(x_row + k[:, None], mask=(k < num_in)[:, None], other=0.0)
        if GROUPED:
            group = step * STEP // GROUP
            part = tl.dot(w, x, out_dtype=SUMS).to(tl.float32)
            part *= tl.load(scales_ptr + group * num_out + n, mask=inside, other=0.0).to(tl.float32)[:, None]
            acc += part * tl.load(x_scales_ptr + m * num_groups + group, mask=present, other=0.0)[None, :]
        else:
            sums = tl.dot(w, x, sums, out_dtype=SUMS)
    if not GROUPED:
        acc = sums.to(tl.float32) * tl.load(scales_ptr + n, mask=inside, other=0.0).to(tl.float32)[:, None]
        acc *= tl.load(x_scales_ptr + m, mask=present, other=0.0)[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)[:, None]
    out = out_ptr + m.to(tl.int64)[None, :] * stride_o + n[:, None]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None] & present[None, :])


def config_for(num_rows: int) -> ProductConfig:
    """Not measured yet on a GPU."""
    if num_rows <= 32:
        return ProductConfig(block_m=max(16, next_pow2(num_rows)), block_n=32)
    return ProductConfig(block_m=min(128, next_pow2(num_rows)), block_n=128, num_warps=8, num_stages=3)


def rounded_product(x: Tensor, weight: Codes, bias: Tensor | None, *, out: Tensor | None = None, config: ProductConfig | None = None) -> Tensor:
    """x [M, K], M at least 1; a weight of kind int8 or fp8 without zero points; bias [N] → [M, N] in x's dtype, or that of `out`."""
    num_rows, num_groups = x.shape[0], weight.scales.shape[0]
    assert weight.zeros is None and not weight.is_narrow and x.stride(1) == 1
    if out is None:
        out = torch.empty(num_rows, weight.num_out, dtype=x.dtype, device=x.device)
    rounded, scales = round_rows(x, weight.codes.dtype, weight.group, num_groups)
    if num_rows >= LIBRARY_ROWS and _library_takes(weight, out.dtype):
        result = torch._scaled_mm(rounded, weight.codes.T, scale_a=scales, scale_b=weight.scales, bias=bias, out_dtype=out.dtype)
        return result if out.data_ptr() == result.data_ptr() else out.copy_(result)
    step, _ = step_of(weight)
    step = max(32, step) if num_groups == 1 else step  # 8-bit matrix instructions take 32 at a time
    config = config or config_for(num_rows)
    with on_device(x):
        run(_rounded_kernel, (cdiv(weight.num_out, config.block_n), cdiv(num_rows, config.block_m)))(
            rounded, scales, weight.codes, weight.scales, bias if bias is not None else x, out,
            num_rows, weight.num_out, weight.num_in, cdiv(weight.num_in, step), num_groups, rounded.stride(0), weight.row_stride, out.stride(0),
            GROUP=weight.group, STEP=step, BLOCK_M=config.block_m, BLOCK_N=config.block_n, GROUPED=num_groups > 1,
            INTEGERS=weight.codes.dtype == torch.int8, BIAS=bias is not None, STAGES=config.num_stages, num_warps=config.num_warps, **pdl(x),
        )  # fmt: skip
    return out


def _library_takes(weight: Codes, dtype: torch.dtype) -> bool:
    is_fp8 = weight.kind == "fp8" and weight.scales.shape[0] == 1 and weight.scales.dtype == torch.float32 and dtype == torch.bfloat16
    return is_fp8 and weight.codes.is_cuda and weight.num_out % 16 == 0 and weight.codes.shape[1] % 16 == 0 and weight.codes.shape[1] == weight.num_in
