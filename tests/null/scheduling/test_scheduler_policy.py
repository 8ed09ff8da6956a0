"""What a step consists of: budget, order, admission, preemption. Single cases; the fuzz is in `test_scheduler_properties.py`."""

from __future__ import annotations

from typing import Any

import pytest
from helpers_fake_engine import FakeEngine, make_add, make_limits
from helpers_fake_runner import generate_reference

from trivium.errors import ConfigError, InvalidRequest, PromptTooLong
from trivium.scheduling import Scheduler, StepPlan


def prompt_of(name: int, length: int) -> list[int]:
    """Distinct from all others."""
    return [name * 1000 + index for index in range(length)]


def ids_of(engine: FakeEngine, plan: StepPlan | None) -> list[str]:
    assert plan is not None
    return [engine.runner.rows[row].new.request_id for row in plan.rows]


def scheduled(engine: FakeEngine) -> dict[str, int]:
    """Tokens by request of the next step."""
    plan = engine.step()
    assert plan is not None
    return dict(zip(ids_of(engine, plan), plan.num_tokens, strict=True))


# --- limits and what is refused ---


@pytest.mark.parametrize(
    ("name", "value"), [("max_num_seqs", 0), ("max_num_batched_tokens", 0), ("max_model_len", 1), ("num_blocks", 1), ("block_size", 0)]
)
def test_limits_with_which_nothing_runs_are_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=name) as error:
        make_limits(**{name: value})
    assert error.value.param == name


@pytest.mark.parametrize(
    ("prompt", "changes", "error", "match"),
    [
        ([], {}, InvalidRequest, "no tokens"),
        (prompt_of(1, 200), {}, PromptTooLong, "limited to 200"),
        (prompt_of(1, 41), {"num_blocks": 11}, PromptTooLong, "holds only 40"),
    ],
)
def test_impossible_requests_are_refused_and_leave_no_trace(prompt: list[int], changes: dict[str, Any], error: type[Exception], match: str) -> None:
    engine = FakeEngine(make_limits(**changes))
    with pytest.raises(error, match=match):
        engine.add("a", prompt)
    assert not engine.scheduler.has_work
    assert engine.schedule() is None
    engine.add("a", [1])
    engine.drain()


def test_max_tokens_below_one_and_ids_in_use_are_refused() -> None:
    scheduler = Scheduler(make_limits())
    message = make_add("a", [1])
    message.max_tokens = 0
    with pytest.raises(InvalidRequest, match="max_tokens"):
        scheduler.add(message)
    scheduler.add(make_add("a", [1]))
    with pytest.raises(InvalidRequest, match="'a' is already in use"):
        scheduler.add(make_add("a", [2]))
    scheduler.abort(["a"])
    scheduler.add(make_add("a", [2]))


def test_one_request_with_exactly_the_largest_prompt_runs() -> None:
    engine = FakeEngine(make_limits(num_blocks=11, watermark=0.5))
    engine.add("a", prompt_of(1, 40), max_tokens=9)
    engine.drain()
    assert engine.received["a"].finish_reason == "length"
    assert engine.received["a"].tokens == generate_reference(prompt_of(1, 40), 1, 1000)


@pytest.mark.parametrize(("changes", "count"), [({"num_blocks": 6}, 11), ({"max_model_len": 17}, 7), ({}, 150)])
@pytest.mark.parametrize("depth", [0, 1])
def test_max_tokens_is_an_upper_bound_not_a_reservation(changes: dict[str, Any], count: int, depth: int) -> None:
    """vLLM #42474. A request that alone would outgrow the cache or the model's length ends with `length` when it gets there."""
    engine = FakeEngine(make_limits(**changes), depth=depth)
    engine.add("a", prompt_of(1, 10), max_tokens=150)
    engine.drain()
    assert engine.received["a"].finish_reason == "length"
    assert engine.received["a"].tokens == generate_reference(prompt_of(1, 10), count, 1000)


# --- one budget, no phases ---


def test_a_prompt_is_computed_in_chunks_beside_decodes_within_one_budget() -> None:
    engine = FakeEngine(make_limits(max_num_batched_tokens=10))
    engine.add("a", prompt_of(1, 3))
    assert scheduled(engine) == {"a": 3}
    engine.add("b", prompt_of(2, 20))
    engine.add("c", prompt_of(3, 4))
    assert scheduled(engine) == {"a": 1, "b": 9}
    assert scheduled(engine) == {"a": 1, "b": 9}
    assert scheduled(engine) == {"a": 1, "b": 2, "c": 4}
    assert scheduled(engine) == {"a": 1, "b": 1, "c": 1}
    engine.drain()


def test_single_tokens_come_first_whatever_they_are() -> None:
    """A decode, then the last token of a chunked prompt, then longer chunks."""
    engine = FakeEngine(make_limits(max_num_batched_tokens=10))
    engine.add("a", prompt_of(1, 2))
    engine.add("b", prompt_of(2, 9))
    assert scheduled(engine) == {"a": 2, "b": 8}
    engine.add("c", prompt_of(3, 3))
    engine.add("d", prompt_of(4, 1))
    plan = engine.step()
    assert plan is not None
    assert ids_of(engine, plan) == ["a", "b", "d", "c"]
    assert (plan.num_tokens, plan.num_fed, plan.samples) == ([1, 1, 1, 3], [0, 1, 1, 3], [True] * 4)
    assert plan.total_tokens == 6
    engine.drain()


def test_a_budget_below_the_number_of_rows_serves_the_first_in_line() -> None:
    engine = FakeEngine(make_limits(max_num_batched_tokens=2))
    for name in range(3):
        engine.add(str(name), prompt_of(name, 1), max_tokens=3)
    order = [list(scheduled(engine)) for _ in range(5)]
    assert order == [["0", "1"], ["0", "1"], ["0", "1"], ["2"], ["2"]]
    engine.drain()


@pytest.mark.parametrize(("threshold", "chunk"), [(0, 63), (6, 6)])
def test_long_prefill_threshold_leaves_room_for_others(threshold: int, chunk: int) -> None:
    engine = FakeEngine(make_limits(long_prefill_token_threshold=threshold))
    engine.add("a", prompt_of(1, 2), max_tokens=20)
    engine.step()
    engine.add("b", prompt_of(2, 100))
    engine.add("c", prompt_of(3, 30))
    assert scheduled(engine)["b"] == chunk
    engine.drain()


def test_long_prefill_threshold_does_not_slow_a_lone_request() -> None:
    engine = FakeEngine(make_limits(long_prefill_token_threshold=6))
    engine.add("a", prompt_of(1, 50))
    assert scheduled(engine) == {"a": 50}
    engine.drain()


def test_rows_are_limited_and_reused() -> None:
    engine = FakeEngine(make_limits(max_num_seqs=2))
    for name in range(5):
        engine.add(str(name), prompt_of(name, 3), max_tokens=2)
    assert list(scheduled(engine)) == ["0", "1"]
    assert engine.scheduler.stats().num_waiting == 3
    engine.drain()
    assert {row for plan in engine.plans for row in plan.rows} == {0, 1}


def test_a_new_row_carries_all_that_the_runner_needs() -> None:
    engine = FakeEngine(make_limits())
    engine.add("a", [5, 6], eos_token_ids=[0, 9], stop_token_ids=[7, 9], bad_words_token_ids=[[1, 2]], min_tokens=1, ignore_eos=True)
    plan = engine.step()
    assert plan is not None
    (new,) = plan.new_rows
    assert (new.request_id, new.prompt_token_ids, new.output_token_ids) == ("a", [5, 6], [])
    assert (new.stop_token_ids, new.bad_words_token_ids) == ([0, 9, 7], [[1, 2]])
    engine.drain()


# --- admission ---


def test_a_request_starts_only_if_its_whole_prompt_fits() -> None:
    engine = FakeEngine(make_limits(num_blocks=11, max_num_batched_tokens=8))
    engine.add("a", prompt_of(1, 21), max_tokens=3)
    engine.add("b", prompt_of(2, 17), max_tokens=3)
    steps = [list(scheduled(engine)) for _ in range(6)]
    assert steps == [["a"]] * 5 + [["b"]], "b's first chunk would have fitted from the third step on"
    engine.drain()
    assert engine.scheduler.stats().num_preemptions == 0


def test_nobody_overtakes_a_request_that_does_not_fit() -> None:
    engine = FakeEngine(make_limits(num_blocks=11))
    engine.add("a", prompt_of(1, 30), max_tokens=3)
    engine.add("b", prompt_of(2, 30), max_tokens=3)
    engine.add("c", prompt_of(3, 1), max_tokens=3)
    assert list(scheduled(engine)) == ["a"]
    engine.drain()
    first_steps = {name: index for index, plan in reversed(list(enumerate(engine.plans))) for name in [new.request_id for new in plan.new_rows]}
    assert first_steps["b"] == first_steps["c"] > first_steps["a"]


def test_the_watermark_stays_free_while_others_run_and_is_ignored_when_nothing_does() -> None:
    engine = FakeEngine(make_limits(num_blocks=11, watermark=0.3))
    engine.add("a", prompt_of(1, 13), max_tokens=3)
    engine.add("b", prompt_of(2, 13), max_tokens=3)
    assert list(scheduled(engine)) == ["a"], "4 + 4 of 10 blocks would leave 2, not 3"
    engine.add("c", prompt_of(3, 40), max_tokens=3)
    engine.drain()
    assert engine.received["c"].finish_reason == "length"


def test_idle_hits_count_as_taken_blocks() -> None:
    """A hit on a block that nobody holds uses up a free one; one on a held block does not."""
    engine = FakeEngine(make_limits(num_blocks=11))
    engine.add("a", prompt_of(1, 24), max_tokens=1)
    engine.drain()
    engine.add("b", prompt_of(2, 20), max_tokens=2)
    engine.add("c", prompt_of(1, 24), max_tokens=2)
    assert list(scheduled(engine)) == ["b"], "5 + 6 of 10 blocks, 5 of the 6 cached but idle"
    engine.drain()
    engine.add("d", prompt_of(1, 24), max_tokens=2)
    engine.add("e", prompt_of(1, 24), max_tokens=2)
    engine.add("f", prompt_of(1, 24), max_tokens=2)
    assert list(scheduled(engine)) == ["d", "e", "f"], "6 + 1 + 1"
    engine.drain()


# --- preemption ---


def test_under_fcfs_the_last_to_come_is_preempted_and_first_to_return() -> None:
    engine = FakeEngine(make_limits(num_blocks=10))
    for name in range(3):
        engine.add(str(name), prompt_of(name, 8), max_tokens=10)
    engine.add("late", prompt_of(9, 16), max_tokens=10)
    order: list[list[str]] = []
    while engine.scheduler.has_work:
        plan = engine.step()
        order.append(sorted(ids_of(engine, plan)))
    starts = [new.request_id for plan in engine.plans for new in plan.new_rows]
    assert order[:10] == [["0", "1", "2"]] * 5 + [["0", "1"]] * 4 + [["0"]], "9 blocks: three times 3, then twice 4, then 5"
    assert starts[:5] == ["0", "1", "2", "1", "2"]
    assert starts.index("late") > 4
    for name in range(3):
        received = engine.received[str(name)]
        assert received.tokens == generate_reference(prompt_of(name, 8), 10, 1000)
        assert received.last is not None
        assert received.last.num_preemptions == starts.count(str(name)) - 1
    assert engine.scheduler.stats().num_preemptions == len(starts) - 4
    engine.check_idle()


def test_nobody_starts_in_a_step_that_preempted() -> None:
    engine = FakeEngine(make_limits(num_blocks=9))
    engine.add("a", prompt_of(1, 16), max_tokens=20)
    engine.add("b", prompt_of(2, 15), max_tokens=20)
    engine.step()
    engine.step()
    engine.add("tiny", prompt_of(3, 1), max_tokens=1)
    assert list(scheduled(engine)) == ["a"], "b lost its four blocks, a took one; tiny would fit but waits behind b"
    assert engine.scheduler.stats().num_preemptions == 1
    engine.drain()


def test_a_request_may_have_to_preempt_itself() -> None:
    engine = FakeEngine(make_limits(num_blocks=9))
    engine.add("a", prompt_of(1, 13), max_tokens=20)
    engine.add("b", prompt_of(2, 16), max_tokens=20)
    engine.step()
    assert list(scheduled(engine)) == ["a"], "b needs a fifth block at once, and is the last in line"
    engine.drain()
    assert engine.received["b"].last.num_preemptions >= 1  # type: ignore[union-attr]
    assert engine.received["b"].tokens == generate_reference(prompt_of(2, 16), 17, 1000)


def test_the_budget_and_place_of_a_preempted_request_are_free_in_the_same_step() -> None:
    """vLLM #23347: a victim that already had tokens in this step kept its share. Here victims come from behind, so they never have any."""
    engine = FakeEngine(make_limits(num_blocks=7, policy="priority", max_num_batched_tokens=20))
    engine.add("low", prompt_of(1, 7), max_tokens=12, priority=5)
    engine.step()
    engine.add("high", prompt_of(2, 12), max_tokens=12, priority=1)
    plan = engine.step()
    assert ids_of(engine, plan) == ["low", "high"]
    plan = engine.step()
    assert ids_of(engine, plan) == ["high"], "high needs a block; low, which runs longer, goes"
    engine.drain()
    assert engine.received["low"].tokens == generate_reference(prompt_of(1, 7), 12, 1000)


def test_the_priority_victim_is_the_worst_priority_then_the_latest() -> None:
    engine = FakeEngine(make_limits(num_blocks=13, policy="priority"))
    for name, priority in [("a", 3), ("b", 1), ("c", 3), ("d", 2)]:
        engine.add(name, prompt_of(ord(name), 12), max_tokens=8, priority=priority)
    engine.step()
    assert [request.request_id for request in engine.scheduler.running] == ["b", "d", "a", "c"]
    while engine.scheduler.stats().num_preemptions == 0:
        engine.step()
    assert [request.request_id for request in engine.scheduler.running] == ["b", "d", "a"]
    engine.drain()


def test_priority_orders_the_queue_and_fcfs_ignores_it() -> None:
    for policy, expected in [("priority", ["c", "b", "d", "a"]), ("fcfs", ["a", "b", "c", "d"])]:
        engine = FakeEngine(make_limits(policy=policy, max_num_seqs=1))
        for name, priority in [("a", 7), ("b", 0), ("c", -3), ("d", 0)]:
            engine.add(name, prompt_of(ord(name), 3), max_tokens=2, priority=priority)
        engine.drain()
        assert [new.request_id for plan in engine.plans for new in plan.new_rows] == expected


def test_a_preempted_request_starts_over_with_its_tokens_and_finds_its_blocks() -> None:
    engine = FakeEngine(make_limits(num_blocks=9))
    engine.add("a", prompt_of(1, 12), max_tokens=7)
    engine.add("b", prompt_of(2, 12), max_tokens=12)
    engine.drain()
    again = [new for plan in engine.plans for new in plan.new_rows if new.request_id == "b"][1]
    assert again.prompt_token_ids == prompt_of(2, 12)
    assert again.output_token_ids == engine.received["b"].tokens[: len(again.output_token_ids)]
    assert again.output_token_ids
    plan = next(plan for plan in engine.plans if again in plan.new_rows)
    assert plan.num_computed[plan.rows.index(again.row)] >= 8, "recomputed from the prefix cache"
    assert engine.received["b"].num_cached_tokens == 0, "its own blocks are no hits"
    assert engine.scheduler.stats().prefix_hits == 0
    assert engine.scheduler.stats().prefix_queries == 24
