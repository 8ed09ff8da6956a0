"""Whatever arrives, in whatever order, with however little memory: each request gets exactly the tokens it would get alone.

The runner checks every plan, every block it reads and every input it is fed; the engine checks the pool after every call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from helpers_fake_engine import FakeEngine, Received, make_limits
from helpers_fake_runner import generate_reference
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from trivium.errors import InvalidRequest
from trivium.scheduling import SchedulerLimits

VOCAB = 7
MAX_EXAMPLES = 50
MAX_MODEL_LEN = 60
FUZZ = settings(max_examples=MAX_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@dataclass
class Arrival:
    prompt: list[int]
    changes: dict[str, Any]
    at_step: int
    abort_after: int | None
    """Steps after its arrival at which the client goes away."""
    poisoned_from: int | None = None


@dataclass
class Scenario:
    limits: SchedulerLimits
    arrivals: list[Arrival] = field(default_factory=list)


@st.composite
def limits_of(draw: st.DrawFn) -> SchedulerLimits:
    return make_limits(
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(1, 40)),
        max_model_len=MAX_MODEL_LEN,
        num_blocks=draw(st.integers(3, 30)),
        block_size=draw(st.sampled_from([1, 2, 4, 8])),
        watermark=draw(st.sampled_from([0.0, 0.1, 0.4])),
        enable_prefix_caching=draw(st.booleans()) or draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3, 10])),
    )


@st.composite
def arrival_of(draw: st.DrawFn, *, may_be_poisoned: bool = False) -> Arrival:
    # Prompts share long prefixes: they start with one of two sequences.
    stem = [draw(st.sampled_from([1, 2]))] * draw(st.integers(0, 20))
    prompt = stem + draw(st.lists(st.integers(0, VOCAB - 1), min_size=0 if stem else 1, max_size=8))
    max_tokens = draw(st.integers(1, 25))
    changes: dict[str, Any] = {
        "max_tokens": max_tokens,
        "min_tokens": draw(st.integers(0, max_tokens)) if draw(st.booleans()) else 0,
        "eos_token_ids": draw(st.sampled_from([[], [0]])),
        "ignore_eos": draw(st.booleans()),
        "stop_token_ids": draw(st.sampled_from([None, [3], [0, 5]])),
        "priority": draw(st.integers(-2, 2)),
        "cache_salt": draw(st.sampled_from([None, None, "", "x"])),
        "logprobs": draw(st.sampled_from([None, 1])),
        "prompt_logprobs": draw(st.sampled_from([None, None, 1])),
        "skip_reading_prefix_cache": draw(st.sampled_from([None, None, False, True])),
    }
    return Arrival(
        prompt=prompt,
        changes=changes,
        at_step=draw(st.integers(0, 30)),
        abort_after=draw(st.one_of(st.none(), st.none(), st.integers(0, 25))),
        poisoned_from=draw(st.one_of(st.none(), st.integers(0, 30))) if may_be_poisoned else None,
    )


@st.composite
def scenario_of(draw: st.DrawFn, *, may_be_poisoned: bool = False) -> Scenario:
    return Scenario(draw(limits_of()), draw(st.lists(arrival_of(may_be_poisoned=may_be_poisoned), min_size=1, max_size=10)))


def run(scenario: Scenario, *, depth: int) -> FakeEngine:
    engine = FakeEngine(scenario.limits, depth=depth, vocab_size=VOCAB)
    pending = sorted(enumerate(scenario.arrivals), key=lambda item: (item[1].at_step, item[0]))
    aborts: list[tuple[int, str]] = []
    step = 0
    while pending or engine.scheduler.has_work:
        while pending and pending[0][1].at_step <= step:
            index, arrival = pending.pop(0)
            name = str(index)
            if arrival.poisoned_from is not None:
                engine.runner.poisoned_from[name] = arrival.poisoned_from
            try:
                engine.add(name, arrival.prompt, **arrival.changes)
            except InvalidRequest:
                assert len(arrival.prompt) > scenario.limits.cache_tokens
            if arrival.abort_after is not None:
                aborts.append((step + arrival.abort_after, name))
        due = [name for at, name in aborts if at <= step]
        aborts = [(at, name) for at, name in aborts if at > step]
        if due:
            engine.abort(*due)
        engine.step()
        step += 1
        assert step < 5000, "no end"
    engine.check_idle()
    return engine


def expected_of(arrival: Arrival, limits: SchedulerLimits) -> tuple[list[int], str, int | None]:
    """(tokens, finish reason, stop reason) of the request when it runs alone."""
    changes, num_prompt = arrival.changes, len(arrival.prompt)
    count = min(changes["max_tokens"], MAX_MODEL_LEN - num_prompt, limits.cache_tokens + 1 - num_prompt)
    tokens = generate_reference(arrival.prompt, count, VOCAB)
    for index, token_id in enumerate(tokens):
        if index + 1 < changes["min_tokens"]:
            continue
        if token_id in changes["eos_token_ids"] and not changes["ignore_eos"]:
            return tokens[: index + 1], "stop", None
        if token_id in (changes["stop_token_ids"] or []):
            return tokens[: index + 1], "stop", token_id
    return tokens, "length", None


def check_received(arrival: Arrival, received: Received, limits: SchedulerLimits) -> None:
    tokens, reason, stop_reason = expected_of(arrival, limits)
    last = received.last
    assert last is not None
    assert received.tokens == tokens[: len(received.tokens)], "in order, none twice, none missing"
    if last.finish_reason in ("abort", "error"):
        assert last.finish_reason == "error" or arrival.abort_after is not None
    else:
        assert (received.tokens, last.finish_reason, last.stop_reason) == (tokens, reason, stop_reason)
    if received.tokens and arrival.changes["prompt_logprobs"] is not None:
        entries = received.prompt_logprobs
        assert entries is not None
        assert entries[0] is None
        assert [entry.token_id for entry in entries[1:] if entry] == arrival.prompt[1:]
        assert received.num_cached_tokens == 0
    else:
        assert received.prompt_logprobs is None
    assert [entry.token_id for entry in received.logprobs] == (received.tokens if arrival.changes["logprobs"] else [])
    assert len(received.scheduled_at) <= last.num_preemptions + 1
    if received.tokens:
        assert received.scheduled_at


@given(scenario=scenario_of(), depth=st.sampled_from([0, 1, 1, 2]))
@FUZZ
def test_every_request_gets_what_it_would_get_alone_and_ends_once(scenario: Scenario, depth: int) -> None:
    engine = run(scenario, depth=depth)
    for index, arrival in enumerate(scenario.arrivals):
        if str(index) in engine.received:
            check_received(arrival, engine.received[str(index)], scenario.limits)
    stats = engine.scheduler.stats()
    event("preempted" if stats.num_preemptions else "not preempted")
    event("hits" if stats.prefix_hits else "no hits")
    assert stats.generation_tokens == sum(len(received.tokens) for received in engine.received.values())


@given(scenario=scenario_of())
@FUZZ
def test_depth_makes_no_difference_to_what_clients_get(scenario: Scenario) -> None:
    for arrival in scenario.arrivals:
        arrival.abort_after = None
    outcomes = [run(scenario, depth=depth).received for depth in (0, 1)]
    seen = [{name: (r.tokens, r.logprobs, r.prompt_logprobs, r.finish_reason) for name, r in received.items()} for received in outcomes]
    assert seen[0] == seen[1]


@given(scenario=scenario_of(may_be_poisoned=True), depth=st.sampled_from([0, 1]))
@FUZZ
def test_requests_whose_numbers_go_wrong_fail_and_the_cache_is_clean_again(scenario: Scenario, depth: int) -> None:
    """Others may share the bad blocks while they are computed, and fail too; afterwards every prompt runs."""
    engine = run(scenario, depth=depth)
    is_poisoned = any(arrival.poisoned_from is not None for arrival in scenario.arrivals)
    for index, arrival in enumerate(scenario.arrivals):
        name = str(index)
        if name not in engine.received:
            continue
        check_received(arrival, engine.received[name], scenario.limits)
        assert is_poisoned or engine.received[name].finish_reason != "error"
    # Aborted culprits may have left bad blocks that nobody has read yet. The first to read them fails and cleans up.
    engine.runner.poisoned_from.clear()
    for index, arrival in enumerate(scenario.arrivals):
        arrival.abort_after = None
        for attempt in range(2 + len(scenario.arrivals)):
            name = f"{index}-{attempt}"
            if str(index) not in engine.received:
                break
            engine.add(name, arrival.prompt, **arrival.changes)
            engine.drain()
            if engine.received[name].finish_reason != "error":
                break
        else:
            raise AssertionError("a bad block stays findable")


@given(
    priorities=st.lists(st.tuples(st.integers(-2, 2), st.integers(1, 20), st.integers(1, 20), st.integers(0, 12)), min_size=1, max_size=12),
    num_blocks=st.integers(7, 16),
    depth=st.sampled_from([0, 1]),
)
@FUZZ
def test_priority_decides_who_starts_and_who_goes(priorities: list[tuple[int, int, int, int]], num_blocks: int, depth: int) -> None:
    """Nobody starts before a better request that waits and could start; a victim is never better than one that stays."""
    engine = FakeEngine(make_limits(policy="priority", num_blocks=num_blocks, max_num_seqs=4, max_num_batched_tokens=24), depth=depth)
    keys: dict[str, tuple[int, int]] = {}
    arrivals = sorted(enumerate(priorities), key=lambda item: (item[1][3], item[0]))
    step = 0
    while arrivals or engine.scheduler.has_work:
        while arrivals and arrivals[0][1][3] <= step:
            index, (priority, prompt_len, max_tokens, _) = arrivals.pop(0)
            keys[str(index)] = (priority, len(keys))
            engine.add(str(index), [index * 100 + position for position in range(prompt_len)], max_tokens=max_tokens, priority=priority)
        before = {request.request_id for request in engine.scheduler.running}
        plan = engine.schedule()
        after = {request.request_id for request in engine.scheduler.running}
        waiting = {name for name in engine.scheduler._requests if name not in after}
        if started := after - before:
            assert max(keys[name] for name in started) < min((keys[name] for name in waiting), default=(99, 0))
            assert not before - after, "none starts in a step that preempted"
        if victims := before - after:
            assert min(keys[name] for name in victims) > max((keys[name] for name in after), default=(-99, 0))
        while engine.results and (plan is None or len(engine.results) > depth):
            engine.update()
        step += 1
        assert step < 3000
    for index, (_, prompt_len, max_tokens, _) in enumerate(priorities):
        prompt = [index * 100 + position for position in range(prompt_len)]
        count = min(max_tokens, engine.scheduler.limits.cache_tokens + 1 - prompt_len)
        assert engine.received[str(index)].tokens == generate_reference(prompt, count, 1000)
