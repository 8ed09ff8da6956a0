"""Repetition (Keskar et al. 2019), frequency and presence penalties over what a request has seen.

The state of a request is one int32 per token of the vocabulary: how often it was sampled, and in `PROMPT_BIT` whether the prompt contains it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PROMPT_BIT = 1 << 30
COUNT_MASK = PROMPT_BIT - 1


def penalized(logits: Tensor, state: Tensor, repetition: float, frequency: float, presence: float) -> Tensor:
    """logits, state [...] → new logits.

    Repetition counts prompt and output: a positive logit is divided by it, a negative one multiplied. Frequency is subtracted once for each
    time the token was sampled, presence once if it was sampled at all.
    """
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    counts = state & COUNT_MASK
    result = torch.where(state != 0, repeated, logits)
    result -= frequency * counts
    return result.sub_(presence * (counts > 0))


def apply_on_cpu(logits: Tensor, state: Tensor, repetition: float, frequency: float, presence: float) -> None:
    """In place on one line: logits [V] float32, state [V]. Touches only what was seen."""
    seen = torch.from_numpy(np.flatnonzero((state != 0).numpy()))
    logits[seen] = penalized(logits[seen], state[seen], repetition, frequency, presence)


def reset_state(state: Tensor, prompt: Tensor, output: Tensor) -> None:
    """Set one request's state [V] int32 to this prompt and these sampled tokens (int64 ids)."""
    state.zero_()
    state.index_fill_(0, prompt, PROMPT_BIT)
    state.index_add_(0, output, torch.ones_like(output, dtype=torch.int32))
