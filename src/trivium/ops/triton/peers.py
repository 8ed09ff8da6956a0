"""Communication between the GPUs of one host in kernels of our own, through memory that each can reach: the sum over ranks with the residual
addition and RMS norm that follow a row-parallel product, and the gathering of logits.

Sum: each program has one row. It copies its rank's part into memory that the peers can read, tells them, waits for theirs, and adds all parts in
order of rank, so that every rank gets the same bits. A flag holds the number of the call (`epoch`) and is only ever raised: nothing has to be
reset. Two places take turns for the parts; a peer that is in call n has ended call n - 1 and with it all reading of what call n + 1 writes over,
so one exchange of flags a call is enough.

Gathering: each program copies a piece of its rank's columns into every rank's table, and waits until the peers' same programs have done so.
What is in a table stays there until the next gathering; that the ranks don't run ahead of each other is up to the sums in between.

Programs wait for their peers while they hold a multiprocessor. Both ranks start programs in the same order, so the first row that isn't
done runs on all of them, and one kernel's programs have all started before the next kernel's do (see `launch`).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.triton.launch import cdiv, next_pow2, on_device, pdl, run, wait_and_trigger

FLAGS_PER_ROW = 32
"""Flags of two rows never share a line of 128 bytes, which peers would otherwise take from each other."""
LINE = tl.constexpr(FLAGS_PER_ROW)
GATHER_BLOCK = 4096


@triton.jit
def _tell(flags_ptr, line, epoch, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Every peer that what this program wrote before is there."""
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            flag = tl.load(flags_ptr + peer).to(tl.pointer_type(tl.int32)) + line * LINE + RANK
            tl.atomic_max(flag, epoch, sem="release", scope="sys")


@triton.jit
def _await(flags_ptr, line, epoch, RANK: tl.constexpr, SIZE: tl.constexpr):
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            flag = tl.load(flags_ptr + RANK).to(tl.pointer_type(tl.int32)) + line * LINE + peer
            # Waiting by plain loads leaves the memory's atomic unit to the peers; the one acquire comes when there is something to acquire.
            while tl.load(flag, volatile=True) < epoch:
                pass
            tl.atomic_add(flag, 0, sem="acquire", scope="sys")


@triton.jit
def _sum_add_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, parts_ptr, flags_ptr, epochs_ptr, half_size, eps,
    RANK: tl.constexpr, SIZE: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, OFFSET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32) + OFFSET  # before the wait: weights don't change
    wait_and_trigger(PDL)
    epoch = tl.load(epochs_ptr + row) + 1
    tl.store(epochs_ptr + row, epoch)
    at = (epoch % 2).to(tl.int64) * half_size + row * N + cols
    pointer: tl.constexpr = tl.pointer_type(x_ptr.dtype.element_ty)
    own = tl.load(x_ptr + row * N + cols, mask=mask, other=0.0)
    tl.store(tl.load(parts_ptr + RANK).to(pointer) + at, own, mask=mask)
    tl.debug_barrier()  # the whole row is written before one thread says so
    _tell(flags_ptr, row, epoch, RANK, SIZE)
    _await(flags_ptr, row, epoch, RANK, SIZE)
    tl.debug_barrier()
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for peer in tl.static_range(SIZE):
        if peer == RANK:
            total += own.to(tl.float32)
        else:
            part = tl.load(tl.load(parts_ptr + peer).to(pointer) + at, mask=mask, other=0.0, cache_modifier=".cg")
            total += part.to(tl.float32)
    # Rounded as a sum of its own would be: the same tokens come out whichever way a sum takes.
    x = total.to(residual_ptr.dtype.element_ty).to(tl.float32)
    x += tl.load(residual_ptr + row * N + cols, mask=mask, other=0.0).to(tl.float32)
    summed = x.to(residual_ptr.dtype.element_ty)
    tl.store(residual_ptr + row * N + cols, summed, mask=mask)
    x = summed.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / N + eps)
    tl.store(out_ptr + row * N + cols, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=mask)


def sum_add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, eps: float, offset: float,
    *, parts: Tensor, flags: Tensor, epochs: Tensor, half_size: int, rank: int, size: int,
) -> None:  # fmt: skip
    """x [T, H] of each rank, contiguous → `residual` += the sum of all, `out` its norm.

    `parts` and `flags` are int64 [size]: addresses, in order of rank, of memory for two times `half_size` elements of x's type and of int32
    [rows, FLAGS_PER_ROW]; `epochs` int32 [rows] is this rank's own. All of them but the addresses start as zeros.
    """
    num_rows, width = x.shape
    block = next_pow2(width)
    with on_device(x):
        run(_sum_add_norm_kernel, (num_rows,))(
            x, residual, weight, out, parts, flags, epochs, half_size, eps,
            RANK=rank, SIZE=size, N=width, BLOCK=block, OFFSET=offset, num_warps=max(1, min(16, block // 256)), **pdl(x),
        )  # fmt: skip


@triton.jit
def _gather_kernel(
    x_ptr, tables_ptr, flags_ptr, epochs_ptr, stride_x, width,
    RANK: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    line = row * tl.num_programs(0) + tl.program_id(0)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < width
    wait_and_trigger(PDL)
    epoch = tl.load(epochs_ptr + line) + 1
    tl.store(epochs_ptr + line, epoch)
    values = tl.load(x_ptr + row * stride_x + cols, mask=mask)
    for peer in tl.static_range(SIZE):
        table = tl.load(tables_ptr + peer).to(tl.pointer_type(x_ptr.dtype.element_ty))
        tl.store(table + row * (width * SIZE) + RANK * width + cols, values, mask=mask)
    tl.debug_barrier()
    _tell(flags_ptr, line, epoch, RANK, SIZE)
    _await(flags_ptr, line, epoch, RANK, SIZE)


def num_gather_lines(num_rows: int, width: int) -> int:
    """Flags (and epochs) that gathering x [num_rows, width] takes."""
    return num_rows * cdiv(width, GATHER_BLOCK)


def gather(x: Tensor, *, tables: Tensor, flags: Tensor, epochs: Tensor, rank: int, size: int) -> None:
    """x [S, W] of each rank, rows contiguous, side by side into every rank's table [S, W * size].

    `tables` and `flags` are int64 [size]: addresses, in order of rank, of the tables and of int32 [lines, FLAGS_PER_ROW]; `epochs` int32
    [lines] is this rank's own. Flags and epochs start as zeros.
    """
    num_rows, width = x.shape
    with on_device(x):
        run(_gather_kernel, (cdiv(width, GATHER_BLOCK), num_rows))(
            x, tables, flags, epochs, x.stride(0), width, RANK=rank, SIZE=size, BLOCK=GATHER_BLOCK, num_warps=8, **pdl(x),
        )  # fmt: skip
