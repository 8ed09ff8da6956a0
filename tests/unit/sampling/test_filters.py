"""The three ways to filter (sorting, candidates, histogram) against transformers' warpers."""

from __future__ import annotations

import pytest
import torch
from helpers_sampling import draw_params, gaussian_logits
from torch import Tensor
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from trivium.ops.sampling.candidates import top_values
from trivium.ops.sampling.cpu_draw import mass_threshold, row_kept_ids
from trivium.ops.sampling.filters import keep_mask_reference
from trivium.ops.sampling.table import SamplingTable

SETTINGS: list[dict[str, float]] = [
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 63},
    {"top_k": 64},
    {"top_k": 200},
    {"top_p": 1e-6},
    {"top_p": 0.1},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.95, "temperature": 0.3},
    {"top_p": 0.999, "temperature": 2.0},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"min_p": 0.0001, "temperature": 2.0},
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"typical_p": 0.95, "temperature": 0.5},
    {"top_k": 20, "top_p": 0.8, "temperature": 0.7},
    {"top_k": 300, "top_p": 0.9},
    {"min_p": 0.02, "top_p": 0.9},
    {"min_p": 0.02, "top_k": 10, "top_p": 0.7, "typical_p": 0.8, "temperature": 1.3},
]
VOCAB_SIZES = [7, 64, 501, 5000]


def hf_keep_mask(
    logits: Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, typical_p: float = 1.0
) -> Tensor:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(temperature))])
    if min_p > 0:
        warpers.append(MinPLogitsWarper(min_p))
    if top_k > 0:
        warpers.append(TopKLogitsWarper(int(top_k)))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    if typical_p < 1:
        warpers.append(TypicalLogitsWarper(typical_p))
    ids = torch.zeros(len(logits), 1, dtype=torch.int64)
    return warpers(ids, logits.clone()) > -torch.inf


def long_way_mask(row: Tensor, params: SamplingTable) -> Tensor:
    ids = row_kept_ids(row, params)
    mask = torch.zeros(len(row), dtype=torch.bool)
    mask[slice(None) if ids is None else ids] = True
    return mask


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_filters_keep_what_transformers_keeps(setting: dict[str, float], vocab_size: int) -> None:
    logits = gaussian_logits(8, vocab_size)
    expected = hf_keep_mask(logits, **setting)  # type: ignore[arg-type]
    params = draw_params(8, **setting)
    assert torch.equal(keep_mask_reference(logits, params), expected)
    for line in range(8):
        assert torch.equal(long_way_mask(logits[line], params.select(torch.tensor([line]))), expected[line])


def test_ties_at_the_cutoff_stay_whatever_their_order() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 2.0, 2.0, 0.0], [2.0, 2.0, 0.0, 3.0, 1.0, 2.0]])
    for setting in ({"top_k": 2}, {"top_p": 0.6}):
        kept = keep_mask_reference(logits, draw_params(2, **setting))
        assert torch.equal(kept, logits >= 2.0)
        for line in range(2):
            assert torch.equal(long_way_mask(logits[line], draw_params(1, **setting)), logits[line] >= 2.0)


def test_masked_tokens_stay_out() -> None:
    logits = gaussian_logits(4, 500)
    logits[:, ::2] = -torch.inf
    for setting in SETTINGS:
        expected = hf_keep_mask(logits, **setting)  # type: ignore[arg-type]
        kept = keep_mask_reference(logits, draw_params(4, **setting)) & (logits > -torch.inf)
        assert torch.equal(kept, expected), setting


@pytest.mark.parametrize("vocab_size", [1, 63, 64, 65, 4096, 5001])
@pytest.mark.parametrize("k", [1, 7, 16, 64])
def test_top_values_equal_torch(vocab_size: int, k: int) -> None:
    logits = gaussian_logits(5, vocab_size).round(decimals=1)  # many ties
    k = min(k, vocab_size)
    values, ids = top_values(logits, k)
    assert torch.equal(values, logits.topk(k).values)
    assert torch.equal(logits.gather(1, ids), values)
    assert all(len(set(row)) == k for row in ids.tolist())


def test_mass_threshold_equals_sorting() -> None:
    generator = torch.Generator().manual_seed(1)
    keys = torch.rand(3000, generator=generator) * 40
    weights = torch.rand(3000, generator=generator)
    ordered, order = keys.sort()
    mass = weights[order].double().cumsum(0)
    for share in (0.0001, 0.1, 0.5, 0.9, 0.9999):
        target = share * float(mass[-1])
        assert float(mass_threshold(keys, weights, target)) == float(ordered[int((mass < target).sum())])
    assert float(mass_threshold(keys, weights, 1e9)) == float("inf")
