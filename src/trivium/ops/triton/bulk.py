"""Products of few rows with a weight matrix on Hopper: `x [M, K] @ W [N, K]^T`, M up to `MAX_ROWS`, bound by reading W once.

As `skinny`, whose cut of the work in equal runs and whose way of putting cut tiles together this is, but written in Gluon, Triton's language
for one chip: a ring of shared memory is filled by the copy engine, and its first round of W is asked for before the kernel in front has
ended, so that W streams while that one drains. Registers and threads have no part in reading W, and nothing of it is converted: rows of W
are the long side of the matrix instruction, x its short side. What lies outside of W or x arrives as zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from trivium.ops.triton.activation import KINDS
from trivium.ops.triton.launch import cdiv, next_pow2, num_sms, on_device, pdl, run

MAX_ROWS = 128


@dataclass(frozen=True, slots=True)
class BulkConfig:
    """How the product is cut; chosen by measurement (`benchmarks/kernels.py`)."""

    block_n: int = 64
    """Rows of W in a tile (with a gated activation: of each half)."""
    block_k: int = 128
    ring_bytes: int = 200 << 10
    """What W and x in flight may take of a multiprocessor's shared memory."""
    num_warps: int = 4
    programs_per_sm: int = 1

    def stages(self, block_m: int, halves: int) -> int:
        """Steps along K that the ring holds."""
        return max(2, self.ring_bytes // self.programs_per_sm // ((self.block_n * halves + block_m) * self.block_k * 2))


@gluon.jit
def _gated(gate, up, KIND: gl.constexpr):
    """As `activation.gated`."""
    if KIND == "silu":
        value = gate / (1.0 + gl.exp(-gate))
    elif KIND == "gelu_tanh":
        value = gate / (1.0 + gl.exp(-2.0 * 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)))
    else:
        gl.static_assert(KIND == "gelu")
        value = 0.5 * gate * (1.0 + gl.erf(gate * 0.7071067811865476))
    return value * up


@gluon.jit
def _trigger(PDL: gl.constexpr):
    if PDL:
        gl.inline_asm_elementwise("griddepcontrol.launch_dependents; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _wait(PDL: gl.constexpr):
    if PDL:
        gl.inline_asm_elementwise("griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _ask_weights(w_desc, w_ring, barriers, slot, unit, asks, k_steps, num_out, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, HALVES: gl.constexpr):
    row, k = unit // k_steps * BLOCK_N, unit % k_steps * BLOCK_K
    bar = barriers.index(slot)
    tma.async_copy_global_to_shared(w_desc, [row, k], bar, w_ring.index(slot * HALVES), asks)
    if HALVES == 2:
        tma.async_copy_global_to_shared(w_desc, [row + num_out, k], bar, w_ring.index(slot * HALVES + 1), asks)


@gluon.jit
def _partial(partial_ptr, p, last_pid, tile_begin, per_program, inner, SIZE: gl.constexpr, HALF: gl.constexpr, HALVES: gl.constexpr):
    """What program `p` left of the tile whose steps begin at `tile_begin`; zeros from `last_pid` on."""
    # A program's first run has slot 0; its last, if another one, slot 1. Only the tile's first program can have begun before it.
    at = (2 * p + (p * per_program < tile_begin).to(gl.int32)) * HALVES + HALF
    return gl.load(partial_ptr + at * SIZE + inner, mask=(inner >= 0) & (p <= last_pid), other=0.0, cache_modifier=".cg")


@gluon.jit
def _put_together(
    acc, partial_ptr, first_pid, last_pid, tile_begin, per_program, inner, SIZE: gl.constexpr, HALF: gl.constexpr, HALVES: gl.constexpr
):  # fmt: skip
    """The sum of a tile's partial results, always in the order of the programs; four of them are on their way at a time."""
    acc = acc * 0.0
    for p in range(first_pid, last_pid + 1, 4):
        a = _partial(partial_ptr, p, last_pid, tile_begin, per_program, inner, SIZE, HALF, HALVES)
        b = _partial(partial_ptr, p + 1, last_pid, tile_begin, per_program, inner, SIZE, HALF, HALVES)
        c = _partial(partial_ptr, p + 2, last_pid, tile_begin, per_program, inner, SIZE, HALF, HALVES)
        d = _partial(partial_ptr, p + 3, last_pid, tile_begin, per_program, inner, SIZE, HALF, HALVES)
        acc = acc + a + b + c + d
    return acc


@gluon.jit(do_not_specialize=["num_rows", "num_out", "k_steps", "per_program"])
def _bulk_kernel(
    x_desc, w_desc, bias_ptr, residual_ptr, out_ptr, partial_ptr, arrivals_ptr, num_rows, num_out, k_steps, per_program, stride_r, stride_o,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, KIND: gl.constexpr, BIAS: gl.constexpr,
    RESIDUAL: gl.constexpr, PDL: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    HALVES: gl.constexpr = 1 if KIND == "" else 2
    SIZE: gl.constexpr = BLOCK_N * BLOCK_M
    ROUND: gl.constexpr = (BLOCK_N * HALVES + BLOCK_M) * BLOCK_K * 2  # bytes of a step
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BLOCK_M, 16])
    _trigger(PDL)
    pid = gl.program_id(0)
    total = (num_out + BLOCK_N - 1) // BLOCK_N * k_steps
    begin = pid * per_program
    end = gl.minimum(begin + per_program, total)

    w_ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES * HALVES, BLOCK_N, BLOCK_K], w_desc.layout)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    barriers = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(barriers.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.expect(barriers.index(i), ROUND, begin + i < end)
        _ask_weights(w_desc, w_ring, barriers, i, begin + i, begin + i < end, k_steps, num_out, BLOCK_N, BLOCK_K, HALVES)
    _wait(PDL)
    for i in gl.static_range(STAGES):
        unit = begin + i
        tma.async_copy_global_to_shared(x_desc, [0, unit % k_steps * BLOCK_K], barriers.index(i), x_ring.index(i), unit < end)

    slot = 0
    free = 0
    phase = 0
    at = begin
    while at < end:
        tile = at // k_steps
        first_step = at % k_steps
        steps = gl.minimum(k_steps - first_step, end - at)
        acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, LAYOUT)
        up = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, LAYOUT)
        for step in range(steps):
            mbarrier.wait(barriers.index(slot), phase)
            x = x_ring.index(slot).permute((1, 0))
            acc = warpgroup_mma(w_ring.index(slot * HALVES), x, acc, is_async=True)
            if HALVES == 2:
                up = warpgroup_mma(w_ring.index(slot * HALVES + 1), x, up, is_async=True)
                acc, up = warpgroup_mma_wait(2, deps=[acc, up])
            else:
                acc = warpgroup_mma_wait(1, deps=[acc])
            # The products of the step before have ended: what they read makes room.
            unit = at + step - 1 + STAGES
            asks = (unit < end) & (unit >= begin + STAGES)
            mbarrier.expect(barriers.index(free), ROUND, asks)  # behind a barrier: no warp reads the slot any more
            _ask_weights(w_desc, w_ring, barriers, free, unit, asks, k_steps, num_out, BLOCK_N, BLOCK_K, HALVES)
            tma.async_copy_global_to_shared(x_desc, [0, unit % k_steps * BLOCK_K], barriers.index(free), x_ring.index(free), asks)
            free = slot
            slot += 1
            if slot == STAGES:
                slot = 0
                phase ^= 1
        if HALVES == 2:
            acc, up = warpgroup_mma_wait(0, deps=[acc, up])
        else:
            acc = warpgroup_mma_wait(0, deps=[acc])

        complete = steps == k_steps
        n = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, LAYOUT))
        m = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, LAYOUT))
        if not complete:
            inner = n[:, None] * BLOCK_M + m[None, :]
            own = (2 * pid + (at > begin).to(gl.int32)) * HALVES
            gl.store(partial_ptr + own * SIZE + inner, acc, cache_modifier=".cg")
            if HALVES == 2:
                gl.store(partial_ptr + (own + 1) * SIZE + inner, up, cache_modifier=".cg")
            gl.thread_barrier()  # all threads' partial results before the one thread's arrival
            first_pid = tile * k_steps // per_program
            last_pid = (tile * k_steps + k_steps - 1) // per_program
            complete = gl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel") == last_pid - first_pid
            if complete:
                gl.store(arrivals_ptr + tile, 0)
                acc = _put_together(acc, partial_ptr, first_pid, last_pid, tile * k_steps, per_program, inner, SIZE, 0, HALVES)
                if HALVES == 2:
                    up = _put_together(up, partial_ptr, first_pid, last_pid, tile * k_steps, per_program, inner, SIZE, 1, HALVES)
        if complete:
            rows = tile * BLOCK_N + n
            inside = rows < num_out
            y = acc
            if BIAS:
                y += gl.load(bias_ptr + rows, mask=inside, other=0.0).to(gl.float32)[:, None]
            if HALVES == 2:
                if BIAS:
                    up += gl.load(bias_ptr + num_out + rows, mask=inside, other=0.0).to(gl.float32)[:, None]
                y = _gated(y, up, KIND)
            mask = inside[:, None] & (m < num_rows)[None, :]
            if RESIDUAL:
                y += gl.load(residual_ptr + m[None, :] * stride_r + rows[:, None], mask=mask, other=0.0).to(gl.float32)
            gl.store(out_ptr + m[None, :] * stride_o + rows[:, None], y.to(out_ptr.dtype.element_ty), mask=mask)
        at += steps


def cut(num_tiles: int, k_steps: int, most_programs: int) -> int:
    """Steps a program takes. Putting a cut tile together costs more than multiprocessors left idle, as long as enough of them read: so programs
    take whole tiles where that leaves at least 0.7 of them, else the same part of a tile each."""
    whole = cdiv(num_tiles, most_programs)
    if cdiv(num_tiles, whole) >= 0.7 * most_programs:
        return whole * k_steps
    parts = most_programs // num_tiles
    if num_tiles * parts >= 0.7 * most_programs:
        return cdiv(k_steps, parts)
    return cdiv(num_tiles * k_steps, most_programs)


def config_for(num_rows: int) -> BulkConfig:
    """The measured default: with few rows a ring that leaves room for a program of the kernel in front, with many one as deep as possible."""
    return BulkConfig(ring_bytes=(160 if num_rows <= 32 else 200) << 10)


def _describe(tensor: Tensor, rows: int, columns: int) -> Any:
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16 if tensor.dtype == torch.bfloat16 else gl.float16)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [rows, columns], layout)


def bulk(
    x: Tensor, weight: Tensor, bias: Tensor | None, arrivals: Tensor, *, kind: str = "", residual: Tensor | None = None,
    out: Tensor | None = None, config: BulkConfig | None = None,
) -> Tensor:  # fmt: skip
    """x [M, K], M at most `MAX_ROWS`; weight [N, K], bias [N] → [M, N], or [M, N / 2] with an activation `kind`, whose gates are the first
    N / 2 rows. `residual` [M, N] is added to the result; `out` may be the residual. 16-bit types; rows of the weight start at 16 bytes.

    `arrivals`: int32 zeros, one a tile of N at least, left as zeros; not to be shared between streams.
    """
    num_rows, k = x.shape
    assert 1 <= num_rows <= MAX_ROWS
    assert kind in ("", *KINDS), kind
    assert weight.stride(1) == 1 and weight.shape[1] == k
    if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
        x = x.clone(memory_format=torch.contiguous_format)
    num_out = weight.shape[0] // 2 if kind else weight.shape[0]
    if out is None:
        out = torch.empty(num_rows, num_out, dtype=x.dtype, device=x.device)
    config = config or config_for(num_rows)
    block_m = max(16, next_pow2(num_rows))
    num_tiles, k_steps = cdiv(num_out, config.block_n), cdiv(k, config.block_k)
    per_program = cut(num_tiles, k_steps, num_sms(x.device.index) * config.programs_per_sm)
    programs = cdiv(num_tiles * k_steps, per_program)
    assert arrivals.numel() >= num_tiles, "too few arrival counters"
    halves = 2 if kind else 1
    partial = torch.empty(2 * programs * halves * config.block_n * block_m, dtype=torch.float32, device=x.device)
    with on_device(x):
        run(_bulk_kernel, (programs,))(
            _describe(x, block_m, config.block_k), _describe(weight, config.block_n, config.block_k),
            bias if bias is not None else x, residual if residual is not None else x, out, partial, arrivals,
            num_rows, num_out, k_steps, per_program, residual.stride(0) if residual is not None else 0, out.stride(0),
            BLOCK_M=block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, STAGES=config.stages(block_m, halves), KIND=kind,
            BIAS=bias is not None, RESIDUAL=residual is not None, num_warps=config.num_warps, **pdl(x),
        )  # fmt: skip
    return out
