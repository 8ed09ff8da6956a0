"""A step in flight: step N+1 is scheduled before the result of N is in."""

from __future__ import annotations

import pytest
from helpers_fake_engine import FakeEngine, make_limits
from helpers_fake_runner import generate_reference

PROMPT = [11, 12, 13, 14, 15]


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_decode_inputs_never_leave_the_device(depth: int) -> None:
    engine = FakeEngine(make_limits(), depth=depth)
    engine.add("a", PROMPT, max_tokens=6)
    engine.drain()
    assert [(plan.num_tokens, plan.num_fed, plan.num_computed, plan.token_ids) for plan in engine.plans] == [
        ([5], [5], [0], PROMPT),
        *(([1], [0], [position], []) for position in range(5, 10)),
    ]
    assert engine.received["a"].tokens == generate_reference(PROMPT, 6, 1000)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_row_is_not_scheduled_past_what_it_may_produce(depth: int) -> None:
    engine = FakeEngine(make_limits(), depth=depth)
    engine.add("a", PROMPT, max_tokens=2)
    assert [engine.schedule() is None for _ in range(4)] == [False, False, True, True]
    assert engine.scheduler.has_work
    engine.update()
    engine.update()
    assert engine.received["a"].finish_reason == "length"
    assert not engine.scheduler.has_work


def test_blocks_are_held_until_the_last_token_is_in() -> None:
    """vLLM #38551: progress that was only assumed freed blocks too early."""
    engine = FakeEngine(make_limits(), depth=1)
    engine.add("a", PROMPT, max_tokens=2)
    engine.schedule()
    engine.schedule()
    engine.update()
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_usable - 2
    engine.update()
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_usable


def test_the_result_of_a_step_after_the_end_is_dropped() -> None:
    tokens = generate_reference(PROMPT, 4, 1000)
    engine = FakeEngine(make_limits(), depth=1)
    engine.add("a", PROMPT, max_tokens=9, eos_token_ids=[tokens[1]])
    engine.drain()
    assert engine.received["a"].tokens == tokens[:2]
    assert len(engine.plans) == 3, "one step was wasted"
    assert engine.scheduler.stats().generation_tokens == 2


def test_row_and_blocks_of_a_finished_request_go_to_the_next_while_its_wasted_step_is_in_flight() -> None:
    tokens = generate_reference(PROMPT, 4, 1000)
    engine = FakeEngine(make_limits(max_num_seqs=1, num_blocks=3), depth=1)
    engine.add("a", PROMPT, max_tokens=9, eos_token_ids=[tokens[0]])
    engine.add("b", [21, 22, 23, 24, 25, 26], max_tokens=2)
    engine.schedule()
    engine.schedule()
    engine.update()
    plan = engine.schedule()
    assert plan is not None
    assert (plan.rows, [new.request_id for new in plan.new_rows]) == ([0], ["b"])
    assert engine.scheduler.num_in_flight == 2
    engine.drain()
    assert engine.received["a"].tokens == tokens[:1]
    assert engine.received["b"].tokens == generate_reference([21, 22, 23, 24, 25, 26], 2, 1000)


@pytest.mark.parametrize("depth", [1, 2])
def test_tokens_in_flight_of_a_preempted_request_are_delivered_once_before_it_starts_over(depth: int) -> None:
    """vLLM #41190, PR 47900, PR 48245, PR 28787: lost, doubled or truncated tokens around a preemption."""
    engine = FakeEngine(make_limits(num_blocks=11), depth=depth)
    prompts = {"a": list(range(100, 116)), "b": list(range(200, 216))}
    for name, prompt in prompts.items():
        engine.add(name, prompt, max_tokens=12)
    while engine.scheduler.stats().num_preemptions == 0:
        engine.step()
    num_delivered = len(engine.received["b"].tokens)
    num_in_flight = engine.scheduler.num_in_flight
    assert num_in_flight == depth
    engine.abort("a")
    engine.drain()
    first, again = [new for plan in engine.plans for new in plan.new_rows if new.request_id == "b"]
    assert first.output_token_ids == []
    assert again.output_token_ids == engine.received["b"].tokens[: len(again.output_token_ids)]
    assert len(again.output_token_ids) == num_delivered + num_in_flight - 1
    assert engine.received["b"].tokens == generate_reference(prompts["b"], 12, 1000)


def test_a_preempted_request_waits_for_its_token_even_if_blocks_are_free() -> None:
    engine = FakeEngine(make_limits(num_blocks=11), depth=1)
    engine.add("a", list(range(100, 116)), max_tokens=12)
    engine.add("b", list(range(200, 216)), max_tokens=12)
    while engine.scheduler.stats().num_preemptions == 0:
        engine.schedule()
        if len(engine.results) > 1 and engine.scheduler.stats().num_preemptions == 0:
            engine.update()
    engine.abort("a")
    assert engine.scheduler.pool.num_free == 10
    assert engine.scheduler.num_in_flight == 2
    assert engine.schedule() is None, "a token of b is in flight, and belongs to what it starts over with"
    engine.update()
    plan = engine.schedule()
    assert plan is not None, "the other step in flight is none of b's"
    assert plan.new_rows[0].output_token_ids == generate_reference(list(range(200, 216)), 5, 1000)
    engine.drain()
    assert engine.received["b"].tokens == generate_reference(list(range(200, 216)), 12, 1000)


def test_abort_wins_over_a_finish_that_is_in_flight() -> None:
    """vLLM PR 29987: an abort during the last step was counted as a completion."""
    engine = FakeEngine(make_limits(), depth=1)
    engine.add("a", PROMPT, max_tokens=1)
    engine.schedule()
    engine.abort("a")
    assert engine.received["a"].finish_reason == "abort"
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_usable
    engine.update()
    assert engine.received["a"].tokens == []
    engine.check_idle()


def test_a_block_of_generated_tokens_is_not_findable_before_its_tokens_are_known() -> None:
    engine = FakeEngine(make_limits(block_size=1, num_blocks=40), depth=3)
    engine.add("a", PROMPT, max_tokens=20)
    for _ in range(4):
        engine.schedule()
    assert engine.scheduler.pool.num_hashes == len(PROMPT), "three steps are scheduled, no token is known"
    engine.drain()
    engine.add("b", PROMPT + engine.received["a"].tokens)
    engine.drain()
    assert engine.received["b"].num_cached_tokens == 24
