"""From processed logits to one token a row: the dispatcher of the last stage, and its torch reference.

A draw from softmax(logits / T) is argmax(logits + T * gumbel). With T = 0 that is the greedy choice, so one kernel serves mixed batches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.ops.sampling.argmax import argmax_rows
from trivium.ops.sampling.cpu_draw import draw_on_cpu
from trivium.ops.sampling.filters import keep_mask_reference
from trivium.ops.sampling.noise import gumbel_noise
from trivium.ops.sampling.table import SamplingTable

NOT_FINITE = -1
"""Outcome of a line that holds NaN or +inf, or nothing but -inf."""


def draw_rows(logits: Tensor, table: SamplingTable, rows: Tensor, *, is_full: bool = True, has_typical: bool = True) -> tuple[Tensor, Tensor]:
    """One token for each line of `logits` [S, V] float32 (on a GPU without typical_p any float type), contiguous, which may be overwritten.

    Line i has the parameters `table[rows[i]]`, rows [S] int64, and that row's counter goes up by one. `is_full`: some line uses top_k, top_p, min_p
    or, on a GPU, penalties, which are part of the draw there; `has_typical`: some line uses typical_p. Returns (token ids [S] int64, 0 for a line
    that can't be sampled; the same with `NOT_FINITE` for such a line). No synchronization on a GPU.
    """
    if not logits.is_cuda:
        ids, scores = draw_on_cpu(logits, table.select(rows))
        return _finish(ids, scores, table, rows)
    from trivium.ops.sampling import triton_draw, triton_penalties

    if not has_typical:
        return triton_draw.draw_rows(logits, table, rows, is_full=is_full)
    triton_penalties.apply_penalties(logits, table, rows)  # typical_p is rare: not worth a kernel of its own
    masked = logits.masked_fill(~_drawable(logits, table.select(rows)), -torch.inf)
    token_ids, outcome = triton_draw.draw_rows(masked, table, rows, is_full=False)
    triton_penalties.count_sampled(table, rows, outcome)
    return token_ids, outcome


def draw_rows_reference(logits: Tensor, table: SamplingTable, rows: Tensor) -> tuple[Tensor, Tensor]:
    """As `draw_rows` without penalties, on any device, without touching `logits`."""
    params = table.select(rows)
    noise = gumbel_noise(params.seeds, params.counters, torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device))
    masked = logits.masked_fill(~_drawable(logits, params), -torch.inf)
    ids, scores = argmax_rows(masked + params.temperature[:, None] * noise)
    return _finish(ids, scores, table, rows)


def _finish(ids: Tensor, scores: Tensor, table: SamplingTable, rows: Tensor) -> tuple[Tensor, Tensor]:
    table.counters.index_add_(0, rows, torch.ones_like(rows))
    is_ok = scores.isfinite()
    return ids * is_ok, ids.where(is_ok, NOT_FINITE)


def _drawable(logits: Tensor, params: SamplingTable) -> Tensor:
    """[S, V] bool. NaN stays in, for it has to be seen."""
    return keep_mask_reference(logits, params) | ~params.is_filtered()[:, None] | logits.isnan()
