"""Draws follow the exact distribution, and every path draws the same token."""

from __future__ import annotations

import pytest
import torch
from helpers_sampling import chi_square_z, copy_of, draw_params, gaussian_logits, table_of
from torch import Tensor

from trivium.ops.sampling.argmax import argmax_rows, row_maxima
from trivium.ops.sampling.draw import draw_rows, draw_rows_reference
from trivium.ops.sampling.filters import keep_mask_reference
from trivium.ops.sampling.noise import MASK31, _permute_, gumbel_noise, host_stream_keys, spread_ids, stream_keys
from trivium.ops.sampling.table import SamplingTable

NUM_DRAWS = 60_000
SETTINGS: list[dict[str, float]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 40, "temperature": 1.5},
    {"top_k": 100},
    {"top_p": 0.1},
    {"top_p": 0.6},
    {"top_p": 0.9, "temperature": 0.8},
    {"top_p": 0.99, "temperature": 2.0},
    {"min_p": 0.05},
    {"min_p": 0.0005, "temperature": 1.7},
    {"typical_p": 0.3},
    {"typical_p": 0.9},
    {"top_k": 30, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9, "temperature": 0.9},
]


def draw(logits: Tensor, params: SamplingTable) -> Tensor:
    """Token of each line, -1 where it failed; line i has the i-th parameters, whose counters stay."""
    return draw_rows(logits.clone(), copy_of(params), torch.arange(len(logits)))[1]


def draw_reference(logits: Tensor, params: SamplingTable) -> Tensor:
    return draw_rows_reference(logits, copy_of(params), torch.arange(len(logits)))[1]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_draws_follow_the_exact_distribution(setting: dict[str, float]) -> None:
    logits = gaussian_logits(1, 200, seed=3, scale=2.0)
    kept = keep_mask_reference(logits, draw_params(1, **setting))
    probs = (logits / setting.get("temperature", 1.0)).masked_fill(~kept, -torch.inf).softmax(-1)[0]
    params = draw_params(NUM_DRAWS, seed=7, **setting)
    counts = torch.bincount(draw_reference(logits.expand(NUM_DRAWS, -1), params), minlength=200)
    assert not counts[~kept[0]].any()
    assert chi_square_z(counts, probs) < 4


def test_chi_square_notices_a_small_shift() -> None:
    logits = gaussian_logits(1, 200, seed=3, scale=2.0)
    counts = torch.bincount(draw_reference(logits.expand(NUM_DRAWS, -1), draw_params(NUM_DRAWS, temperature=1.05)), minlength=200)
    assert chi_square_z(counts, logits.softmax(-1)[0]) > 6


@pytest.mark.parametrize("vocab_size", [50, 200, 4097])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_fast_path_draws_what_the_reference_draws(setting: dict[str, float], vocab_size: int) -> None:
    logits = gaussian_logits(100, vocab_size, seed=5, scale=2.0)
    params = draw_params(100, seed=11, **setting)
    assert torch.equal(draw(logits, params), draw_reference(logits, params))


def test_a_line_draws_the_same_alone_and_in_any_batch() -> None:
    num_lines, vocab_size = 48, 1003
    logits = gaussian_logits(num_lines, vocab_size, seed=9, scale=2.0)
    params = table_of([SETTINGS[line % len(SETTINGS)] for line in range(num_lines)])
    together = draw(logits, params)
    order = torch.randperm(num_lines, generator=torch.Generator().manual_seed(0))
    assert torch.equal(draw(logits[order], params.select(order)), together[order])
    for line in range(num_lines):
        index = torch.tensor([line])
        assert draw(logits[index], params.select(index)).tolist() == [int(together[line])]


def test_noise_of_a_token_is_bitwise_the_same_in_any_shape() -> None:
    seeds, counters = torch.arange(9), torch.arange(9) * 5
    everything = gumbel_noise(seeds, counters, torch.arange(1003))
    for ids in (torch.arange(17), torch.tensor([[1002, 3, 500]] * 9), torch.arange(1, 64)):
        expected = everything.gather(1, ids.expand(9, -1))
        assert torch.equal(gumbel_noise(seeds, counters, ids), expected)
        assert torch.equal(gumbel_noise(seeds[4:5], counters[4:5], ids[-1:] if ids.dim() == 2 else ids), expected[4:5])


@pytest.mark.parametrize("axis", ["token", "counter", "seed"])
def test_noise_is_uniform_and_uncorrelated_along_each_axis(axis: str) -> None:
    size = 1 << 20
    steps = torch.arange(size)
    if axis == "token":
        noise = gumbel_noise(torch.tensor([5]), torch.tensor([0]), steps)[0]
    elif axis == "counter":
        noise = gumbel_noise(torch.full((size,), 5), steps, torch.tensor([77]))[:, 0]
    else:
        noise = gumbel_noise(steps, torch.zeros(size, dtype=torch.int64), torch.tensor([77]))[:, 0]
    uniform = (-(-noise.double()).exp()).exp()
    counts = torch.bincount((uniform * 1000).long().clamp_(max=999), minlength=1000)
    assert abs(chi_square_z(counts, torch.full((1000,), 1e-3))) < 4
    centered = uniform - 0.5
    for lag in (1, 2, 3, 64, 1000, 4096):
        correlation = float((centered[lag:] * centered[:-lag]).mean()) * 12
        assert abs(correlation) < 5 / size**0.5, lag
    pairs = (uniform[0::2] * 32).long() * 32 + (uniform[1::2] * 32).long()
    assert abs(chi_square_z(torch.bincount(pairs, minlength=1024), torch.full((1024,), 1 / 1024))) < 4


def test_noise_bits_avalanche() -> None:
    """One bit of seed, counter or token changes each bit of the uniform with probability 1/2."""

    def bits(seeds: Tensor, counters: Tensor, ids: Tensor) -> Tensor:
        low, high = stream_keys(seeds, counters)
        return _permute_(spread_ids(ids.to(torch.int32)), torch.empty(len(ids), dtype=torch.int32), low, high)

    size = 20_000
    generator = torch.Generator().manual_seed(0)
    seeds, counters, ids = (torch.randint(0, 2**17, (size,), generator=generator) for _ in range(3))
    base = bits(seeds, counters, ids)
    for flipped in range(17):
        mask = 1 << flipped
        for other in (bits(seeds ^ mask, counters, ids), bits(seeds, counters ^ mask, ids), bits(seeds, counters, ids ^ mask)):
            changed = base ^ other
            shares = torch.stack([((changed >> bit) & 1).float().mean() for bit in range(31)])
            assert float((shares - 0.5).abs().max()) < 0.03
    assert int(base.max() | MASK31) == MASK31


def test_keys_on_the_host_equal_those_of_tensors() -> None:
    seeds, counters = [0, 1, -1, -(2**63), 2**63 - 1, 123456789], [0, 7, 10**9, 1, 2, 3]
    low, high = stream_keys(torch.tensor(seeds), torch.tensor(counters))
    assert host_stream_keys(seeds, counters) == (low.tolist(), high.tolist())


def test_noise_bits_are_what_they_always_were() -> None:
    """A seed promises the same tokens after an upgrade: change these numbers only on purpose, and say so in the change log."""
    low, high = stream_keys(torch.tensor([0, 42, -1]), torch.tensor([0, 7, 1000]))
    x = spread_ids(torch.tensor([0, 1, 50_000], dtype=torch.int32)).expand(3, -1).clone()
    assert _permute_(x, torch.empty_like(x), low[:, None], high[:, None]).tolist() == [
        [834657835, 2079223030, 2084438195],
        [299261312, 1400252188, 145799038],
        [1566693286, 117079622, 1692984936],
    ]


def test_noise_is_finite_and_reaches_its_tail() -> None:
    noise = gumbel_noise(torch.arange(64), torch.zeros(64, dtype=torch.int64), torch.arange(200_000))
    assert bool(noise.isfinite().all())
    assert 14 < float(noise.max()) < 23
    assert -3.5 < float(noise.min()) < -2.5
    assert abs(float(noise.double().mean()) - 0.5772157) < 2e-3


@pytest.mark.parametrize("vocab_size", [1, 3, 63, 64, 65, 1000])
def test_argmax_is_the_first_maximum(vocab_size: int) -> None:
    logits = gaussian_logits(50, vocab_size).round()  # ties everywhere
    ids, values = argmax_rows(logits)
    assert torch.equal(values, logits.amax(-1))
    assert ids.tolist() == [row.index(max(row)) for row in logits.tolist()]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_bad_line_is_marked_and_harms_no_other(setting: dict[str, float], bad: float) -> None:
    logits = gaussian_logits(6, 130)
    params = draw_params(6, **setting)
    expected = draw(logits, params)
    logits[1, 129] = bad
    logits[3] = -torch.inf
    logits[4, 0] = bad
    for ids in (draw(logits, params), draw_reference(logits, params)):
        assert ids[[1, 3, 4]].tolist() == [-1, -1, -1]
        assert torch.equal(ids[[0, 2, 5]], expected[[0, 2, 5]])
    ids, outcome = draw_rows(logits.clone(), params, torch.arange(6))
    assert torch.equal(ids, outcome.clamp(min=0))
    assert row_maxima(logits).isfinite().tolist() == [True, False, True, False, False, True]


def test_drawing_counts() -> None:
    params = draw_params(4)
    draw_rows(gaussian_logits(2, 9), params, torch.tensor([3, 1]))
    assert params.counters.tolist() == [0, 2, 2, 4]
