"""Rows, parameters and exact distributions for the tests of sampling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trivium.engine.sampler import Sampler
from trivium.ops.sampling import table
from trivium.ops.sampling.table import NEUTRAL, NUM_INTS, SamplingTable
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


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where the tests of `Sampler` and of kernels run."""


def sampler_with(vocab_size: int, *rows: NewRow, max_num_seqs: int = 16, default_seed: int = 0) -> Sampler:
    sampler = Sampler(vocab_size, max_num_seqs, DEVICE, default_seed)
    for row in rows:
        sampler.add_row(row)
    return sampler


def table_of(settings: list[dict[str, float]], device: str = "cpu") -> SamplingTable:
    """Row i has the i-th setting (columns by name, in lower case) and a stream of its own, somewhere in it."""
    floats = torch.tensor(NEUTRAL).repeat(len(settings), 1)
    floats[:, table.TEMPERATURE] = 1.0
    ints = torch.zeros(len(settings), NUM_INTS, dtype=torch.int64)
    for row, setting in enumerate(settings):
        ints[row, table.SEED], ints[row, table.COUNTER] = row * 1_000_003 - 7, row * 37
        for name, value in setting.items():
            floats[row, getattr(table, name.upper())] = value
    return SamplingTable(floats.to(device), ints.to(device))


def draw_params(num_rows: int, *, seed: int = 0, **setting: float) -> SamplingTable:
    """The same setting in each row; row i draws number i of one stream."""
    params = table_of([setting] * num_rows)
    params.seeds.fill_(seed)
    params.counters.copy_(torch.arange(num_rows))
    return params


def copy_of(params: SamplingTable) -> SamplingTable:
    return SamplingTable(params.floats.clone(), params.ints.clone())


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
