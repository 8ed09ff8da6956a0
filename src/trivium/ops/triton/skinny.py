"""Products of few rows with a weight matrix: `x [M, K] @ W [N, K]^T` where M is 2 to 128, bound by reading W once.

The product is computed transposed: rows of W fill the long side of the matrix instruction, so M is padded to 16 and not to 64, and W goes
from memory to shared memory to the tensor cores without passing registers. Work is cut as in stream-K (Osama et al.,
https://arxiv.org/abs/2301.03598): the steps along K of all tiles form one line, and each of a fixed number of programs takes an equal
run of it. So every multiprocessor reads the same number of bytes, whatever N is. A tile cut by a run's end is put together by the
program that arrives last, always in the same order, so results do not vary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.triton.activation import KINDS, gated
from trivium.ops.triton.launch import cdiv, next_pow2, num_sms, on_device, pdl, run, wait_and_trigger

MAX_ROWS = 128


@dataclass(frozen=True, slots=True)
class SkinnyConfig:
    """How the product is cut; chosen by measurement (`benchmarks/kernels.py`)."""

    block_n: int = 64
    """Rows of W in a tile (with a gated activation: of each half)."""
    block_k: int = 128
    num_warps: int = 4
    num_stages: int = 4
    programs_per_sm: int = 2
    prefetch: int = 2
    """Steps along K whose W is asked into L2 before waiting for x."""


@triton.jit
def _prefetch(pointers, PDL: tl.constexpr):
    """Ask L2 for the lines at these addresses; nothing waits for them."""
    if PDL:
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["num_rows", "num_out", "per_program"])
def _skinny_kernel(
    x_ptr, w_ptr, bias_ptr, residual_ptr, out_ptr, partial_ptr, arrivals_ptr, num_rows, num_out, K, per_program,
    stride_x, stride_w, stride_r, stride_o,
    EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, PREFETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    K_STEPS = (K + BLOCK_K - 1) // BLOCK_K
    HALVES: tl.constexpr = 1 if KIND == "" else 2
    LINE: tl.constexpr = 64  # elements of 2 bytes in an L2 line
    pid = tl.program_id(0)
    n_in_tile = tl.arange(0, BLOCK_N)
    k_in_tile = tl.arange(0, BLOCK_K)
    m = tl.arange(0, BLOCK_M)
    total = (num_out + BLOCK_N - 1) // BLOCK_N * K_STEPS
    begin = pid * per_program
    end = tl.minimum(begin + per_program, total)
    up_offset = num_out.to(tl.int64) * stride_w

    if PREFETCH > 0 and BLOCK_K >= LINE:
        first_n = tl.minimum(begin // K_STEPS * BLOCK_N + n_in_tile, num_out - 1)
        lines = tl.arange(0, BLOCK_K // LINE) * LINE
        for i in tl.static_range(PREFETCH):
            line_k = tl.minimum((begin % K_STEPS + i) * BLOCK_K + lines, K - 1)
            address = w_ptr + first_n.to(tl.int64)[:, None] * stride_w + line_k[None, :]
            if begin % K_STEPS + i < K_STEPS and i < per_program:
                _prefetch(address, PDL)
                if HALVES == 2:
                    _prefetch(address + up_offset, PDL)
    wait_and_trigger(PDL)

    at = begin
    while at < end:
        tile = at // K_STEPS
        first_step = at % K_STEPS
        steps = tl.minimum(K_STEPS - first_step, end - at)
        n = tile * BLOCK_N + n_in_tile
        inside = n < num_out
        w_rows = w_ptr + tl.where(inside, n, 0).to(tl.int64)[:, None] * stride_w  # rows past the end repeat row 0 and are not stored
        x_rows = x_ptr + m[:, None] * stride_x
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        acc_up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for step in tl.range(first_step, first_step + steps, num_stages=STAGES):
            k = step * BLOCK_K + k_in_tile
            if EVEN_K:
                w = tl.load(w_rows + k[None, :], eviction_policy="evict_first")
                x = tl.load(x_rows + k[None, :], mask=(m < num_rows)[:, None], other=0.0)
                acc = tl.dot(w, tl.trans(x), acc, input_precision=PRECISION)
                if HALVES == 2:
                    up = tl.load(w_rows + up_offset + k[None, :], eviction_policy="evict_first")
                    acc_up = tl.dot(up, tl.trans(x), acc_up, input_precision=PRECISION)
            else:
                w = tl.load(w_rows + k[None, :], mask=(k < K)[None, :], other=0.0, eviction_policy="evict_first")
                x = tl.load(x_rows + k[None, :], mask=(m < num_rows)[:, None] & (k < K)[None, :], other=0.0)
                acc = tl.dot(w, tl.trans(x), acc, input_precision=PRECISION)
                if HALVES == 2:
                    up = tl.load(w_rows + up_offset + k[None, :], mask=(k < K)[None, :], other=0.0, eviction_policy="evict_first")
                    acc_up = tl.dot(up, tl.trans(x), acc_up, input_precision=PRECISION)

        complete = steps == K_STEPS
        if not complete:
            SIZE: tl.constexpr = BLOCK_N * BLOCK_M
            inner = n_in_tile[:, None] * BLOCK_M + m[None, :]
            slot = partial_ptr + ((2 * pid + (at > begin).to(tl.int32)) * HALVES) * SIZE
            tl.store(slot + inner, acc, cache_modifier=".cg")
            if HALVES == 2:
                tl.store(slot + SIZE + inner, acc_up, cache_modifier=".cg")
            tl.debug_barrier()  # all threads' partial results before the one thread's arrival
            first_pid = tile * K_STEPS // per_program
            last_pid = (tile * K_STEPS + K_STEPS - 1) // per_program
            complete = tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel") == last_pid - first_pid
            if complete:
                tl.store(arrivals_ptr + tile, 0)
                acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
                acc_up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
                for p in range(first_pid, last_pid + 1):
                    # A program's first run has slot 0; its last, if another one, slot 1. Only the tile's first program can have begun before it.
                    slot = partial_ptr + ((2 * p + (p * per_program < tile * K_STEPS).to(tl.int32)) * HALVES) * SIZE
                    acc += tl.load(slot + inner, cache_modifier=".cg")
                    if HALVES == 2:
                        acc_up += tl.load(slot + SIZE + inner, cache_modifier=".cg")
        if complete:
            y = acc
            if BIAS:
                y += tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)[:, None]
            if HALVES == 2:
                if BIAS:
                    acc_up += tl.load(bias_ptr + num_out + n, mask=inside, other=0.0).to(tl.float32)[:, None]
                y = gated(y, acc_up, KIND)
            out_mask = inside[:, None] & (m < num_rows)[None, :]
            if RESIDUAL:
                y += tl.load(residual_ptr + m[None, :] * stride_r + n[:, None], mask=out_mask, other=0.0).to(tl.float32)
            tl.store(out_ptr + m[None, :] * stride_o + n[:, None], y.to(out_ptr.dtype.element_ty), mask=out_mask)
        at += steps


def config_for(num_rows: int, num_out: int, k: int, *, is_gated: bool) -> SkinnyConfig:
    """The measured default for a shape."""
    block_k = 128 if k % 128 == 0 else 64
    if is_gated or num_rows > 32:
        return SkinnyConfig(block_n=64, block_k=64 if is_gated else block_k, num_stages=5 if is_gated else 4)
    return SkinnyConfig(block_k=block_k)


def skinny(
    x: Tensor, weight: Tensor, bias: Tensor | None, arrivals: Tensor, *, kind: str = "", residual: Tensor | None = None,
    out: Tensor | None = None, config: SkinnyConfig | None = None,
) -> Tensor:  # fmt: skip
    """x [M, K], M at most `MAX_ROWS`; weight [N, K], bias [N] → [M, N], or [M, N / 2] with an activation `kind`, whose gates are the first
    N / 2 rows. `residual` [M, N] is added to the result; `out` may be the residual.

    `arrivals`: int32 zeros, one a tile of N at least, left as zeros; not to be shared between streams.
    """
    num_rows, k = x.shape
    assert 1 <= num_rows <= MAX_ROWS
    assert kind in ("", *KINDS), kind
    assert x.stride(1) == 1 and weight.stride(1) == 1 and weight.shape[1] == k
    num_out = weight.shape[0] // 2 if kind else weight.shape[0]
    if out is None:
        out = torch.empty(num_rows, num_out, dtype=x.dtype, device=x.device)
    config = config or config_for(num_rows, num_out, k, is_gated=bool(kind))
    block_m = max(16, next_pow2(num_rows))
    num_tiles, k_steps = cdiv(num_out, config.block_n), cdiv(k, config.block_k)
    per_program = cdiv(num_tiles * k_steps, num_sms(x.device.index) * config.programs_per_sm)
    programs = cdiv(num_tiles * k_steps, per_program)
    assert arrivals.numel() >= num_tiles, "too few arrival counters"
    halves = 2 if kind else 1
    partial = torch.empty(2 * programs * halves * config.block_n * block_m, dtype=torch.float32, device=x.device)
    with on_device(x):
        run(_skinny_kernel, (programs,))(
            x, weight, bias if bias is not None else x, residual if residual is not None else x, out, partial, arrivals,
            num_rows, num_out, k, per_program, x.stride(0), weight.stride(0), residual.stride(0) if residual is not None else 0, out.stride(0),
            EVEN_K=k % config.block_k == 0, BLOCK_M=block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, KIND=kind, BIAS=bias is not None,
            RESIDUAL=residual is not None, PRECISION="ieee" if x.dtype == torch.float32 else "tf32", STAGES=config.num_stages,
            PREFETCH=config.prefetch, num_warps=config.num_warps, **pdl(x),
        )  # fmt: skip
    return out
