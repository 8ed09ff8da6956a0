"""Drawing on a CPU: cheap because almost every filtered distribution fits into a few candidates.

The candidates of a row are its 64 largest logits. When the filters' cutoff lies above the smallest of them, nothing outside can be drawn, and
noise is needed for 64 tokens instead of the vocabulary. Otherwise the row takes the long way: thresholds by a weighted histogram, noise for the
whole row. Which way a row goes depends on the row alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trivium.ops.sampling.argmax import argmax_rows
from trivium.ops.sampling.candidates import top_values
from trivium.ops.sampling.filters import first_cutoffs, min_p_cutoffs, probability_ratios, surprise_distance, typical_mask
from trivium.ops.sampling.noise import host_stream_keys, keyed_noise, noise_scratch
from trivium.ops.sampling.table import SamplingTable

NUM_CANDIDATES = 64
NUM_BUCKETS = 1024
KEY_RANGE = 32.0
"""Keys from here on share the last bucket of the histogram: e^-32 of the likeliest token's probability."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """Keys of the lines' random streams."""

    low: list[int]
    high: list[int]

    @staticmethod
    def of(params: SamplingTable) -> _Stream:
        return _Stream(*host_stream_keys(params.seeds.tolist(), params.counters.tolist()))

    def noise(self, lines: list[int], token_ids: Tensor) -> Tensor:
        """Gumbel noise of `token_ids` [len(lines), K] or [K]."""
        low = torch.tensor([self.low[line] for line in lines], dtype=torch.int32)
        high = torch.tensor([self.high[line] for line in lines], dtype=torch.int32)
        return keyed_noise(low, high, token_ids)

    def add_noise_(self, row: Tensor, line: int, temperature: float) -> None:
        """To the whole row [V] of a line."""
        noise_scratch(len(row)).add_noise_(row, temperature, self.low[line], self.high[line])


def draw_on_cpu(logits: Tensor, params: SamplingTable) -> tuple[Tensor, Tensor]:
    """logits [S, V] float32, contiguous → (ids [S] int64, scores [S]); a score that is not finite marks a line that can't be sampled.
    Overwrites the lines that are drawn from their whole row."""
    temperatures, is_filtered = params.temperature.tolist(), params.is_filtered().tolist()
    if not any(temperatures):
        return argmax_rows(logits)
    stream = _Stream.of(params)
    for line, temperature in enumerate(temperatures):
        if temperature > 0.0 and not is_filtered[line]:
            stream.add_noise_(logits[line], line, temperature)
    ids, scores = argmax_rows(logits)
    if any(is_filtered):
        filtered = [line for line, is_ok in enumerate(scores.isfinite().tolist()) if is_ok and is_filtered[line]]
        if filtered:
            index = torch.tensor(filtered)
            ids[index] = _draw_filtered(logits.index_select(0, index), params.select(index), stream, filtered)
    return ids, scores


def _draw_filtered(logits: Tensor, params: SamplingTable, stream: _Stream, lines: list[int]) -> Tensor:
    """logits [F, V], every line finite at its maximum and filtered → ids [F]. `lines`: theirs in `stream`."""
    values, ids = top_values(logits, min(NUM_CANDIDATES, logits.shape[1]))
    cut, is_inside = _candidate_cutoffs(logits, values, params)
    kept = values >= cut[:, None]
    if bool((params.typical_p < 1).any()):
        kept = typical_mask((values - values[:, :1]) / params.temperature[:, None], kept, params.typical_p)
    scores = values + stream.noise(lines, ids) * params.temperature[:, None]
    chosen = scores.masked_fill_(~kept, -torch.inf).argmax(1, keepdim=True)
    drawn = ids.gather(1, chosen).squeeze(1)
    for index, is_complete in enumerate(is_inside.tolist()):
        if not is_complete:
            drawn[index] = _draw_long_way(logits[index], params.select(torch.tensor([index])), stream, lines[index])
    return drawn


def _candidate_cutoffs(logits: Tensor, values: Tensor, params: SamplingTable) -> tuple[Tensor, Tensor]:
    """(cutoff [F], whether everything from the cutoff upwards is among `values` [F, K])."""
    if values.shape[1] == logits.shape[1]:
        complete = torch.ones(len(values), dtype=torch.bool)
    else:
        complete = torch.zeros(len(values), dtype=torch.bool)
    smallest = values[:, -1]
    cut = first_cutoffs(values, params)
    is_inside = complete | (cut > smallest)
    has_top_p = params.top_p < 1
    if not bool(has_top_p.any()):
        return cut, is_inside
    weights = probability_ratios(values, values[:, :1], params.temperature)
    mass = (weights * (values >= cut[:, None])).cumsum(1, dtype=torch.float64)
    total = mass[:, -1].clone()
    for line in (has_top_p & ~is_inside & (params.top_k == 0)).nonzero().squeeze(1).tolist():
        total[line] = _row_mass(logits[line], values[line, 0], float(cut[line]), float(params.temperature[line]))
    target = params.top_p * total
    last = (mass < target[:, None]).sum(1)
    nucleus = values.gather(1, last.clamp(max=values.shape[1] - 1)[:, None]).squeeze(1)
    reaches = (last < values.shape[1]) & (nucleus > smallest) & (params.top_k == 0)
    return torch.where(has_top_p, cut.maximum(nucleus), cut), is_inside | (has_top_p & reaches)


def _row_mass(row: Tensor, maximum: Tensor, cut: float, temperature: float) -> float:
    """Sum of p / (largest p) over the logits from `cut` upwards."""
    weights = ((row - maximum) / temperature).exp_()
    if cut > -math.inf:
        weights.mul_(row >= cut)
    return float(weights.sum())


def _draw_long_way(row: Tensor, params: SamplingTable, stream: _Stream, line: int) -> Tensor:
    """From the whole row [V], which may be overwritten; parameters of one line."""
    ids = row_kept_ids(row, params)
    if ids is None:
        stream.add_noise_(row, line, float(params.temperature))
        return argmax_rows(row[None])[0][0]
    noise = stream.noise([line], ids).squeeze(0) * params.temperature
    return ids[(row[ids] + noise).argmax()]


def row_kept_ids(row: Tensor, params: SamplingTable) -> Tensor | None:
    """row [V] with a finite maximum, parameters of one line → the tokens that may be drawn, ascending; the set of `filters.keep_mask_reference`.
    None stands for all. Each filter looks only at what the one before left."""
    maximum, ids = row.amax(), None
    top_k, top_p, typical_p = min(int(params.top_k), len(row)), float(params.top_p), float(params.typical_p)
    cut = min_p_cutoffs(maximum, params).squeeze(0)
    if top_k:
        cut = cut.maximum(row.topk(top_k).values[-1])
    if cut > -torch.inf:
        ids = _where(row >= cut)
    if top_p < 1:
        keys = (maximum - (row if ids is None else row[ids])) / params.temperature
        weights = (-keys).exp_()
        ids = _narrow(ids, keys <= mass_threshold(keys, weights, top_p * float(weights.sum())))
    if typical_p < 1:
        scaled = ((row if ids is None else row[ids]) - maximum) / params.temperature
        distance, probs = surprise_distance(scaled)
        ids = _narrow(ids, distance <= mass_threshold(distance, probs, typical_p))
    return ids


def _where(mask: Tensor) -> Tensor:
    return torch.from_numpy(np.flatnonzero(mask.numpy()))  # five times faster than nonzero


def _narrow(ids: Tensor | None, mask: Tensor) -> Tensor:
    kept = _where(mask)
    return kept if ids is None else ids[kept]


def mass_threshold(keys: Tensor, weights: Tensor, target: float) -> Tensor:
    """The smallest key t for which the tokens with key <= t weigh `target` or more; inf when all together don't.
    keys [V] >= 0 (inf allowed), weights [V] >= 0.

    A histogram finds the bucket in which the sum gets there; only that bucket is sorted.
    """
    buckets = (keys * (NUM_BUCKETS / KEY_RANGE)).clamp_(max=NUM_BUCKETS - 1).to(torch.int64)
    mass = torch.bincount(buckets, weights=weights.to(torch.float64), minlength=NUM_BUCKETS).cumsum(0)
    bucket = int((mass < target).sum())
    if bucket == NUM_BUCKETS:
        return torch.tensor(torch.inf)
    before = float(mass[bucket - 1]) if bucket else 0.0
    members = torch.from_numpy(np.flatnonzero((buckets == bucket).numpy()))
    ordered, order = keys[members].sort()
    last = int((weights[members][order].cumsum(0, dtype=torch.float64) + before < target).sum())
    return ordered[last] if last < len(ordered) else torch.tensor(torch.inf)
