"""Products of up to some hundred rows with a weight of 4 or 8 bits that is decoded on the way: bound by reading the codes once.

As in `skinny`, the product is computed transposed, so that rows of W fill the long side of the matrix instruction and few rows of x are
padded to 16, not 64. Codes become numbers of x's type unscaled and hence exactly; sums are scaled once a group. Where tiles of N are too
few for the device, K is cut as well, and the program that arrives last adds the parts up, always in the same order.

How codes lie is said in `quantized_codes`; 8-bit ones as they are, [N, K].
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.triton.launch import INTERPRETED, ArrivalCounters, cdiv, next_pow2, num_sms, on_device, pdl, run, trigger, wait
from trivium.ops.triton.quantized_codes import eight_bits, four_bits, load_x, looked_up, unpacked, zero_points

RUN = 128
"""Inputs of a run of 4-bit codes; they are padded to a multiple of it."""
MAX_ROWS = 512
"""Rows above which dequantizing the whole weight for the vendor's library is the better way."""

_counters = ArrivalCounters()


@dataclass(frozen=True, slots=True)
class ProductConfig:
    """How the product is cut; `config_for` has the defaults, `benchmarks/quantized.py` measures others."""

    block_m: int = 16
    block_n: int = 64
    num_warps: int = 4
    num_stages: int = 4
    programs_per_sm: int = 2


@triton.jit(do_not_specialize=["num_rows", "per_split"])
def _product_kernel(
    x_ptr, codes_ptr, scales_ptr, zeros_ptr, table_ptr, bias_ptr, out_ptr, partial_ptr, arrivals_ptr,
    num_rows, num_out, num_in, num_steps, num_groups, per_split, stride_x, stride_w, stride_o,
    KIND: tl.constexpr, GROUP: tl.constexpr, STEP: tl.constexpr, SPAN: tl.constexpr, ZEROS: tl.constexpr, CENTER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    FAST: tl.constexpr, EVEN_K: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile_n, tile_m, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = n < num_out
    row = codes_ptr + tl.minimum(n, num_out - 1).to(tl.int64)[:, None] * stride_w
    x_rows = x_ptr + tl.minimum(m, num_rows - 1).to(tl.int64)[None, :] * stride_x
    run_words = num_out.to(tl.int64) * 16
    wait(PDL)
    trigger(PDL)

    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(split * per_split, tl.minimum(split * per_split + per_split, num_steps), num_stages=STAGES):
        if KIND == "int4" or KIND == "table4":
            piece = row + step * run_words
            if FAST and KIND == "int4":
                numbers = unpacked(tl.load(piece + tl.arange(0, 16)[None, :]))
            elif FAST:
                numbers = looked_up(tl.load(piece + tl.arange(0, 16)[None, :]), table_ptr)
            for span in tl.static_range(STEP // SPAN):
                at = step * STEP + span * SPAN
                group = tl.minimum(at // GROUP, num_groups - 1)
                zero = zero_points(zeros_ptr + group * num_out + n, inside, CENTER, ZEROS)
                part = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
                for i in tl.static_range(SPAN // 16):
                    if FAST:
                        values = numbers[span * (SPAN // 16) + i]
                        if KIND == "int4":
                            values = values - (zero + 128.0).to(tl.bfloat16)[:, None]
                    else:
                        values = four_bits(piece, span * (SPAN // 16) + i, zero, table_ptr, KIND, ZEROS, DTYPE)
                    x = load_x(x_rows, at + i * 16 + tl.arange(0, 16), num_in, EVEN_K)
                    part = tl.dot(values, x, part, input_precision=PRECISION)
                acc += part * tl.load(scales_ptr + group * num_out + n, mask=inside, other=0.0).to(tl.float32)[:, None]
        else:
            k = step * STEP + tl.arange(0, STEP)
            group = step * STEP // GROUP
            zero = zero_points(zeros_ptr + group * num_out + n, inside, 0.0, ZEROS)
            if EVEN_K:
                codes = tl.load(row + k[None, :])
            else:
                codes = tl.load(row + k[None, :], mask=(k < num_in)[None, :], other=0.0)
            values = eight_bits(codes, zero, KIND, ZEROS, DTYPE)
            x = load_x(x_rows, k, num_in, EVEN_K)
            part = tl.dot(values, x, input_precision=PRECISION)
            acc += part * tl.load(scales_ptr + group * num_out + n, mask=inside, other=0.0).to(tl.float32)[:, None]

    complete = True
    if SPLITS > 1:
        tile = tile_m * tl.num_programs(0) + tile_n
        inner = tl.arange(0, BLOCK_N)[:, None] + tl.arange(0, BLOCK_M)[None, :] * BLOCK_N
        used = (inner >= 0) & (m < num_rows)[None, :]
        slots = partial_ptr + tile.to(tl.int64) * (SPLITS * BLOCK_N * BLOCK_M) + inner
        tl.store(slots + split * (BLOCK_N * BLOCK_M), acc, mask=used, cache_modifier=".cg")
        tl.debug_barrier()  # all threads' parts before the one thread's arrival
        complete = tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel") == SPLITS - 1
        if complete:
            tl.store(arrivals_ptr + tile, 0)
            acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for other in range(SPLITS):
                acc += tl.load(slots + other * (BLOCK_N * BLOCK_M), mask=used, other=0.0, cache_modifier=".cg")
    if complete:
        if BIAS:
            acc += tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)[:, None]
        out = out_ptr + m.to(tl.int64)[None, :] * stride_o + n[:, None]
        tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (m < num_rows)[None, :])


@dataclass(frozen=True, slots=True)
class Codes:
    """A weight as the kernels of this package want it."""

    kind: str
    codes: Tensor
    """int32 [K / 128, N, 16], int8 [N, K], float8_e4m3fn [N, K], or its bits in uint8 (kind fp8_bits)"""
    scales: Tensor
    """[G, N]"""
    zeros: Tensor | None
    """[G, N]"""
    table: Tensor | None
    """float32 [16], of kind table4."""
    table_bytes: Tensor | None
    """The same in bf16, as `quantized_codes.looked_up` wants it."""
    group: int
    num_in: int
    """Inputs as they come, before padding."""

    @property
    def num_out(self) -> int:
        return self.codes.shape[-2]

    @property
    def row_stride(self) -> int:
        """Entries from one output to the next."""
        return self.codes.stride(-2)

    @property
    def zero_kind(self) -> str:
        """Of zero points: none, whole numbers, or others."""
        return "" if self.zeros is None else "fraction" if self.zeros.is_floating_point() else "whole"

    @property
    def is_narrow(self) -> bool:
        return self.kind in ("int4", "table4")


def config_for(num_rows: int) -> ProductConfig:
    """By what the machine code of the loop looks like; not measured yet."""
    block_m = min(128, max(16, next_pow2(num_rows)))
    if block_m <= 32:
        return ProductConfig(block_m=block_m, block_n=128)
    return ProductConfig(block_m=block_m, block_n=128, num_warps=8, num_stages=3, programs_per_sm=1)


def step_of(weight: Codes) -> tuple[int, int]:
    """Inputs of a step along K, and how many neighbours among them share a scale."""
    if weight.is_narrow:
        return RUN, gcd(weight.group, RUN)
    step = min(128, weight.group & -weight.group)
    return step, step


def _is_fast(weight: Codes, x: Tensor) -> bool:
    """Whether 4-bit codes become numbers in pairs, by instructions that the interpreter doesn't know."""
    if INTERPRETED or not weight.is_narrow or weight.zero_kind == "fraction" or x.dtype != torch.bfloat16:
        return False
    return torch.cuda.get_device_capability(x.device) >= (9, 0)


def product(x: Tensor, weight: Codes, bias: Tensor | None, *, out: Tensor | None = None, config: ProductConfig | None = None) -> Tensor:
    """x [M, K] in the order of the weight's groups, M at least 1; bias [N] → [M, N] in x's dtype, or that of `out`."""
    num_rows = x.shape[0]
    assert x.stride(1) == 1 and x.shape[1] == weight.num_in
    if out is None:
        out = torch.empty(num_rows, weight.num_out, dtype=x.dtype, device=x.device)
    config = config or config_for(num_rows)
    step, span = step_of(weight)
    num_steps, num_groups = cdiv(weight.num_in, step), weight.scales.shape[0]
    tiles = cdiv(weight.num_out, config.block_n), cdiv(num_rows, config.block_m)
    splits = max(1, min(16, num_steps, num_sms(x.device.index) * config.programs_per_sm // (tiles[0] * tiles[1])))
    per_split = cdiv(num_steps, splits)
    splits = cdiv(num_steps, per_split)
    num_tiles = tiles[0] * tiles[1]
    partial = torch.empty(num_tiles * splits * config.block_n * config.block_m if splits > 1 else 1, dtype=torch.float32, device=x.device)
    arrivals = _counters.for_weight(weight.codes, num_tiles) if splits > 1 else partial
    is_fast = _is_fast(weight, x)
    table = weight.table_bytes if is_fast else weight.table
    types = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
    with on_device(x):
        run(_product_kernel, (*tiles, splits))(
            x, weight.codes, weight.scales, weight.zeros if weight.zeros is not None else x, table if table is not None else x,
            bias if bias is not None else x, out, partial, arrivals,
            num_rows, weight.num_out, weight.num_in, num_steps, num_groups, per_split, x.stride(0), weight.row_stride, out.stride(0),
            KIND=weight.kind, GROUP=weight.group, STEP=step, SPAN=span, ZEROS=weight.zero_kind, CENTER=8.0 if weight.kind == "int4" else 0.0,
            BLOCK_M=config.block_m, BLOCK_N=config.block_n, SPLITS=splits, BIAS=bias is not None, DTYPE=types[x.dtype],
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32", FAST=is_fast, EVEN_K=weight.num_in % step == 0,
            STAGES=config.num_stages, num_warps=config.num_warps, **pdl(x),
        )  # fmt: skip
    return out


@triton.jit
def _dequantize_kernel(
    codes_ptr, scales_ptr, zeros_ptr, table_ptr, out_ptr, num_out, num_in, num_groups, stride_w, stride_o,
    KIND: tl.constexpr, GROUP: tl.constexpr, STEP: tl.constexpr, SPAN: tl.constexpr, ZEROS: tl.constexpr, CENTER: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    step = tl.program_id(1)
    inside = n < num_out
    row = codes_ptr + tl.minimum(n, num_out - 1).to(tl.int64)[:, None] * stride_w
    out = out_ptr + n.to(tl.int64)[:, None] * stride_o
    if KIND == "int4" or KIND == "table4":
        piece = row + step * (num_out.to(tl.int64) * 16)
        for i in tl.static_range(STEP // 16):
            at = step * STEP + i * 16
            group = tl.minimum(at // GROUP, num_groups - 1)
            zero = zero_points(zeros_ptr + group * num_out + n, inside, CENTER, ZEROS)
            values = four_bits(piece, i, zero, table_ptr, KIND, ZEROS, tl.float32)
            values *= tl.load(scales_ptr + group * num_out + n, mask=inside, other=0.0).to(tl.float32)[:, None]
            k = at + tl.arange(0, 16)
            tl.store(out + k[None, :], values.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (k < num_in)[None, :])
    else:
        k = step * STEP + tl.arange(0, STEP)
        group = step * STEP // GROUP
        zero = zero_points(zeros_ptr + group * num_out + n, inside, 0.0, ZEROS)
        values = eight_bits(tl.load(row + k[None, :], mask=(k < num_in)[None, :], other=0.0), zero, KIND, ZEROS, tl.float32)
        values *= tl.load(scales_ptr + group * num_out + n, mask=inside, other=0.0).to(tl.float32)[:, None]
        tl.store(out + k[None, :], values.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (k < num_in)[None, :])


def dequantize(weight: Codes, dtype: torch.dtype) -> Tensor:
    """[N, K] with inputs in the order of the weight's groups."""
    out = torch.empty(weight.num_out, weight.num_in, dtype=dtype, device=weight.codes.device)
    step, span = step_of(weight)
    block_n = 32
    with on_device(out):
        run(_dequantize_kernel, (cdiv(weight.num_out, block_n), cdiv(weight.num_in, step)))(
            weight.codes, weight.scales, weight.zeros if weight.zeros is not None else out, weight.table if weight.table is not None else out, out,
            weight.num_out, weight.num_in, weight.scales.shape[0], weight.row_stride, out.stride(0),
            KIND=weight.kind, GROUP=weight.group, STEP=step, SPAN=span, ZEROS=weight.zero_kind, CENTER=8.0 if weight.kind == "int4" else 0.0,
            BLOCK_N=block_n, num_warps=4,
        )  # fmt: skip
    return out
