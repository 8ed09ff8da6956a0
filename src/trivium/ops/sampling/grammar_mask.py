"""Logits that a grammar rules out.

Masks come as grammar libraries make them: 32 tokens in one integer, the lowest bit first, 1 for what may follow.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

WORD = 32
"""Tokens in one integer of a mask."""


def mask_words(vocab_size: int) -> int:
    """Integers of a mask of so many tokens."""
    return -(-vocab_size // WORD)


def apply_grammar_mask(logits: Tensor, lines: Tensor, masks: Tensor) -> None:
    """In place on logits [S, V] float32: -inf where masks [L, words] int32 have a 0; `masks[i]` is for line `lines[i]`, int64. words * 32 >= V."""
    assert masks.shape[1] * WORD >= logits.shape[1]
    if logits.is_cuda:
        from trivium.ops.sampling import triton_grammar_mask

        triton_grammar_mask.apply_grammar_mask(logits, lines, masks)
    else:
        apply_grammar_mask_reference(logits, lines, masks)


def apply_grammar_mask_reference(logits: Tensor, lines: Tensor, masks: Tensor) -> None:
    """`apply_grammar_mask` on a CPU."""
    is_allowed = np.unpackbits(masks.numpy().view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
    for line, allowed in zip(lines.tolist(), torch.from_numpy(is_allowed), strict=True):
        logits[line].masked_fill_(allowed == 0, -torch.inf)
