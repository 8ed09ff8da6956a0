"""Triton kernels against the torch references: in the interpreter here, compiled where there is a GPU."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from helpers_sampling import copy_of, gaussian_logits, table_of
from torch import Tensor

from trivium.ops.sampling import triton_draw, triton_logprobs, triton_penalties
from trivium.ops.sampling.draw import draw_rows_reference
from trivium.ops.sampling.noise import gumbel_noise
from trivium.ops.sampling.penalties import PROMPT_BIT, penalized
from trivium.ops.sampling.table import COUNTER, SEEN, SamplingTable
from trivium.ops.sampling.triton_common import exponential

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
NUM_DRAWS = 30 if ON_GPU else 2
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


def params_of(settings: list[dict[str, float]]) -> SamplingTable:
    return table_of(settings, DEVICE)


def all_rows(logits: Tensor) -> Tensor:
    return torch.arange(len(logits), device=DEVICE)


def draw(logits: Tensor, params: SamplingTable, *, is_full: bool = True) -> Tensor:
    """Token of each line, -1 where it failed."""
    return triton_draw.draw_rows(logits, copy_of(params), all_rows(logits), is_full=is_full)[1]


def draw_reference(logits: Tensor, params: SamplingTable) -> Tensor:
    return draw_rows_reference(logits, copy_of(params), all_rows(logits))[1]


def device_logits(num_lines: int, vocab_size: int, *, scale: float = 3.0, decimals: int | None = None) -> Tensor:
    logits = gaussian_logits(num_lines, vocab_size, seed=vocab_size, scale=scale)
    return (logits if decimals is None else logits.round(decimals=decimals)).to(DEVICE)


@triton.jit
def _noise_kernel(out_ptr, seeds_ptr, counters_ptr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    line = tl.program_id(0)
    ids = tl.arange(0, SIZE)
    tl.store(out_ptr + line * SIZE + ids, exponential(tl.load(seeds_ptr + line), tl.load(counters_ptr + line), ids))


def test_noise_bits_equal_torch() -> None:
    seeds = torch.tensor([0, 1, -1, 2**62, -(2**63), 12345], device=DEVICE)
    counters = torch.tensor([0, 5, 2**31, 7, 0, 10**9], device=DEVICE)
    out = torch.empty(6, 4096, device=DEVICE)
    _noise_kernel[(6,)](out, seeds, counters, SIZE=4096)
    expected = gumbel_noise(seeds, counters, torch.arange(4096, device=DEVICE))
    torch.testing.assert_close(-out.log(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_draws_equal_the_reference(vocab_size: int) -> None:
    logits = device_logits(13, vocab_size)
    params = params_of([{"temperature": 0.0 if line % 3 == 0 else 0.3 * line} for line in range(13)])
    assert torch.equal(draw(logits, params, is_full=False), draw_reference(logits, params))


@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_filtered_draws_equal_the_reference(vocab_size: int, decimals: int | None) -> None:
    logits = device_logits(len(FILTERS), vocab_size, decimals=decimals)
    logits[:, ::5] = -torch.inf
    params = params_of(FILTERS)
    for _ in range(NUM_DRAWS):
        assert torch.equal(draw(logits, params), draw_reference(logits, params))
        params.counters.add_(1)


def test_flat_lines_are_exact_too() -> None:
    """top_k beyond the number of groups and of the buffer, nuclei of thousands, draws that are refused several times."""
    settings: list[dict[str, float]] = [
        {"top_p": 0.95},
        {"top_k": 6000},
        {"top_k": 4000, "top_p": 0.5},
        {"top_p": 0.05, "min_p": 0.1},
        {"top_k": 140},
    ]
    logits, params = device_logits(len(settings), 9001, scale=0.1), params_of(settings)
    for _ in range(NUM_DRAWS):
        assert torch.equal(draw(logits, params), draw_reference(logits, params))
        params.counters.add_(1)


def test_bfloat16_logits_draw_as_their_float32_values_do() -> None:
    logits, params = device_logits(len(FILTERS), 5000).to(torch.bfloat16), params_of(FILTERS)
    expected = draw_reference(logits.float(), params)
    assert torch.equal(draw(logits, params), expected)
    unfiltered = draw_reference(logits.float(), params_of([{"temperature": setting.get("temperature", 1.0)} for setting in FILTERS]))
    assert torch.equal(draw(logits, params, is_full=False), unfiltered)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_lines_are_marked_and_harm_no_other(bad: float) -> None:
    logits, params = device_logits(len(FILTERS), 5000), params_of(FILTERS)
    expected = draw(logits, params)
    for remainder in range(3):
        broken, is_bad = logits.clone(), all_rows(logits) % 3 == remainder
        broken[is_bad, 4999] = bad
        broken[all_rows(logits) % 6 == remainder] = -torch.inf
        assert torch.equal(draw(broken, params), expected.masked_fill(is_bad, -1))


def test_rows_of_the_table_are_read_and_advanced() -> None:
    params = params_of([FILTERS[row % len(FILTERS)] for row in range(20)])
    rows = torch.tensor([7, 1, 19], device=DEVICE)
    logits = device_logits(3, 2000)
    logits[2, 1] = torch.nan
    expected = draw_reference(logits, params.select(rows)).tolist()
    before = params.ints.clone()
    token_ids, outcome = triton_draw.draw_rows(logits, params, rows, is_full=True)
    assert token_ids.tolist() == [*expected[:2], 0]
    assert outcome.tolist() == [*expected[:2], -1]
    before[rows, COUNTER] += 1
    assert torch.equal(params.ints, before)


def seen_states(num_rows: int, vocab_size: int) -> Tensor:
    """States with a stride of 16 bytes, as the sampler makes them."""
    generator = torch.Generator().manual_seed(0)
    shape = (num_rows, -(-vocab_size // 4) * 4)
    counts = torch.randint(0, 3, shape, generator=generator, dtype=torch.int32)
    return (counts + torch.randint(0, 2, shape, generator=generator, dtype=torch.int32) * PROMPT_BIT).to(DEVICE)[:, :vocab_size]


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_penalties_are_part_of_every_draw(vocab_size: int) -> None:
    penalties = [(1.3, 0.5, 0.2), (1.0, 0.0, 0.0), (0.7, -0.5, 1.5), (1.0, 0.7, 0.0)]
    settings = [
        {**filters, **dict(zip(("repetition", "frequency", "presence"), penalties[index % 4], strict=True))} for index, filters in enumerate(FILTERS)
    ]
    params, logits, states = params_of(settings), device_logits(len(settings), vocab_size), seen_states(len(settings), vocab_size)
    expected_logits, expected_states = logits.clone(), states.clone()
    for row in range(len(settings)):
        if row % 4 != 1:
            params.ints[row, SEEN] = states[row].data_ptr()
            expected_logits[row] = penalized(logits[row], states[row], *penalties[row % 4])
    changed = logits.clone()
    triton_penalties.apply_penalties(changed, params, all_rows(logits))
    torch.testing.assert_close(changed, expected_logits, rtol=1e-5, atol=1e-5)
    expected = draw_reference(expected_logits, params)
    assert torch.equal(draw(logits, params), expected)
    for row, token in enumerate(expected.tolist()):
        expected_states[row, token] += row % 4 != 1
    assert torch.equal(states, expected_states)

    triton_penalties.count_sampled(params, all_rows(logits), torch.full_like(expected, -1))
    assert torch.equal(states, expected_states)
    triton_penalties.count_sampled(params, all_rows(logits), expected)
    for row, token in enumerate(expected.tolist()):
        expected_states[row, token] += row % 4 != 1
    assert torch.equal(states, expected_states)


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_normalizer_and_rank_equal_torch(vocab_size: int) -> None:
    logits = device_logits(5, vocab_size, scale=10.0, decimals=0)
    logits[1, : vocab_size // 2] = -torch.inf
    logits[2] = -torch.inf
    token_ids = torch.tensor([vocab_size - 1, 0, 1, vocab_size // 2, 3], device=DEVICE)
    sums, ranks = triton_logprobs.normalize(logits, token_ids)
    torch.testing.assert_close(sums, logits.double().logsumexp(-1).float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(ranks, 1 + (logits > logits.gather(1, token_ids[:, None])).sum(1))
