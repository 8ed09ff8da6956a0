"""How requests end, and what they leave behind: stops, aborts, failures, logprobs, statistics."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import pytest
from helpers_fake_engine import FakeEngine, make_add, make_limits
from helpers_fake_runner import generate_reference

from trivium.scheduling import Scheduler, SchedulerLimits, StepPlan, StepResult
from trivium.scheduling.request import Request
from trivium.scheduling.scheduler import MAX_STEP_SAMPLES


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


# --- ends ---


def stops(engine: FakeEngine, **changes: Any) -> tuple[list[int], str | None, int | None]:
    engine.add("a", [1, 2, 3], **changes)
    engine.drain()
    received = engine.received["a"]
    assert received.last is not None
    return received.tokens, received.last.finish_reason, received.last.stop_reason


TOKENS = generate_reference([1, 2, 3], 12, 1000)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    ("changes", "count", "reason", "stop_reason"),
    [
        ({"max_tokens": 5}, 5, "length", None),
        ({"max_tokens": 1}, 1, "length", None),
        ({"eos_token_ids": [TOKENS[3]]}, 4, "stop", None),
        ({"eos_token_ids": [TOKENS[3]], "max_tokens": 4}, 4, "stop", None),
        ({"eos_token_ids": [TOKENS[3]], "ignore_eos": True, "max_tokens": 6}, 6, "length", None),
        ({"stop_token_ids": [TOKENS[2], TOKENS[3]]}, 3, "stop", TOKENS[2]),
        ({"stop_token_ids": [TOKENS[2]], "min_tokens": 4, "max_tokens": 6}, 6, "length", None),
        ({"stop_token_ids": [TOKENS[2]], "min_tokens": 3}, 3, "stop", TOKENS[2]),
        ({"stop_token_ids": [TOKENS[2]], "min_tokens": 3, "max_tokens": 3}, 3, "stop", TOKENS[2]),
        ({"stop_token_ids": [TOKENS[2]], "min_tokens": 4, "max_tokens": 4, "eos_token_ids": [TOKENS[2]]}, 4, "length", None),
        ({"stop_token_ids": [TOKENS[2]], "eos_token_ids": [TOKENS[2]]}, 3, "stop", None),
        ({"stop_token_ids": [TOKENS[2]], "eos_token_ids": [TOKENS[2]], "ignore_eos": True}, 3, "stop", TOKENS[2]),
    ],
)
def test_where_a_request_stops(depth: int, changes: dict[str, Any], count: int, reason: str, stop_reason: int | None) -> None:
    assert stops(FakeEngine(make_limits(), depth=depth), **{"max_tokens": 12, **changes}) == (TOKENS[:count], reason, stop_reason)


def test_logprobs_come_with_each_token_of_those_who_asked() -> None:
    engine = FakeEngine(make_limits())
    engine.add("a", [1, 2, 3], logprobs=1)
    engine.add("b", [4, 5, 6])
    engine.drain()
    assert [entry.token_id for entry in engine.received["a"].logprobs] == engine.received["a"].tokens
    assert engine.received["b"].logprobs == []


# --- aborts ---


def test_abort_in_every_state_frees_at_once() -> None:
    engine = FakeEngine(make_limits(num_blocks=11), depth=1)
    engine.add("running", prompt_of(1, 16), max_tokens=30)
    engine.add("preempted", prompt_of(2, 16), max_tokens=30)
    engine.add("waiting", prompt_of(3, 30), max_tokens=30)
    while engine.scheduler.stats().num_preemptions == 0:
        engine.step()
    assert engine.scheduler.num_in_flight == 1
    engine.abort("running", "preempted", "waiting", "unknown", "running")
    assert not engine.scheduler.running
    assert engine.scheduler.pool.num_free == 10
    assert {received.finish_reason for received in engine.received.values()} == {"abort"}
    assert engine.received["preempted"].last.num_preemptions == 1  # type: ignore[union-attr]
    assert engine.scheduler.has_work, "a result is still to come"
    engine.drain()
    engine.abort("running")


def test_aborting_all_children_of_one_prompt_leaves_nothing() -> None:
    """vLLM PR 14326: abort with n > 1 left children running."""
    engine = FakeEngine(make_limits(), depth=1)
    children = [f"a-{index}" for index in range(4)]
    for child in children:
        engine.add(child, prompt_of(1, 12), seed=1)
    engine.step()
    engine.step()
    engine.abort(*children)
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_usable
    engine.drain()


def test_an_id_may_be_used_again_while_its_aborted_predecessor_is_in_flight() -> None:
    engine = FakeEngine(make_limits(), depth=1)
    engine.add("a", prompt_of(1, 5))
    engine.schedule()
    engine.abort("a")
    engine.add("a", prompt_of(2, 5))
    engine.drain()
    assert engine.received["a"].tokens == generate_reference(prompt_of(2, 5), 8, 1000)


# --- failures ---


@pytest.mark.parametrize("depth", [0, 1])
def test_a_failed_row_fails_alone_and_none_of_its_blocks_is_found_again(depth: int) -> None:
    engine = FakeEngine(make_limits(max_num_batched_tokens=20), depth=depth)
    engine.add("good", prompt_of(1, 6), max_tokens=12)
    engine.add("bad", prompt_of(2, 30), max_tokens=12)
    engine.runner.poisoned_from["bad"] = 5
    engine.drain()
    last = engine.received["bad"].last
    assert last is not None
    assert (last.finish_reason, last.error_slug, last.error_message) == ("error", "generation_failed", "logits are not finite")
    assert engine.received["bad"].tokens == []
    assert engine.received["good"].tokens == generate_reference(prompt_of(1, 6), 12, 1000)
    engine.add("again", prompt_of(2, 30))
    engine.drain()
    assert engine.received["again"].num_cached_tokens == 0
    assert engine.received["again"].tokens == generate_reference(prompt_of(2, 30), 8, 1000)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_block_that_a_failing_step_completes_is_never_found(depth: int) -> None:
    engine = FakeEngine(make_limits(), depth=depth)
    engine.add("a", prompt_of(1, 5), max_tokens=12)
    engine.runner.poisoned_from["a"] = 7
    engine.drain()
    assert engine.received["a"].finish_reason == "error"
    assert len(engine.received["a"].tokens) == 3
    assert engine.scheduler.pool.num_hashes == 0


def test_blocks_of_an_earlier_residency_and_hits_are_forgotten_too() -> None:
    """The culprit may have been preempted, or aborted before anybody noticed, and left bad blocks behind."""
    engine = FakeEngine(make_limits(max_num_batched_tokens=16), depth=1)
    engine.add("culprit", prompt_of(1, 40))
    engine.runner.poisoned_from["culprit"] = 5
    engine.schedule()
    engine.abort("culprit")
    engine.add("victim", prompt_of(1, 40))
    engine.drain()
    assert engine.received["victim"].finish_reason == "error"
    engine.add("again", prompt_of(1, 40))
    engine.drain()
    assert engine.received["again"].finish_reason == "length"


def test_a_failure_that_arrives_after_the_end_still_cleans_the_cache() -> None:
    engine = FakeEngine(make_limits(), depth=1)
    engine.add("a", prompt_of(1, 8))
    engine.runner.poisoned_from["a"] = 5
    engine.schedule()
    engine.abort("a")
    engine.update()
    assert engine.scheduler.pool.num_hashes == 0
    assert engine.received["a"].finish_reason == "abort"


def test_a_preempted_request_can_fail_stop_and_be_aborted_by_what_is_in_flight() -> None:
    for end in ("error", "stop", "abort"):
        engine = FakeEngine(make_limits(num_blocks=11), depth=1)
        engine.add("a", prompt_of(1, 16), max_tokens=30)
        engine.add("b", prompt_of(2, 16), max_tokens=30, stop_token_ids=generate_reference(prompt_of(2, 16), 5, 1000)[4:] if end == "stop" else None)
        if end == "error":
            engine.runner.poisoned_from["b"] = 19
        while engine.scheduler.stats().num_preemptions == 0:
            plan = engine.schedule()
            assert plan is not None
            if engine.scheduler.stats().num_preemptions == 0 and len(engine.results) > 1:
                engine.update()
        if end == "abort":
            engine.abort("b")
        while engine.results:
            engine.update()
        assert engine.received["b"].finish_reason == end
        engine.drain()
        assert engine.received["a"].finish_reason == "length"


# --- prompt logprobs, times, statistics ---


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("budget", [3, 7, 64])
def test_prompt_logprobs_are_whole_under_chunking_and_come_once(budget: int, depth: int) -> None:
    """vLLM #14239."""
    engine = FakeEngine(make_limits(max_num_batched_tokens=budget), depth=depth)
    engine.add("a", prompt_of(1, 20), prompt_logprobs=1)
    engine.add("b", [4], prompt_logprobs=0)
    engine.drain()
    entries = engine.received["a"].prompt_logprobs
    assert entries is not None
    assert entries[0] is None
    assert [entry.token_id for entry in entries[1:] if entry] == prompt_of(1, 20)[1:]
    assert engine.received["b"].prompt_logprobs == [None]


@pytest.mark.parametrize("depth", [0, 1])
def test_prompt_logprobs_survive_a_preemption_in_mid_prompt(depth: int) -> None:
    engine = FakeEngine(make_limits(num_blocks=11, max_num_batched_tokens=4), depth=depth)
    engine.add("a", prompt_of(1, 7), max_tokens=30)
    engine.step()
    engine.step()
    engine.add("b", prompt_of(2, 28), prompt_logprobs=1, max_tokens=3)
    engine.drain()
    received = engine.received["b"]
    assert received.last is not None
    assert received.last.num_preemptions > 0
    assert received.prompt_logprobs is not None
    assert [entry.token_id for entry in received.prompt_logprobs[1:] if entry] == prompt_of(2, 28)[1:]
    assert len(received.scheduled_at) == received.last.num_preemptions + 1, "each start is told, also one that brought no token"
    assert received.scheduled_at == sorted(set(received.scheduled_at))


def test_notices_of_earlier_starts_go_before_an_abort() -> None:
    engine = FakeEngine(make_limits(num_blocks=11, max_num_batched_tokens=4))
    engine.add("a", prompt_of(1, 7), max_tokens=30)
    engine.step()
    engine.step()
    engine.add("b", prompt_of(2, 28))
    starts = 0
    while starts < 2:
        plan = engine.schedule()
        assert plan is not None
        starts += sum(new.request_id == "b" for new in plan.new_rows)
        if starts < 2:
            engine.update()
    engine.abort("b")
    assert len(engine.received["b"].scheduled_at) == 2
    engine.drain()


def test_statistics_count_tokens() -> None:
    engine = FakeEngine(make_limits())
    engine.add("a", list(range(10)), max_tokens=3)
    engine.add("b", list(range(10)), max_tokens=3)
    engine.step()
    stats = engine.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_blocks, stats.num_free_blocks) == (2, 0, 63, 59)
    assert (stats.prompt_tokens, stats.generation_tokens, stats.prefix_queries, stats.prefix_hits) == (20, 2, 20, 8)
    assert (stats.num_steps, stats.step_tokens) == (1, [12])
    engine.drain()
    engine.add("c", list(range(10)), max_tokens=1)
    assert engine.scheduler.stats().num_waiting == 1
    engine.drain()
    stats = engine.scheduler.stats()
    assert (stats.generation_tokens, stats.prompt_tokens, stats.num_steps, stats.num_preemptions) == (7, 30, 4, 0)


def test_step_sizes_are_told_once_and_do_not_pile_up() -> None:
    engine = FakeEngine(make_limits(max_model_len=5000, num_blocks=2000, block_size=16), is_checking=False)
    engine.runner.run = lambda plan: StepResult(step_id=plan.step_id, token_ids=[1] * sum(plan.samples))  # type: ignore[method-assign]
    engine.add("a", [1], max_tokens=4500)
    while engine.scheduler.has_work:
        engine.step()
    stats = engine.scheduler.stats()
    assert (stats.num_steps, len(stats.step_tokens)) == (4500, MAX_STEP_SAMPLES)
    assert engine.scheduler.stats().step_tokens == []


def test_no_state_of_a_finished_request_is_left() -> None:
    """vLLM's test_memory_leak."""
    engine = FakeEngine(make_limits(num_blocks=12, policy="priority"), depth=1)
    for name in range(40):
        engine.add(str(name), prompt_of(name, 9), max_tokens=9, priority=name % 3)
    references = [weakref.ref(request) for request in _requests_of(engine.scheduler)]
    assert len(references) == 40
    for step in range(30):
        engine.step()
        if step % 5 == 0:
            engine.abort(str(39 - step))
    engine.drain()
    gc.collect()
    assert not any(reference() for reference in references)
    assert not engine.scheduler.waiting._heap


def _requests_of(scheduler: Scheduler) -> list[Request]:
    return list(scheduler._requests.values())


class _WeakRequest(Request):
    __slots__ = ("__weakref__",)


@pytest.fixture(autouse=True)
def _weakly_referable_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.scheduling.scheduler.Request", _WeakRequest)


# --- misuse and speed ---


@pytest.mark.parametrize("result", [StepResult(step_id=1, token_ids=[5]), StepResult(step_id=0, token_ids=[])])
def test_results_out_of_order_or_of_the_wrong_length_are_our_bug(result: StepResult) -> None:
    scheduler = Scheduler(make_limits())
    scheduler.add(make_add("a", [1]))
    scheduler.schedule()
    with pytest.raises(AssertionError):
        scheduler.update(result)


@pytest.mark.parametrize("damage", ["lost block", "lost row", "lost request", "extra reference"])
def test_check_integrity_notices_leaks_without_walking_all_blocks(damage: str) -> None:
    scheduler = Scheduler(make_limits())
    scheduler.add(make_add("a", [1, 2, 3]))
    scheduler.schedule()
    scheduler.add(make_add("b", [1, 2, 3]))
    scheduler.check_integrity()
    if damage == "lost block":
        scheduler.pool.allocate(1)
    elif damage == "lost row":
        scheduler._free_rows.pop()
    elif damage == "lost request":
        scheduler.waiting.pop()
    else:
        scheduler.pool.touch(scheduler.running[0].block_ids)
    with pytest.raises(AssertionError):
        scheduler.check_integrity()


def test_a_thousand_decoding_rows_take_a_few_milliseconds() -> None:
    """The bound is generous; on one core of a quiet machine it takes about 0.5 ms."""
    limits = SchedulerLimits(max_num_seqs=1000, max_num_batched_tokens=8192, max_model_len=4096, num_blocks=20_000)
    scheduler = Scheduler(limits)
    for name in range(1000):
        scheduler.add(make_add(f"request-{name}", prompt_of(name, 20 + name % 16), max_tokens=200, eos_token_ids=[0]))
    times: list[float] = []
    for _ in range(60):
        start = time.perf_counter()
        plan = scheduler.schedule()
        assert plan is not None
        taken = time.perf_counter() - start
        result = StepResult(step_id=plan.step_id, token_ids=[1] * sum(plan.samples))
        start = time.perf_counter()
        scheduler.update(result)
        if len(plan.rows) == 1000 == plan.total_tokens:
            times.append(taken + time.perf_counter() - start)
    assert len(times) > 40
    assert sorted(times)[len(times) // 2] < 0.008
