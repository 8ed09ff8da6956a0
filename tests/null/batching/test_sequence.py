"""Sequence batching: slots, strategies, the backlog and what ends a sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers_simulation import MS, Outcome, simulate

from trivium.batching.pending import Pending
from trivium.batching.sequence import SequenceBatcher, sequence_of
from trivium.batching.settings import BatchSettings, SequenceSettings
from trivium.errors import InvalidRequest
from trivium.infer import CorrelationId

DIRECT = SequenceSettings(max_batch_size=2, num_slots=2, max_idle_ns=2_000 * MS)
OLDEST = SequenceSettings(max_batch_size=2, num_slots=4, max_idle_ns=2_000 * MS, batches=BatchSettings(max_batch_size=2, preferred_sizes=(2,)))


def null(template: Pending) -> Pending:
    made = Pending(arrival_ns=template.arrival_ns)
    made.is_cancelled = True
    return made


def batcher(settings: SequenceSettings, num_instances: int = 1) -> SequenceBatcher[Pending]:
    return SequenceBatcher(settings, model="seq", num_instances=num_instances, make_null=null)


def part(correlation_id: CorrelationId, flags: str = "") -> Pending:
    return Pending(arrival_ns=0, correlation_id=correlation_id, sequence_start="S" in flags, sequence_end="E" in flags)


def rows(batch: list[Pending]) -> list[CorrelationId | None]:
    return [None if pending.place is None else pending.correlation_id for pending in batch]


def run_all(scheduler: SequenceBatcher[Pending], now_ns: int = 0, instance: int = 0) -> list[list[CorrelationId | None]]:
    found: list[list[CorrelationId | None]] = []
    while batch := scheduler.take(instance, now_ns):
        found.append(rows(batch))
        scheduler.finish(instance, batch, now_ns)
    return found


@pytest.mark.parametrize("settings", [DIRECT, OLDEST])
def test_what_is_refused_is_refused_with_tritons_words(settings: SequenceSettings) -> None:
    scheduler = batcher(settings)
    for pending in (part(7, "S"), part(7), part(7, "E")):
        scheduler.add(pending, 0)
    with pytest.raises(
        InvalidRequest, match="^inference request for sequence 7 to model 'seq' must specify the START flag on the first request of the sequence$"
    ):
        scheduler.add(part(7), 0)
    with pytest.raises(InvalidRequest, match="for sequence abc to model"):
        scheduler.add(part("abc"), 0)
    for nothing in (0, ""):
        with pytest.raises(InvalidRequest, match="^inference request to model 'seq' must specify a non-zero or non-empty correlation ID$"):
            scheduler.add(part(nothing, "S"), 0)
    two_rows = part(9, "S")
    two_rows.batch_size = 2
    with pytest.raises(InvalidRequest, match="must specify batch-size 1 due to requirements of sequence batcher"):
        scheduler.add(two_rows, 0)
    assert run_all(scheduler) == [[7], [7], [7]]
    assert len(scheduler) == 0


def test_direct_gives_each_sequence_its_row_and_fills_the_gaps() -> None:
    scheduler = batcher(DIRECT)
    scheduler.add(part("a", "S"), 0)
    scheduler.add(part("b", "S"), 0)
    assert run_all(scheduler) == [["a", "b"]]
    scheduler.add(part("b"), 1)
    assert run_all(scheduler) == [[None, "b"]]
    scheduler.add(part("a"), 2)
    assert run_all(scheduler) == [["a"]]


def test_direct_waits_for_enough_slots_but_not_longer_than_the_delay() -> None:
    settings = SequenceSettings(max_batch_size=4, num_slots=4, max_idle_ns=10_000 * MS, max_delay_ns=100 * MS, min_utilization=0.5)
    arrivals = [(0.0, part(1, "S")), (10.0, part(2, "S")), (50.0, part(1))]
    outcome: Outcome = simulate(batcher(settings), arrivals)
    assert outcome.started_ms == [10, 150]


def test_oldest_batches_across_sequences_one_request_of_each_at_a_time() -> None:
    scheduler = batcher(OLDEST)
    for pending in (part(1, "S"), part(1), part(1), part(2, "S"), part(3, "S")):
        scheduler.add(pending, 0)
    assert run_all(scheduler) == [[1, 2], [3, 1], [1]]


def test_oldest_never_runs_two_requests_of_a_sequence_at_once() -> None:
    scheduler = batcher(OLDEST)
    scheduler.add(part(1, "S"), 0)
    scheduler.add(part(1), 0)
    first = scheduler.take(0, 0)
    assert len(first) == 1
    assert not scheduler.is_ready(0, 0)
    scheduler.finish(0, first, 0)
    assert scheduler.is_ready(0, 0)


@pytest.mark.parametrize("settings", [DIRECT, SequenceSettings(max_batch_size=2, num_slots=2, max_idle_ns=2_000 * MS, batches=OLDEST.batches)])
def test_without_a_free_slot_a_sequence_waits_until_one_ends(settings: SequenceSettings) -> None:
    scheduler = batcher(settings)
    for pending in (part(1, "S"), part(2, "S"), part(3, "S"), part(3, "E")):
        scheduler.add(pending, 0)
    assert run_all(scheduler) == [[1, 2]]
    assert len(scheduler) == 2
    scheduler.add(part(1, "E"), 0)
    ran = run_all(scheduler)
    assert [correlation_id for batch in ran for correlation_id in batch if correlation_id] == [1, 3, 3]


def test_sequences_spread_over_instances_and_stay_there() -> None:
    scheduler = batcher(DIRECT, num_instances=2)
    for correlation_id in (1, 2, 3):
        scheduler.add(part(correlation_id, "S"), 0)
    assert run_all(scheduler, instance=0) == [[1, 3]]
    assert run_all(scheduler, instance=1) == [[2]]
    scheduler.add(part(2), 0)
    assert not scheduler.is_ready(0, 0)
    assert run_all(scheduler, instance=1) == [[2]]


def test_an_idle_sequence_ends_and_frees_its_slot() -> None:
    scheduler = batcher(SequenceSettings(max_batch_size=1, num_slots=1, max_idle_ns=2_000 * MS))
    scheduler.add(part(8, "S"), 0)
    assert run_all(scheduler, 500 * MS) == [[8]]
    scheduler.add(part(9, "S"), 1_000 * MS)
    assert scheduler.next_event_ns(1_000 * MS) == 2_500 * MS
    assert scheduler.take(0, 2_000 * MS) == []
    scheduler.expire(2_500 * MS)
    assert run_all(scheduler, 2_500 * MS) == [[9]]
    with pytest.raises(InvalidRequest, match="START"):
        scheduler.add(part(8), 2_500 * MS)


def test_a_sequence_whose_requests_still_wait_is_not_idle() -> None:
    scheduler = batcher(DIRECT)
    scheduler.add(part(8, "S"), 0)
    running = scheduler.take(0, 0)
    scheduler.expire(10_000 * MS)
    scheduler.add(part(8), 10_001 * MS)
    scheduler.finish(0, running, 10_002 * MS)
    assert run_all(scheduler, 10_002 * MS) == [[8]]


def test_start_of_a_live_sequence_starts_it_over_in_its_slot() -> None:
    scheduler = batcher(DIRECT)
    scheduler.add(part(1, "S"), 0)
    run_all(scheduler)
    again = part(1, "S")
    scheduler.add(again, 0)
    assert sequence_of(again).slot == 0
    assert run_all(scheduler) == [[1]]


def test_an_id_can_be_used_again_before_the_old_sequence_has_run_to_its_end() -> None:
    scheduler = batcher(DIRECT)
    for pending in (part(1, "S"), part(1, "E"), part(1, "SE")):
        scheduler.add(pending, 0)
    assert [len([row for row in batch if row]) for batch in run_all(scheduler)] == [2, 1]


@pytest.mark.parametrize("settings", [DIRECT, OLDEST])
def test_a_withdrawn_start_makes_the_next_request_start_the_sequence(settings: SequenceSettings) -> None:
    scheduler = batcher(settings)
    start, following = part(1, "S"), part(1)
    scheduler.add(start, 0)
    scheduler.add(following, 0)
    scheduler.remove(start)
    assert len(scheduler) == 1
    assert scheduler.take(0, 0) == [following]
    assert following.sequence_start


@pytest.mark.parametrize("settings", [DIRECT, OLDEST])
def test_a_withdrawn_end_still_ends_the_sequence(settings: SequenceSettings) -> None:
    scheduler = batcher(settings)
    start, end = part(1, "S"), part(1, "E")
    scheduler.add(start, 0)
    scheduler.add(end, 0)
    scheduler.remove(end)
    run_all(scheduler)
    assert all(slot is None for slot in scheduler._slots[0])


def test_an_iterative_request_is_a_sequence_that_runs_until_it_is_done() -> None:
    settings = SequenceSettings(max_batch_size=2, num_slots=4, max_idle_ns=2_000 * MS, batches=OLDEST.batches, is_iterative=True)
    scheduler = batcher(settings)
    long, short = part(0), part(0)
    scheduler.add(long, 0)
    scheduler.add(short, 0)
    starts: list[list[bool]] = []
    for turn in range(3):
        batch = scheduler.take(0, turn)
        starts.append([pending.sequence_start for pending in batch])
        if turn < 2:
            scheduler.reschedule(long)
        scheduler.finish(0, batch, turn)
    assert starts == [[True, True], [False], [False]]
    assert long.correlation_id != short.correlation_id
    assert len(scheduler) == 0
    assert scheduler.take(0, 9) == []
    assert all(slot is None for slot in scheduler._slots[0])


@pytest.mark.parametrize("settings", [DIRECT, OLDEST])
def test_clear_gives_back_everything_that_waits_also_in_the_backlog(settings: SequenceSettings) -> None:
    scheduler = batcher(settings)
    waiting = [part(number, "S") for number in range(1, 8)]
    for pending in waiting:
        scheduler.add(pending, 0)
    assert {id(pending) for pending in scheduler.clear()} == {id(pending) for pending in waiting}
    assert len(scheduler) == 0
    assert scheduler.take(0, 0) == []


@pytest.mark.parametrize("settings", [DIRECT, OLDEST])
def test_a_rescheduled_request_that_is_withdrawn_leaves_nothing_behind(settings: SequenceSettings) -> None:
    scheduler = batcher(replace(settings, is_iterative=True))
    first = part(0)
    scheduler.add(first, 0)
    batch = scheduler.take(0, 0)
    scheduler.reschedule(first)
    scheduler.remove(first)
    scheduler.finish(0, batch, 1)
    assert len(scheduler) == 0 and not scheduler.is_ready(0, 1)
    following = part(0)
    scheduler.add(following, 2)
    assert scheduler.take(0, 2) == [following]


def test_a_sequence_of_the_backlog_runs_on_the_instance_whose_slot_it_gets() -> None:
    scheduler = batcher(SequenceSettings(max_batch_size=1, num_slots=1, max_idle_ns=2_000 * MS), num_instances=3)
    for correlation_id in (1, 2, 3, 4):
        scheduler.add(part(correlation_id, "S"), 0)
    assert [run_all(scheduler, instance=instance) for instance in range(3)] == [[[1]], [[2]], [[3]]]
    scheduler.add(part(2, "E"), 1)
    assert run_all(scheduler, instance=1) == [[2], [4]]
    scheduler.add(part(4), 2)
    assert [scheduler.is_ready(instance, 2) for instance in range(3)] == [False, True, False]
