"""What holds for every schedule, whatever arrives, leaves or expires; found by hypothesis if it doesn't."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.batching.dynamic import DynamicBatcher, _Candidate
from trivium.batching.pending import Pending
from trivium.batching.sequence import SequenceBatcher
from trivium.batching.settings import BatchSettings, QueuePolicy, SequenceSettings
from trivium.errors import InvalidRequest, Overloaded

US = 1000
MAX_ROWS = 6

policies = st.builds(
    QueuePolicy,
    timeout_us=st.sampled_from([0, 0, 5, 20]),
    allows_override=st.booleans(),
    delays_late=st.booleans(),
    max_size=st.sampled_from([0, 0, 3]),
)
batch_settings = st.builds(
    BatchSettings,
    max_batch_size=st.just(MAX_ROWS),
    preferred_sizes=st.sets(st.integers(1, MAX_ROWS), min_size=1).map(lambda sizes: tuple(sorted(sizes))),
    max_delay_ns=st.sampled_from([0, 10 * US]),
    priority_levels=st.just(2),
    default_level=st.just(1),
    policy=policies,
    level_policies=st.dictionaries(st.integers(1, 2), policies),
)
one_level = batch_settings.map(lambda found: replace(found, priority_levels=0, default_level=0))
requests = st.builds(
    Pending,
    arrival_ns=st.just(0),
    batch_size=st.integers(1, MAX_ROWS),
    shape_key=st.sampled_from([None, None, ("other",)]),
    priority=st.integers(0, 3),
    timeout_us=st.sampled_from([0, 3]),
)
steps = st.lists(st.tuples(st.sampled_from(["add", "add", "add", "take", "remove", "wait"]), st.integers(0, 12), requests), min_size=10, max_size=60)


def fresh(batcher: DynamicBatcher[Pending]) -> _Candidate:
    """What a look at the whole queue gives, as against what was kept up with each change."""
    kept, batcher._candidate = batcher._candidate, _Candidate()
    found = batcher._scanned()
    batcher._candidate = kept
    return found


def facts(candidate: _Candidate) -> tuple[object, ...]:
    return (
        candidate.num,
        candidate.rows,
        candidate.num_preferred,
        candidate.oldest_ns,
        candidate.shape_key if candidate.num else None,
        candidate.is_sealed,
    )


@settings(max_examples=300, deadline=None)
@given(one_level | batch_settings, steps, st.booleans())
def test_every_request_ends_once_in_a_batch_that_may_be(
    given_settings: BatchSettings, given_steps: list[tuple[str, int, Pending]], regroups: bool
) -> None:
    batcher: DynamicBatcher[Pending] = DynamicBatcher(given_settings, regroups=regroups)
    now = 0
    waiting: list[Pending] = []
    for action, amount, pending in given_steps:
        if action == "wait":
            now += amount * US
            expired = batcher.expire(now)
            for late in expired:
                assert late.deadline_ns <= now
                waiting.remove(late)
        elif action == "add":
            pending.arrival_ns = now
            try:
                batcher.add(pending, now)
                waiting.append(pending)
            except Overloaded:
                assert not pending.is_queued
        elif action == "remove" and waiting:
            batcher.remove(waiting.pop(amount % len(waiting)))
        elif action == "take":
            was_ready = batcher.is_ready(0, now)
            batch = batcher.take(0, now)
            assert bool(batch) == was_ready
            assert sum(member.batch_size for member in batch) <= MAX_ROWS
            assert len({member.shape_key for member in batch}) <= 1
            for member in batch:
                waiting.remove(member)
            if batch:
                batcher.finish(0, batch, now)
        assert len(batcher) == len(waiting)
        assert [id(member) for member in sorted(batcher._queue, key=id)] == [id(member) for member in sorted(waiting, key=id)]
        assert facts(batcher._scanned()) == facts(fresh(batcher))
        event = batcher.next_event_ns(now)
        if waiting and not batcher.is_ready(0, now):
            # Then the clock will make it ready, or nothing ever would.
            assert event > now or event in {member.deadline_ns for member in waiting if member.deadline_ns}
    cleared = batcher.clear()
    assert {id(member) for member in cleared} == {id(member) for member in waiting}


@settings(max_examples=200, deadline=None)
@given(one_level.filter(lambda found: not found.policy.delays_late), steps)
def test_without_priorities_the_order_is_that_of_arrival(given_settings: BatchSettings, given_steps: list[tuple[str, int, Pending]]) -> None:
    batcher: DynamicBatcher[Pending] = DynamicBatcher(given_settings)
    ran: list[int] = []
    numbers: dict[int, int] = {}
    for number, (action, _, pending) in enumerate(given_steps):
        if action == "take":
            batch = batcher.take(0, number)
            ran += [numbers[id(member)] for member in batch]
        else:
            pending.arrival_ns = number
            try:
                batcher.add(pending, number)
                numbers[id(pending)] = number
            except Overloaded:
                pass
    assert ran == sorted(ran)


sequence_settings = st.builds(
    SequenceSettings,
    max_batch_size=st.just(2),
    num_slots=st.integers(1, 3),
    max_idle_ns=st.just(30 * US),
    batches=st.sampled_from([None, BatchSettings(max_batch_size=2, preferred_sizes=(2,))]),
    max_delay_ns=st.sampled_from([0, 5 * US]),
    min_utilization=st.sampled_from([0.0, 1.0]),
)
parts = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "run", "run", "finish", "remove", "wait"]),
        st.integers(1, 5),
        st.sampled_from(["", "", "S", "S", "E", "SE"]),
    ),
    min_size=25,
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(sequence_settings, parts, st.integers(1, 2))
def test_requests_of_a_sequence_run_one_by_one_in_order_on_one_instance(
    given_settings: SequenceSettings, given_parts: list[tuple[str, int, str]], num: int
) -> None:
    batcher: SequenceBatcher[Pending] = SequenceBatcher(
        given_settings, model="m", num_instances=num, make_null=lambda like: Pending(arrival_ns=like.arrival_ns)
    )
    now, running = 0, dict[int, list[Pending]]()
    waiting: dict[object, list[Pending]] = {}
    where: dict[object, int] = {}
    for action, amount, flags in given_parts:
        instance = amount % num
        if action == "add":
            pending = Pending(arrival_ns=now, correlation_id=amount, sequence_start="S" in flags, sequence_end="E" in flags)
            try:
                batcher.add(pending, now)
            except InvalidRequest:
                assert "S" not in flags
            else:
                waiting.setdefault(pending.place, []).append(pending)
        elif action == "run" and instance not in running:
            batch = batcher.take(instance, now)
            real = [member for member in batch if member.place is not None]
            assert bool(batch) == bool(real)
            assert len({id(member.place) for member in real}) == len(real)
            for member in real:
                assert waiting[member.place].pop(0) is member
                assert where.setdefault(member.place, instance) == instance
            if batch:
                running[instance] = batch
        elif action == "finish" and instance in running:
            batcher.finish(instance, running.pop(instance), now)
        elif action == "remove":
            lines = [line for line in waiting.values() if line]
            if lines:
                line = lines[amount % len(lines)]
                batcher.remove(line.pop(amount % len(line)))
        elif action == "wait":
            now += amount * US
            assert batcher.expire(now) == []
        assert len(batcher) == sum(map(len, waiting.values()))
    # Everything that waits can still run.
    for instance, batch in list(running.items()):
        batcher.finish(instance, batch, now)
    for _ in range(200):
        now += 31 * US
        batcher.expire(now)
        for instance in range(num):
            batch = batcher.take(instance, now)
            batcher.finish(instance, batch, now)
    assert len(batcher) == 0
    keep = [place for place in batcher._live.values() if not place.is_idle]
    assert keep == []
