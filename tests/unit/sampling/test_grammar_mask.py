"""Packed masks on logits: the torch reference against one token at a time, and the kernel, interpreted where there is no GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from trivium.ops.sampling.grammar_mask import WORD, apply_grammar_mask, mask_words

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB_SIZES = [1, 31, 32, 33, 1000, 4096, 5001, *([128_256] if DEVICE == "cuda" else [])]


def make(vocab_size: int, num_lines: int, lines: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """(logits of all lines, masks of some, what comes of them)"""
    generator = np.random.default_rng(vocab_size)
    logits = torch.from_numpy(generator.normal(size=(num_lines, vocab_size)).astype(np.float32))
    masks = torch.from_numpy(generator.integers(-(2**31), 2**31, size=(len(lines), mask_words(vocab_size + 1)), dtype=np.int64).astype(np.int32))
    expected = logits.clone()
    for mask, line in zip(masks.tolist(), lines, strict=True):
        for token_id in range(vocab_size):
            if not mask[token_id // WORD] >> (token_id % WORD) & 1:
                expected[line, token_id] = -torch.inf
    return logits, masks, expected


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("lines", [[0], [4, 1], [0, 1, 2, 3, 4]])
def test_what_a_mask_rules_out_is_minus_infinity(vocab_size: int, lines: list[int]) -> None:
    logits, masks, expected = make(vocab_size, 5, lines)
    apply_grammar_mask(logits, torch.tensor(lines), masks)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("lines", [[0], [4, 1], [0, 1, 2, 3, 4]])
def test_kernel(vocab_size: int, lines: list[int]) -> None:
    triton_grammar_mask = pytest.importorskip("trivium.ops.sampling.triton_grammar_mask")
    logits, masks, expected = make(vocab_size, 5, lines)
    wide = torch.full((5, vocab_size + 3), 7.0, device=DEVICE)
    wide[:, :vocab_size] = logits
    triton_grammar_mask.apply_grammar_mask(wide[:, :vocab_size], torch.tensor(lines, device=DEVICE), masks.to(DEVICE))
    assert torch.equal(wide[:, :vocab_size].cpu(), expected)
    assert (wide[:, vocab_size:] == 7.0).all()
