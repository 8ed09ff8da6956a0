"""`Sampler`: rows, streams, penalties, masks and logprobs over steps, as the runner drives it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
import torch
from helpers_sampling import DEVICE, gaussian_logits, new_row, sampler_with, table_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import RepetitionPenaltyLogitsProcessor

from trivium.engine.sampler import SampledLines, Sampler
from trivium.ops.sampling.filters import keep_mask_reference
from trivium.ops.sampling.noise import gumbel_noise
from trivium.ops.sampling.penalties import apply_on_cpu, reset_state
from trivium.scheduling.step import NewRow

VOCAB = 333


def step(sampler: Sampler, logits: Tensor, rows: list[int]) -> SampledLines:
    with torch.inference_mode():
        return sampler.finish(sampler.sample(logits.to(DEVICE, copy=True), rows).to_host(torch.Tensor.cpu))


def generate(sampler: Sampler, row: int, num_tokens: int, *, start: int = 0, vocab_size: int = VOCAB) -> list[int]:
    """Tokens of one row, alone in its batch, from logits that depend on the position only."""
    return [step(sampler, gaussian_logits(1, vocab_size, seed=start + index), [row]).token_ids[0] for index in range(num_tokens)]


def greedy_over(logits: list[float], *, sampler_rows: NewRow, steps: int = 1) -> list[int]:
    sampler = sampler_with(len(logits), sampler_rows)
    return [step(sampler, torch.tensor([logits]), [sampler_rows.row]).token_ids[0] for _ in range(steps)]


# ---- greedy and random streams


@pytest.mark.parametrize("vocab_size", [1, 2, 63, 65, 1000, 4099])
def test_greedy_takes_the_first_most_likely_token(vocab_size: int) -> None:
    sampler = sampler_with(vocab_size, *(new_row(row, temperature=0) for row in range(4)))
    logits = gaussian_logits(4, vocab_size).round()
    assert step(sampler, logits, [2, 0, 3, 1]).token_ids == [row.index(max(row)) for row in logits.tolist()]


MIXED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 5},
    {"top_k": 80, "temperature": 1.4},
    {"min_p": 0.1},
    {"typical_p": 0.8},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.5},
    {"temperature": 0, "logit_bias": {5: 3.0, 6: -100.0}},
    {"allowed_token_ids": [1, 5, 9, 200]},
    {"temperature": 0, "logprobs": 3},
    {"min_tokens": 4},
]


def mixed_row(row: int, index: int) -> NewRow:
    return new_row(
        row, request_id=f"mixed-{index}", prompt=[1, 2, 3], stops=[7, 8], bad_words=[[9], [4, 5]] if index % 3 == 0 else None, **MIXED[index]
    )


def test_a_request_samples_the_same_alone_in_a_batch_and_in_another_row() -> None:
    alone = [generate(sampler_with(VOCAB, mixed_row(0, index)), 0, 6) for index in range(len(MIXED))]
    for rows in (list(range(len(MIXED))), [15 - index for index in range(len(MIXED))]):
        sampler = sampler_with(VOCAB, *(mixed_row(row, index) for index, row in enumerate(rows)))
        order = sorted(range(len(MIXED)), key=lambda index: index * 7 % 12)
        together: dict[int, list[int]] = {index: [] for index in order}
        for position in range(6):
            logits = gaussian_logits(1, VOCAB, seed=position).expand(len(order), -1)
            for index, token in zip(order, step(sampler, logits, [rows[index] for index in order]).token_ids, strict=True):
                together[index].append(token)
        assert [together[index] for index in range(len(MIXED))] == alone


@pytest.mark.parametrize("index", range(len(MIXED)))
def test_a_preempted_request_goes_on_as_if_nothing_had_happened(index: int) -> None:
    expected = generate(sampler_with(VOCAB, mixed_row(3, index)), 3, 10)
    sampler = sampler_with(VOCAB, mixed_row(3, index))
    first = generate(sampler, 3, 4)
    sampler.add_row(new_row(3, request_id="usurper", frequency_penalty=1.0, bad_words=[[1, 2, 3, 4], [5]], prompt=[5]))
    generate(sampler, 3, 3)
    resumed = mixed_row(1, index)
    resumed.output_token_ids = list(first)
    sampler.add_row(resumed)
    assert first + generate(sampler, 1, 6, start=4) == expected


def test_seed_names_the_stream_and_unseeded_requests_differ() -> None:
    def tokens(**values: Any) -> list[int]:
        default_seed = values.pop("default_seed", 0)
        request_id = values.pop("request_id", "a")
        return generate(sampler_with(VOCAB, new_row(0, request_id=request_id, **values), default_seed=default_seed), 0, 12)

    assert tokens(seed=5) == tokens(seed=5, request_id="b", default_seed=9)
    assert tokens(seed=5) != tokens(seed=6)
    assert tokens(seed=2**64 - 1) == tokens(seed=2**64 - 1)
    assert tokens(seed=2**63) != tokens(seed=0)
    assert tokens() == tokens()
    assert tokens() != tokens(request_id="b")
    assert tokens() != tokens(default_seed=1)
    assert tokens(default_seed=-3) == tokens(default_seed=-3)


def test_greedy_ignores_filters_as_in_vllm() -> None:
    row = new_row(0, temperature=0, top_k=3, top_p=0.1, min_p=0.9, typical_p=0.01)
    logits = gaussian_logits(1, VOCAB)
    sampler = sampler_with(VOCAB, row)
    assert not sampler.plan([0]).is_filtered
    assert step(sampler, logits, [0]).token_ids == [int(logits.argmax())]


def test_a_top_k_of_the_whole_vocabulary_is_off() -> None:
    assert not sampler_with(VOCAB, new_row(0, top_k=VOCAB)).plan([0]).is_filtered
    assert sampler_with(VOCAB, new_row(0, top_k=VOCAB - 1)).plan([0]).is_filtered


def test_plans_name_only_what_the_scheduled_rows_use() -> None:
    sampler = sampler_with(VOCAB, *(mixed_row(row, row) for row in range(len(MIXED))))
    plan = sampler.plan([1, 11])
    assert (plan.is_filtered, plan.is_typical, plan.edits, plan.below_min_tokens, plan.is_simple) == (False, False, [], [1], False)
    plan = sampler.plan([10, 6, 8])
    assert (plan.is_filtered, plan.is_typical, plan.edits, plan.logprobs, plan.num_logprobs) == (False, True, [1, 2], [0], [3])
    plan = sampler.plan([0, 1, 7])
    assert (plan.is_filtered, plan.edits, plan.is_simple) == (True, [0], False)
    assert sampler.plan([7, 1, 2]).is_simple


# ---- failures


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("others", [{"temperature": 0}, {"temperature": 1.0}, {"top_p": 0.5}, {"frequency_penalty": 1.0}, {"logprobs": 2}])
def test_a_row_that_is_not_finite_fails_alone(bad: float, others: dict[str, Any]) -> None:
    logits = gaussian_logits(4, VOCAB)
    rows = [new_row(row, **others) for row in range(4)]
    expected = step(sampler_with(VOCAB, *rows), logits, [0, 1, 2, 3])
    logits[1, 332] = bad
    logits[2] = -math.inf
    result = step(sampler_with(VOCAB, *rows), logits, [0, 1, 2, 3])
    assert result.token_ids == [expected.token_ids[0], 0, 0, expected.token_ids[3]]
    assert sorted(result.failed) == [1, 2]
    assert "NaN" in result.failed[1]
    for entry in result.logprobs:
        assert entry is not None
        assert all(math.isfinite(value) for value in [entry.logprob, *entry.top_logprobs])


def test_nothing_left_to_sample_fails_alone_with_its_own_reason() -> None:
    rows = [new_row(0, allowed_token_ids=[3], min_tokens=2, stops=[3]), new_row(1, temperature=0)]
    result = step(sampler_with(VOCAB, *rows), gaussian_logits(2, VOCAB), [0, 1])
    assert list(result.failed) == [0]
    assert "allowed_token_ids" in result.failed[0]


# ---- penalties


def reference_penalties(
    logits: list[float], prompt: list[int], output: list[int], repetition: float, frequency: float, presence: float
) -> list[float]:
    result = list(logits)
    for token in range(len(logits)):
        if token in prompt or token in output:
            result[token] = result[token] / repetition if result[token] > 0 else result[token] * repetition
        result[token] -= frequency * output.count(token)
        result[token] -= presence * (token in output)
    return result


@pytest.mark.parametrize("penalties", [(1.0, 0.7, 0.0), (1.0, 0.0, 0.9), (1.5, 0.0, 0.0), (0.7, -0.5, -1.0), (1.2, 0.3, 0.4)])
def test_penalties_follow_their_formulas_token_by_token(penalties: tuple[float, float, float]) -> None:
    repetition, frequency, presence = penalties
    prompt = [3, 4, 4, 5]
    names = {"repetition_penalty": repetition, "frequency_penalty": frequency, "presence_penalty": presence}
    sampler = sampler_with(40, new_row(2, temperature=0, prompt=prompt, **names))
    logits = gaussian_logits(1, 40, seed=4, scale=1.0)
    output: list[int] = []
    for _ in range(15):
        expected = reference_penalties(logits[0].tolist(), prompt, output, *penalties)
        token = step(sampler, logits, [2]).token_ids[0]
        assert token == expected.index(max(expected))
        output.append(token)


def test_repetition_penalty_equals_transformers() -> None:
    prompt, logits = [1, 5, 5, 80], gaussian_logits(1, 100)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([prompt]), logits.clone())
    state = torch.zeros(100, dtype=torch.int32)
    reset_state(state, torch.tensor(prompt), torch.tensor([], dtype=torch.int64))
    apply_on_cpu(logits[0], state, 1.7, 0.0, 0.0)
    assert torch.equal(logits, expected)


def test_zero_penalties_are_no_work_at_all() -> None:
    row = new_row(0, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, temperature=0)
    assert not sampler_with(VOCAB, row).plan([0]).is_filtered


def test_presence_penalty_does_not_touch_the_prompt_nor_the_neighbours() -> None:
    logits = torch.tensor([[5.0, 4.9, 0.0]] * 2)
    sampler = sampler_with(3, new_row(0, temperature=0, presence_penalty=0.2, prompt=[0]), new_row(1, temperature=0, prompt=[0]))
    assert [step(sampler, logits, [0, 1]).token_ids for _ in range(3)] == [[0, 0], [1, 0], [0, 0]]


def test_penalty_slots_are_reused_and_forgotten() -> None:
    sampler = sampler_with(10)
    logits = torch.tensor([[5.0, 4.9] + [0.0] * 8])
    for attempt in range(30):
        row = attempt % 9
        sampler.add_row(new_row(row, temperature=0, frequency_penalty=2.0))
        assert [step(sampler, logits, [row]).token_ids[0] for _ in range(2)] == [0, 1]
        sampler.add_row(new_row(row, temperature=0))
    assert sampler._penalties._num_states == 4


# ---- masks and bias


def test_min_tokens_masks_stop_ids_exactly_until_then() -> None:
    logits = [0.0, 5.0, 4.0, 1.0]
    row = new_row(0, temperature=0, min_tokens=3, stops=[1, 2])
    assert greedy_over(logits, sampler_rows=row, steps=5) == [3, 3, 3, 1, 1]
    resumed = new_row(0, temperature=0, min_tokens=3, stops=[1, 2], output=[3, 3])
    assert greedy_over(logits, sampler_rows=resumed, steps=2) == [3, 1]


def test_logit_bias_adds_and_bans() -> None:
    assert greedy_over([0.0, 5.0, 4.0, 1.0], sampler_rows=new_row(0, temperature=0, logit_bias={3: 4.5})) == [3]
    assert greedy_over([0.0, 5.0, 4.0, 1.0], sampler_rows=new_row(0, temperature=0, logit_bias={1: -100.0})) == [2]


def test_logits_may_be_a_part_of_wider_ones() -> None:
    """Those of several ranks are, where the vocabulary is no multiple of their number."""
    sampler = sampler_with(4, new_row(0, temperature=0, logit_bias={3: 4.5}), new_row(1, temperature=0, allowed_token_ids=[0, 3]))
    wide = torch.tensor([[0.0, 5.0, 4.0, 1.0, 99.0], [0.0, 5.0, 4.0, 1.0, 99.0]], device=DEVICE)
    assert sampler.finish(sampler.sample(wide[:, :4], [0, 1]).to_host(torch.Tensor.cpu)).token_ids == [3, 3]


def test_bias_does_not_lift_a_mask() -> None:
    row = new_row(0, temperature=0, logit_bias={1: 100.0, 2: 100.0}, allowed_token_ids=[0, 2, 3], min_tokens=1, stops=[2], bad_words=[[3]])
    assert greedy_over([0.0, 5.0, 4.0, 1.0], sampler_rows=row) == [0]


def test_allowed_tokens_are_the_only_ones() -> None:
    sampler = sampler_with(VOCAB, new_row(0, temperature=2.0, allowed_token_ids=[7, 300, 12]), new_row(1, temperature=0))
    tokens = {step(sampler, gaussian_logits(2, VOCAB, scale=1.0), [1, 0]).token_ids[1] for _ in range(60)}
    assert tokens == {7, 12, 300}


def test_bad_words_ban_the_last_token_after_its_prefix_only() -> None:
    logits = [3.0, 5.0, 4.0, 1.0]
    assert greedy_over(logits, sampler_rows=new_row(0, temperature=0, bad_words=[[1]]), steps=2) == [2, 2]
    assert greedy_over(logits, sampler_rows=new_row(0, temperature=0, bad_words=[[1, 1]]), steps=4) == [1, 2, 1, 2]
    assert greedy_over(logits, sampler_rows=new_row(0, temperature=0, bad_words=[[1, 1, 1], [2, 1]]), steps=5) == [1, 1, 2, 2, 2]
    assert greedy_over(logits, sampler_rows=new_row(0, temperature=0, bad_words=[[1, 1, 1]], prompt=[1, 1]), steps=3) == [1, 1, 2]
    assert greedy_over(logits, sampler_rows=new_row(0, temperature=0, bad_words=[[1, 1, 1]], output=[1, 1]), steps=2) == [2, 1]


def test_bad_words_of_a_longer_newcomer_leave_older_rows_right() -> None:
    logits = torch.tensor([[3.0, 5.0, 4.0, 1.0]])
    sampler = sampler_with(4, new_row(0, temperature=0, bad_words=[[1, 1]]))
    assert step(sampler, logits, [0]).token_ids == [1]
    sampler.add_row(new_row(1, temperature=0, bad_words=[[2, 2, 2, 1]]))
    assert step(sampler, logits.expand(2, -1), [0, 1]).token_ids == [2, 1]


# ---- logprobs


def test_logprobs_are_of_the_raw_distribution_and_finite() -> None:
    logits = gaussian_logits(3, VOCAB)
    logits[0, 100:] = -math.inf
    rows = [
        new_row(0, temperature=0.3, top_p=0.01, logprobs=VOCAB),
        new_row(1, temperature=0, frequency_penalty=2.0, logit_bias={17: 100.0}, logprobs=0),
        new_row(2),
    ]
    result = step(sampler_with(VOCAB, *rows), logits, [0, 1, 2])
    exact = logits.double().log_softmax(-1)
    first, second, third = result.logprobs
    assert third is None
    assert first is not None
    assert second is not None
    assert second.token_id == 17
    assert (second.top_ids, second.top_logprobs) == ([], [])
    assert second.rank == 1 + int((logits[1] > logits[1, 17]).sum())
    assert second.logprob == pytest.approx(float(exact[1, 17]), abs=1e-5)
    assert first.rank == 1
    assert sorted(first.top_ids) == list(range(VOCAB))
    assert first.top_ids[0] == first.token_id == result.token_ids[0]
    assert first.top_logprobs == pytest.approx(exact[0, first.top_ids].clamp(min=-9999.0).tolist(), abs=1e-5)
    assert first.top_logprobs[-1] == -9999.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_row_gets_as_many_logprobs_as_it_asked_for(temperature: float) -> None:
    counts: list[int | None] = [2, None, 5, -1, 0]
    rows = [new_row(row, temperature=temperature, logprobs=count) for row, count in enumerate(counts)]
    logits = gaussian_logits(5, VOCAB, seed=2)
    result = step(sampler_with(VOCAB, *rows), logits, [0, 1, 2, 3, 4])
    assert [None if entry is None else len(entry.top_ids) for entry in result.logprobs] == [2, None, 5, VOCAB, 0]
    for line, entry in enumerate(result.logprobs):
        if entry is not None:
            assert entry.token_id == result.token_ids[line]
            assert entry.top_ids == logits[line].topk(len(entry.top_ids)).indices.tolist()


def test_no_logprobs_when_nobody_asks() -> None:
    assert step(sampler_with(VOCAB, new_row(0)), gaussian_logits(1, VOCAB), [0]).logprobs == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_do_not_depend_on_the_batch(temperature: float) -> None:
    rows = [new_row(row, temperature=temperature, logprobs=row) for row in range(8)]
    logits = gaussian_logits(8, VOCAB)
    together = step(sampler_with(VOCAB, *rows), logits, list(range(8))).logprobs
    for row, entry in enumerate(together):
        assert entry is not None
        assert entry.logprob == pytest.approx(float(logits[row].log_softmax(-1)[entry.token_id]), abs=1e-5)
        assert step(sampler_with(VOCAB, *rows), logits[row : row + 1], [row]).logprobs == [together[row]]


@pytest.mark.parametrize("top_k", [0, 4, -1, 10_000])
def test_prompt_logprobs(top_k: int) -> None:
    logits = gaussian_logits(6, VOCAB)
    targets = torch.tensor([5, 0, 332, 7, 7, 100])
    sampler = sampler_with(VOCAB)
    result = sampler.finish(sampler.prompt_logprobs(logits.to(DEVICE), targets.to(DEVICE), top_k).to_host(torch.Tensor.cpu))
    count = min(top_k, VOCAB) if top_k >= 0 else VOCAB
    exact = logits.double().log_softmax(-1)
    assert result.failed == {}
    for line, entry in enumerate(result.logprobs):
        assert entry is not None
        assert entry.token_id == int(targets[line])
        assert entry.logprob == pytest.approx(float(exact[line, targets[line]]), abs=1e-5)
        assert entry.rank == 1 + int((logits[line] > logits[line, targets[line]]).sum())
        assert entry.top_ids == logits[line].topk(count).indices.tolist()


def test_no_positions_and_no_rows_are_fine() -> None:
    sampler = sampler_with(VOCAB)
    empty = sampler.prompt_logprobs(torch.empty(0, VOCAB, device=DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE), 2)
    assert sampler.finish(empty).logprobs == []


def test_padding_lines_of_a_captured_graph_change_no_row() -> None:
    sampler = sampler_with(VOCAB, new_row(0, seed=1))
    expected = generate(sampler_with(VOCAB, new_row(0, seed=1)), 0, 4)
    tokens: list[int] = []
    for position in range(4):
        assert sampler.plan([0]).is_simple
        logits = torch.cat((gaussian_logits(1, VOCAB, seed=position), torch.full((3, VOCAB), torch.nan)))
        rows = torch.tensor([0, *[sampler.padding_row] * 3])
        tokens.append(int(sampler.sample_simple(logits.to(DEVICE), rows.to(DEVICE), is_filtered=False).token_ids[0]))
    assert tokens == expected


def test_ids_outside_the_vocabulary_change_nothing() -> None:
    """The client refuses them; should one get here, it must not reach another row's logits."""
    strange = new_row(0, temperature=0, logit_bias={4: 100.0, -1: 50.0}, stops=[9, 4], min_tokens=3, bad_words=[[7], [1, 4]], allowed_token_ids=None)
    logits = torch.tensor([[3.0, 5.0, 4.0, 1.0], [3.0, 5.0, 4.0, 1.0]])
    result = step(sampler_with(4, strange, new_row(1, temperature=0)), logits, [0, 1])
    assert result.token_ids == [1, 1]
    nothing = step(sampler_with(4, new_row(0, temperature=0, allowed_token_ids=[4, 5]), new_row(1, temperature=0)), logits, [0, 1])
    assert list(nothing.failed) == [0]
    assert nothing.token_ids[1] == 1


# ---- everything at once


def draw_by_the_book(row: NewRow, logits: Tensor, output: list[int], seed: int) -> int:
    """One token of one row, by the stages in their documented order, each by its definition."""
    params, scores = row.params, logits.clone()
    if params.allowed_token_ids:
        is_allowed = torch.zeros(VOCAB, dtype=torch.bool)
        is_allowed[params.allowed_token_ids] = True
        scores[~is_allowed] = -math.inf
    for word in row.bad_words_token_ids:
        if len(word) == 1 or output[-(len(word) - 1) :] == word[:-1]:
            scores[word[-1]] = -math.inf
    if len(output) < params.min_tokens:
        scores[row.stop_token_ids] = -math.inf
    for token, bias in (params.logit_bias or {}).items():
        scores[token] += bias
    penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    scores = torch.tensor(reference_penalties(scores.tolist(), row.prompt_token_ids, output, *penalties))
    if params.temperature == 0:
        return int(scores.argmax())
    table = table_of([{name: getattr(params, name) for name in ("temperature", "min_p", "top_k", "top_p", "typical_p")}])
    scores[~keep_mask_reference(scores[None], table)[0]] = -math.inf
    noise = gumbel_noise(torch.tensor([seed]), torch.tensor([len(output)]), torch.arange(VOCAB))[0]
    return int((scores + params.temperature * noise).argmax())


requests = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.5, 1.0, 1.7])},
    optional={
        "top_k": st.sampled_from([1, 5, 70, VOCAB]),
        "top_p": st.sampled_from([0.1, 0.7, 0.99]),
        "min_p": st.sampled_from([0.01, 0.3]),
        "typical_p": st.sampled_from([0.2, 0.9]),
        "repetition_penalty": st.sampled_from([0.8, 1.5]),
        "frequency_penalty": st.sampled_from([-0.5, 0.7]),
        "presence_penalty": st.sampled_from([-0.3, 0.4]),
        "logit_bias": st.sampled_from([{3: 2.0, 17: -100.0}, {4: 5.0, 5: 5.0}]),
        "allowed_token_ids": st.sampled_from([[3, 4, 5, 6, 7, 300], list(range(0, VOCAB, 2))]),
        "min_tokens": st.sampled_from([2, 4]),
        "logprobs": st.sampled_from([0, 2]),
    },
)
word_lists = st.sampled_from([None, [[3]], [[4, 5], [5, 4, 5], [6, 6], [300]]])


@settings(max_examples=60 if DEVICE == "cpu" else 300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batch=st.lists(st.tuples(requests, word_lists), min_size=1, max_size=6), preempted=st.integers(0, 5), data_seed=st.integers(0, 1000))
def test_any_mixture_of_requests_follows_the_book(batch: list[tuple[dict[str, Any], list[list[int]] | None]], preempted: int, data_seed: int) -> None:
    rows = [
        new_row(index, seed=index + 5, prompt=[3, 9, 9], stops=[5, 6], bad_words=words, **request) for index, (request, words) in enumerate(batch)
    ]
    sampler = sampler_with(VOCAB, *rows)
    outputs: list[list[int]] = [[] for _ in rows]
    places = list(range(len(rows)))
    for position in range(5):
        if position == 3 and preempted < len(rows):  # comes back in another row
            places[preempted] = 10
            sampler.add_row(msgspec.structs.replace(rows[preempted], row=10, output_token_ids=list(outputs[preempted])))
        logits = gaussian_logits(len(rows), VOCAB, seed=data_seed * 10 + position, scale=2.0)
        result = step(sampler, logits, places)
        for index, row in enumerate(rows):
            assert result.token_ids[index] == draw_by_the_book(row, logits[index], outputs[index], index + 5)
            outputs[index].append(result.token_ids[index])
