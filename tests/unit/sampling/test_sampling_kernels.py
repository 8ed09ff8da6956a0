"""Triton kernels against the torch references: in the interpreter here, compiled where there is a GPU."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
import triton
import triton.language as tl
from helpers_sampling import draw_params, gaussian_logits
from torch import Tensor

from trivium.ops.sampling import triton_draw, triton_filters, triton_penalties
from trivium.ops.sampling.draw import draw_rows_reference
from trivium.ops.sampling.filters import DrawParams, cutoffs_reference
from trivium.ops.sampling.noise import gumbel_noise
from trivium.ops.sampling.penalties import COUNT_MASK, PROMPT_BIT, penalized
from trivium.ops.sampling.triton_draw import gumbel

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
VOCAB_SIZES = [5, 64, 1000, 4096, 9001] + ([128_256, 262_144] if ON_GPU else [])
FILTERS: list[dict[str, float]] = [
    {},
    {"temperature": 0.0, "top_k": 3},
    {"top_k": 1},
    {"top_k": 7, "temperature": 0.6},
    {"top_k": 130},
    {"top_p": 1e-6},
    {"top_p": 0.3},
    {"top_p": 0.9, "temperature": 0.7},
    {"top_p": 0.999, "temperature": 2.0},
    {"min_p": 0.05},
    {"min_p": 0.001, "top_p": 0.9},
    {"min_p": 0.02, "top_k": 10, "top_p": 0.7, "temperature": 1.3},
    {"min_p": 0.5, "top_k": 1000},
]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with numpy, which warns of wrapping and log(0)


def params_of(settings: list[dict[str, float]]) -> DrawParams:
    """Line i has the i-th setting."""
    lines = [draw_params(1, seed=line * 1_000_003 - 7, **setting) for line, setting in enumerate(settings)]
    params = DrawParams(*(torch.cat([getattr(line, column.name) for line in lines]).to(DEVICE) for column in fields(DrawParams)))
    params.counters.copy_(torch.arange(len(settings)) * 37)
    return params


def all_rows(logits: Tensor) -> Tensor:
    return torch.arange(len(logits), device=DEVICE)


def draw(logits: Tensor, params: DrawParams, cutoffs: Tensor | None = None) -> Tensor:
    """Token of each line, -1 where it failed."""
    params = replace(params, counters=params.counters.clone())
    return triton_draw.draw_rows(logits, params, all_rows(logits), cutoffs)[1]


def draw_filtered(logits: Tensor, params: DrawParams) -> Tensor:
    return draw(logits, params, triton_filters.cutoffs(logits, params, all_rows(logits)))


def draw_reference(logits: Tensor, params: DrawParams) -> Tensor:
    return draw_rows_reference(logits, replace(params, counters=params.counters.clone()), all_rows(logits))[1]


def device_logits(num_lines: int, vocab_size: int, *, scale: float = 3.0, decimals: int | None = None) -> Tensor:
    logits = gaussian_logits(num_lines, vocab_size, seed=vocab_size, scale=scale)
    return (logits if decimals is None else logits.round(decimals=decimals)).to(DEVICE)


@triton.jit
def _noise_kernel(out_ptr, seeds_ptr, counters_ptr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    line = tl.program_id(0)
    ids = tl.arange(0, SIZE)
    tl.store(out_ptr + line * SIZE + ids, gumbel(tl.load(seeds_ptr + line), tl.load(counters_ptr + line), ids))


def test_noise_bits_equal_torch() -> None:
    seeds = torch.tensor([0, 1, -1, 2**62, -(2**63), 12345], device=DEVICE)
    counters = torch.tensor([0, 5, 2**31, 7, 0, 10**9], device=DEVICE)
    out = torch.empty(6, 4096, device=DEVICE)
    _noise_kernel[(6,)](out, seeds, counters, SIZE=4096)
    expected = gumbel_noise(seeds, counters, torch.arange(4096, device=DEVICE))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_draws_equal_the_reference(vocab_size: int) -> None:
    logits = device_logits(13, vocab_size)
    params = params_of([{"temperature": 0.0 if line % 3 == 0 else 0.3 * line} for line in range(13)])
    assert torch.equal(draw(logits, params), draw_reference(logits, params))


@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_cutoffs_equal_the_reference(vocab_size: int, decimals: int | None) -> None:
    logits = device_logits(len(FILTERS), vocab_size, decimals=decimals)
    params = params_of(FILTERS)
    result = triton_filters.cutoffs(logits, params, all_rows(logits))
    expected = torch.where(params.temperature > 0, cutoffs_reference(logits, params), -torch.inf)
    kept, should_be = (logits >= result[:, None]).sum(1), (logits >= expected[:, None]).sum(1)
    assert kept.tolist() == should_be.tolist()


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_filtered_draws_equal_the_reference(vocab_size: int) -> None:
    logits = device_logits(len(FILTERS), vocab_size)
    logits[:, ::5] = -torch.inf
    params = params_of(FILTERS)
    assert torch.equal(draw_filtered(logits, params), draw_reference(logits, params))


def test_flat_lines_that_overflow_the_buffer_are_exact_too() -> None:
    params = params_of([{"top_p": 0.95}, {"top_k": 6000}, {"top_k": 6000, "top_p": 0.5}, {"top_p": 0.5, "min_p": 0.1}])
    logits = device_logits(4, 9001, scale=0.1)
    result, expected = triton_filters.cutoffs(logits, params, all_rows(logits)), cutoffs_reference(logits, params)
    kept, should_be = (logits >= result[:, None]).sum(1).tolist(), (logits >= expected[:, None]).sum(1).tolist()
    assert all(abs(one - other) <= 1 for one, other in zip(kept, should_be, strict=True))  # sums of 9,001 nearly equal terms round differently


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_lines_are_marked_and_harm_no_other(bad: float) -> None:
    logits, params = device_logits(len(FILTERS), 5000), params_of(FILTERS)
    expected = draw_filtered(logits, params)
    for remainder in range(3):
        broken, is_bad = logits.clone(), all_rows(logits) % 3 == remainder
        broken[is_bad, 4999] = bad
        broken[all_rows(logits) % 6 == remainder] = -torch.inf
        assert torch.equal(draw_filtered(broken, params), expected.masked_fill(is_bad, -1))


def test_rows_of_the_table_are_read_and_advanced() -> None:
    floats = torch.zeros(20, 8, device=DEVICE)
    floats[:, 0], floats[:, 1], floats[:, 4] = 0.8, 0.9, 1.0
    floats[3, 0] = 0.0
    ints = torch.stack((torch.arange(20) * 11, torch.arange(20)), dim=1).to(DEVICE)
    table = DrawParams(floats[:, 0], floats[:, 2], floats[:, 1], floats[:, 3], floats[:, 4], ints[:, 0], ints[:, 1])
    rows = torch.tensor([7, 3, 19], device=DEVICE)
    logits = device_logits(3, 2000)
    logits[2, 1] = torch.nan
    params = table.select(rows)
    expected = draw_rows_reference(logits, params, all_rows(logits))[1]
    before = ints.clone()
    token_ids, outcome = triton_draw.draw_rows(logits, table, rows, triton_filters.cutoffs(logits, table, rows))
    assert token_ids.tolist() == [*expected[:2].tolist(), 0]
    assert outcome.tolist() == [*expected[:2].tolist(), -1]
    before[rows, 1] += 1
    assert torch.equal(ints, before)


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_penalties_equal_the_reference(vocab_size: int) -> None:
    logits = device_logits(6, vocab_size)
    generator = torch.Generator().manual_seed(0)
    state = torch.randint(0, 3, (5, vocab_size), generator=generator, dtype=torch.int32)
    state += torch.randint(0, 2, (5, vocab_size), generator=generator, dtype=torch.int32) * PROMPT_BIT
    state[3] = 0
    state = state.to(DEVICE)
    lines, slots = torch.tensor([4, 1, 2], device=DEVICE), torch.tensor([0, 3, 4], device=DEVICE)
    values = torch.tensor([[1.3, 0.5, 0.2], [2.0, 1.0, 1.0], [0.7, -0.5, 1.5]], device=DEVICE)
    expected = logits.clone()
    for index in range(3):
        line = int(lines[index])
        expected[line] = penalized(logits[line], state[slots[index]], *values[index])
    triton_penalties.apply_penalties(logits, lines, state, slots, values[:, 0], values[:, 1], values[:, 2])
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
    assert int(state.max()) & COUNT_MASK <= 2


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_log_sum_exp_equals_torch(vocab_size: int) -> None:
    logits = device_logits(4, vocab_size, scale=10.0)
    logits[1, : vocab_size // 2] = -torch.inf
    logits[2] = -torch.inf
    torch.testing.assert_close(triton_draw.log_sum_exp(logits), logits.double().logsumexp(-1).float(), rtol=1e-5, atol=1e-5)
