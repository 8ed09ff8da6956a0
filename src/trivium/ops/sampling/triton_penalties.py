"""Triton kernels for the penalties on their own, where they can't be part of the draw (beside typical_p)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.sampling.table import SamplingTable
from trivium.ops.sampling.triton_common import BY_LINE, PIECE, penalized, seen_pointer
from trivium.ops.triton.launch import cdiv, on_device, run


@triton.jit(do_not_specialize_on_alignment=BY_LINE)
def _apply_kernel(logits_ptr, stride, rows_ptr, floats_ptr, ints_ptr, vocab_size, PIECE: tl.constexpr):
    line, piece = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows_ptr + line)
    seen_ptr, has_penalties = seen_pointer(ints_ptr, row)
    if has_penalties:
        ids = piece * PIECE + tl.arange(0, PIECE)
        state = tl.load(seen_ptr + ids, mask=ids < vocab_size, other=0)
        where = logits_ptr + line.to(tl.int64) * stride + ids
        x = tl.load(where, mask=state != 0, other=0.0)
        tl.store(where, penalized(x, state, floats_ptr, row), mask=state != 0)


@triton.jit(do_not_specialize_on_alignment=BY_LINE)
def _count_kernel(rows_ptr, ints_ptr, outcome_ptr):
    line = tl.program_id(0)
    token = tl.load(outcome_ptr + line)
    seen_ptr, has_penalties = seen_pointer(ints_ptr, tl.load(rows_ptr + line))
    if has_penalties & (token >= 0):
        tl.store(seen_ptr + token, tl.load(seen_ptr + token) + 1)


def apply_penalties(logits: Tensor, table: SamplingTable, rows: Tensor) -> None:
    """In place on logits [S, V] float32; line i by the parameters and the state of `table[rows[i]]`."""
    num_lines, vocab_size = logits.shape
    assert logits.stride(1) == 1
    with on_device(logits):
        run(_apply_kernel, (num_lines, cdiv(vocab_size, PIECE)))(
            logits, logits.stride(0), rows, table.floats, table.ints, vocab_size, PIECE=PIECE, num_warps=8
        )


def count_sampled(table: SamplingTable, rows: Tensor, outcome: Tensor) -> None:
    """One more of each token that is not negative, in the states that lines have."""
    with on_device(outcome):
        run(_count_kernel, (len(rows),))(rows, table.ints, outcome, num_warps=1)
