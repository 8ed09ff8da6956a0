"""Triton kernel for the penalties: logits and counts are read once and the logits written once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.sampling import penalties
from trivium.ops.triton.launch import cdiv, on_device

PIECE = 4096
_COUNT_MASK = tl.constexpr(penalties.COUNT_MASK)


@triton.jit
def _penalties_kernel(
    logits_ptr, stride, lines_ptr, state_ptr, slots_ptr, repetition_ptr, frequency_ptr, presence_ptr, param_stride, vocab_size, PIECE: tl.constexpr
):  # fmt: skip
    index, piece = tl.program_id(0), tl.program_id(1)
    ids = piece * PIECE + tl.arange(0, PIECE)
    is_in = ids < vocab_size
    state = tl.load(state_ptr + tl.load(slots_ptr + index) * vocab_size + ids, mask=is_in, other=0)
    if tl.max((state != 0).to(tl.int32), axis=0) > 0:
        repetition = tl.load(repetition_ptr + index * param_stride)
        frequency = tl.load(frequency_ptr + index * param_stride)
        presence = tl.load(presence_ptr + index * param_stride)
        where = logits_ptr + tl.load(lines_ptr + index) * stride + ids
        x = tl.load(where, mask=is_in, other=0.0)
        counts = state & _COUNT_MASK
        repeated = tl.where(x > 0, x / repetition, x * repetition)
        result = tl.where(state != 0, repeated, x) - frequency * counts.to(tl.float32) - tl.where(counts > 0, presence, 0.0)
        tl.store(where, result, mask=is_in & (state != 0))


def apply_penalties(logits: Tensor, lines: Tensor, state: Tensor, slots: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor) -> None:
    """See `penalties.apply_penalties`."""
    assert logits.stride(1) == 1
    assert state.is_contiguous()
    assert repetition.stride() == frequency.stride() == presence.stride()
    vocab_size = logits.shape[1]
    if not len(lines):
        return
    with on_device(logits):
        _penalties_kernel[(len(lines), cdiv(vocab_size, PIECE))](
            logits, logits.stride(0), lines, state, slots, repetition, frequency, presence, repetition.stride(0), vocab_size, PIECE=PIECE, num_warps=8
        )
