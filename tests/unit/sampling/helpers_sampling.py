"""Rows, parameters and exact distributions for the tests of sampling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trivium.engine.sampler import Sampler
from trivium.ops.sampling.filters import DrawParams
from trivium.scheduling.step import NewRow
from trivium.types import SamplingParams


def new_row(
    row: int,
    *,
    request_id: str | None = None,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    stops: list[int] | None = None,
    bad_words: list[list[int]] | None = None,
    **params: Any,
) -> NewRow:
    return NewRow(
        row=row,
        request_id=request_id or f"request-{row}",
        params=SamplingParams(**{"max_tokens": 1000, **params}),
        prompt_token_ids=prompt or [0],
        output_token_ids=output or [],
        stop_token_ids=stops or [],
        bad_words_token_ids=bad_words or [],
    )


def sampler_with(vocab_size: int, *rows: NewRow, max_num_seqs: int = 16, default_seed: int = 0) -> Sampler:
    sampler = Sampler(vocab_size, max_num_seqs, "cpu", default_seed)
    for row in rows:
        sampler.add_row(row)
    return sampler


def draw_params(num_lines: int, **values: float) -> DrawParams:
    """The same values on each line; line i draws number i of stream 0 unless `seeds` or `counters` say otherwise."""

    def column(name: str, default: float) -> Tensor:
        return torch.full((num_lines,), float(values.get(name, default)))

    return DrawParams(
        temperature=column("temperature", 1.0),
        top_k=column("top_k", 0.0),
        top_p=column("top_p", 1.0),
        min_p=column("min_p", 0.0),
        typical_p=column("typical_p", 1.0),
        seeds=torch.full((num_lines,), int(values.get("seed", 0))),
        counters=torch.arange(num_lines),
    )


def gaussian_logits(num_lines: int, vocab_size: int, *, seed: int = 0, scale: float = 3.0) -> Tensor:
    return torch.randn(num_lines, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def chi_square_z(counts: Tensor, probs: Tensor) -> float:
    """How many standard deviations the chi-square statistic of `counts` lies above its mean, rare tokens pooled (Wilson-Hilferty 1931)."""
    total = float(counts.sum())
    expected = probs.double() * total
    is_common = expected >= 5
    groups = [(float(count), float(mean)) for count, mean in zip(counts[is_common], expected[is_common], strict=True)]
    rare = (float(counts[~is_common].sum()), float(expected[~is_common].sum()))
    if rare[1] >= 5:
        groups.append(rare)
    statistic = sum((count - mean) ** 2 / mean for count, mean in groups)
    freedom = len(groups) - 1
    if freedom == 0:
        return 0.0
    return float(((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5)
