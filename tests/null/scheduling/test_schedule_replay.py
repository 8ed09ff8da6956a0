from __future__ import annotations

import dataclasses

import msgspec
import pytest
from helpers_schedule_trace import SCENARIOS, TRACES, Scheduled, Updated, load, record, replay

HOW = "the schedule changed: if that is meant, run helpers_schedule_trace.py to record it anew"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_recorded_schedule_replays_bit_for_bit(name: str) -> None:
    limits, events = load(TRACES / f"{name}.json")
    again = replay(limits, events)
    for number, (event, noted) in enumerate(zip(events, again, strict=True)):
        assert noted == msgspec.json.encode(event), f"event {number}: {HOW}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_recording_is_reproducible_and_matches_the_file(name: str) -> None:
    limits, seed, depth = SCENARIOS[name]
    stored_limits, events = load(TRACES / f"{name}.json")
    assert stored_limits == limits
    assert record(limits, seed=seed, depth=depth) == [msgspec.json.encode(event) for event in events], HOW


def test_traces_contain_what_they_are_for() -> None:
    for name in SCENARIOS:
        _, events = load(TRACES / f"{name}.json")
        plans = [event.plan for event in events if isinstance(event, Scheduled) and event.plan]
        outputs = [output for event in events if isinstance(event, Updated) for output in event.outputs]
        assert {output.finish_reason for output in outputs} >= {None, "stop", "length", "error"}
        assert any(output.num_preemptions for output in outputs), name
        assert any(output.num_cached_tokens for output in outputs)
        assert any(output.prompt_logprobs for output in outputs)
        assert any(not all(plan.samples) for plan in plans), "chunked prefill"
        assert any(new.output_token_ids for plan in plans for new in plan.new_rows), "a new start after a preemption"


def test_replay_notices_a_changed_policy() -> None:
    limits, events = load(TRACES / "fcfs_depth_1.json")
    first_plan = next(index for index, event in enumerate(events) if isinstance(event, Scheduled))
    again = replay(dataclasses.replace(limits, max_num_batched_tokens=5), events[: first_plan + 1])
    assert again[first_plan] != msgspec.json.encode(events[first_plan])
