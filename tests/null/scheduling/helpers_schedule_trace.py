"""Schedule traces: every call to a scheduler and everything it answered, as a JSON file with one event a line.

`python tests/null/scheduling/helpers_schedule_trace.py` records them anew, which a change of behaviour must do knowingly; a refactor must
replay them bit for bit. Traces carry results too, so that replay needs no runner.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from helpers_fake_engine import Clock, FakeEngine, make_limits

from trivium.protocol.messages import AddRequest, EngineStats, TokenOutput
from trivium.scheduling import Scheduler, SchedulerLimits, StepPlan, StepResult

TRACES = Path(__file__).parent / "traces"


class Added(msgspec.Struct, tag="add"):
    message: AddRequest


class Aborted(msgspec.Struct, tag="abort"):
    request_ids: list[str]
    outputs: list[TokenOutput]


class Scheduled(msgspec.Struct, tag="schedule"):
    plan: StepPlan | None


class Updated(msgspec.Struct, tag="update"):
    result: StepResult
    outputs: list[TokenOutput]


class Ended(msgspec.Struct, tag="end"):
    stats: EngineStats


Event = Added | Aborted | Scheduled | Updated | Ended


class Recorder(Scheduler):
    """Notes each call with a copy of its answer (a plan and an output may be looked at, a list in them may live on)."""

    def __init__(self, limits: SchedulerLimits) -> None:
        super().__init__(limits, clock=Clock())
        self.events: list[bytes] = []

    def _note(self, event: Event) -> None:
        self.events.append(msgspec.json.encode(event))

    def add(self, message: AddRequest) -> None:
        super().add(message)
        self._note(Added(message))

    def abort(self, request_ids: Iterable[str]) -> list[TokenOutput]:
        names = list(request_ids)
        outputs = super().abort(names)
        self._note(Aborted(names, outputs))
        return outputs

    def schedule(self) -> StepPlan | None:
        plan = super().schedule()
        self._note(Scheduled(plan))
        return plan

    def update(self, result: StepResult) -> list[TokenOutput]:
        outputs = super().update(result)
        self._note(Updated(result, outputs))
        return outputs


def save(path: Path, limits: SchedulerLimits, events: list[bytes]) -> None:
    path.write_bytes(b"[\n" + b",\n".join([msgspec.json.encode(limits), *events]) + b"\n]\n")


def load(path: Path) -> tuple[SchedulerLimits, list[Event]]:
    first, *events = msgspec.json.decode(path.read_bytes(), type=list[msgspec.Raw])
    return msgspec.json.decode(first, type=SchedulerLimits), [msgspec.json.decode(event, type=Event) for event in events]


def replay(limits: SchedulerLimits, events: list[Event]) -> list[bytes]:
    """The same calls to a new scheduler; what it notes."""
    scheduler = Recorder(limits)
    for event in events:
        match event:
            case Added():
                scheduler.add(event.message)
            case Aborted():
                scheduler.abort(event.request_ids)
            case Scheduled():
                scheduler.schedule()
            case Updated():
                scheduler.update(event.result)
            case Ended():
                scheduler._note(Ended(scheduler.stats()))
    return scheduler.events


def record(limits: SchedulerLimits, *, seed: int, depth: int) -> list[bytes]:
    """A mixed load with shared prefixes, chunks, preemptions, aborts, a failing row and all kinds of ends."""
    rng = random.Random(seed)
    engine = FakeEngine(limits, depth=depth, vocab_size=50)
    engine.scheduler = scheduler = Recorder(limits)
    engine.runner.poisoned_from["7"] = 9
    stem = [rng.randrange(50) for _ in range(16)]
    for name in range(14):
        prompt = stem[: rng.choice([0, 8, 16])] + [rng.randrange(50) for _ in range(rng.randint(1, 12))]
        if name == 7:
            prompt = [name] * 12
        changes: dict[str, Any] = {
            "max_tokens": rng.randint(1, 14),
            "eos_token_ids": [0, 1],
            "stop_token_ids": rng.choice([None, [7]]),
            "min_tokens": rng.choice([0, 1]),
            "prompt_logprobs": 1 if name == 6 else None,
            "logprobs": 1 if name in (6, 9) else None,
            "priority": rng.randint(0, 2),
            "cache_salt": "s" if name == 8 else None,
        }
        engine.add(str(name), prompt, **changes)
        for _ in range(rng.randint(0, 2)):
            engine.step()
        if name % 6 == 5:
            engine.abort(str(rng.randrange(name + 1)), "unknown")
    while scheduler.has_work:
        engine.step()
    scheduler.reset_prefix_cache()
    scheduler._note(Ended(scheduler.stats()))
    return scheduler.events


SCENARIOS: dict[str, tuple[SchedulerLimits, int, int]] = {
    "fcfs_depth_0": (make_limits(num_blocks=16, max_num_seqs=5, max_num_batched_tokens=16), 1, 0),
    "fcfs_depth_1": (make_limits(num_blocks=16, max_num_seqs=5, max_num_batched_tokens=16), 1, 1),
    "priority_depth_1": (
        make_limits(num_blocks=14, max_num_batched_tokens=24, policy="priority", long_prefill_token_threshold=6, watermark=0.1),
        2,
        1,
    ),
}
"""Name to (limits, seed, depth)."""


if __name__ == "__main__":
    TRACES.mkdir(exist_ok=True)
    for scenario, (scenario_limits, scenario_seed, scenario_depth) in SCENARIOS.items():
        save(TRACES / f"{scenario}.json", scenario_limits, record(scenario_limits, seed=scenario_seed, depth=scenario_depth))
