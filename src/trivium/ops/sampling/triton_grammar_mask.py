"""The Triton kernel of `grammar_mask`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.sampling.triton_common import PIECE
from trivium.ops.triton.launch import cdiv, on_device, run


@triton.jit(do_not_specialize_on_alignment=["lines_ptr"])
def _apply_kernel(logits_ptr, stride, lines_ptr, masks_ptr, num_words, vocab_size, PIECE: tl.constexpr):
    index, piece = tl.program_id(0), tl.program_id(1)
    line = tl.load(lines_ptr + index)
    ids = piece * PIECE + tl.arange(0, PIECE)
    is_in = ids < vocab_size
    words = tl.load(masks_ptr + index * num_words + (ids >> 5), mask=is_in, other=0)
    is_refused = ((words >> (ids & 31)) & 1) == 0
    tl.store(logits_ptr + line * stride + ids, -float("inf"), mask=is_in & is_refused)


def apply_grammar_mask(logits: Tensor, lines: Tensor, masks: Tensor) -> None:
    """See `grammar_mask`."""
    vocab_size, num_words = logits.shape[1], masks.shape[1]
    assert logits.stride(1) == 1
    assert masks.is_contiguous()
    with on_device(logits):
        run(_apply_kernel, (len(lines), cdiv(vocab_size, PIECE)))(
            logits, logits.stride(0), lines, masks, num_words, vocab_size, PIECE=PIECE, num_warps=8
        )
