"""Log-probabilities of chosen tokens and of the most likely ones, under softmax of the raw logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.ops.sampling.candidates import top_values

FLOOR = -9999.0
"""Stands for -inf, which JSON can't say (vLLM's value)."""


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """N positions. The first column is the chosen token, the others are the k most likely, in order."""

    ids: Tensor  # [N, 1 + k] int64
    logprobs: Tensor  # [N, 1 + k] float32, no lower than FLOOR
    ranks: Tensor  # [N] int64; of the chosen token, from 1; equals rank together


def gather_logprobs(logits: Tensor, token_ids: Tensor, top_k: int) -> LogprobTensors:
    """logits [N, V] float32, token_ids [N] int64 in the vocabulary; `top_k` from 0 (the chosen token only) to V, more or -1 meaning V.

    NaN logits yield FLOOR.
    """
    vocab_size = logits.shape[1]
    top_k = vocab_size if top_k < 0 else min(top_k, vocab_size)
    chosen = token_ids[:, None]
    values, ids = logits.gather(1, chosen), chosen
    sums, ranks = normalize(logits, token_ids)
    if top_k:
        top, top_ids = top_values(logits, top_k)
        values, ids = torch.cat((values, top), dim=1), torch.cat((chosen, top_ids), dim=1)
    logprobs = (values - sums[:, None]).nan_to_num_(nan=FLOOR, posinf=FLOOR, neginf=FLOOR)
    return LogprobTensors(ids, logprobs.clamp_(min=FLOOR), ranks)


def normalize(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """logits [N, V], token_ids [N] → (log-sum-exp [N], rank of the token [N] int64); each row's values depend on nothing else, to the bit."""
    if logits.is_cuda:
        from trivium.ops.sampling import triton_logprobs

        return triton_logprobs.normalize(logits, token_ids)
    sums = torch.stack([_row_log_sum_exp(row) for row in logits]) if len(logits) else logits.new_empty(0)
    return sums, (logits > logits.gather(1, token_ids[:, None])).sum(1).add_(1)


def _row_log_sum_exp(row: Tensor) -> Tensor:
    maximum = row.amax()
    return (row - maximum).exp_().sum().log_().add_(maximum)
