"""Repetition (Keskar et al. 2019), frequency and presence penalties over what a request has seen.

The state of a request is one int32 per token of the vocabulary: how often it was sampled, and in `PROMPT_BIT` whether the prompt contains it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PROMPT_BIT = 1 << 30
COUNT_MASK = PROMPT_BIT - 1


def apply_penalties(logits: Tensor, lines: Tensor, state: Tensor, slots: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor) -> None:
    """In place on the given lines of logits [S, V] float32. state [slots, V] int32; lines, slots [P] int64; penalties [P] float32.

    Repetition counts prompt and output: a positive logit is divided by it, a negative one multiplied. Frequency is subtracted once for each
    time the token was sampled, presence once if it was sampled at all.
    """
    if logits.is_cuda:
        from trivium.ops.sampling import triton_penalties

        triton_penalties.apply_penalties(logits, lines, state, slots, repetition, frequency, presence)
        return
    for index, (line, slot) in enumerate(zip(lines.tolist(), slots.tolist(), strict=True)):
        row, seen = logits[line], torch.from_numpy(np.flatnonzero((state[slot] != 0).numpy()))
        row[seen] = penalized(row[seen], state[slot][seen], repetition[index], frequency[index], presence[index])


def penalized(logits: Tensor, state: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor) -> Tensor:
    """logits, state [..., V]; penalties broadcast against them → new logits."""
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    counts = state & COUNT_MASK
    result = torch.where(state != 0, repeated, logits)
    result -= frequency * counts
    return result.sub_(presence * (counts > 0))


def reset_state(state: Tensor, prompt: Tensor, output: Tensor) -> None:
    """Reset one request's state [V] int32 to this prompt and these sampled tokens (int64 ids)."""
    state.zero_()
    state.index_fill_(0, prompt, PROMPT_BIT)
    state.index_add_(0, output, torch.ones_like(output, dtype=torch.int32))


def count_sampled(state: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    """state [slots, V]: one more of each token; slots, token_ids [P] int64, no slot twice."""
    flat = state.view(-1)
    flat.index_add_(0, slots * state.shape[1] + token_ids, torch.ones_like(token_ids, dtype=torch.int32))
