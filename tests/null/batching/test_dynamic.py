"""The dynamic batcher's decisions, on arrivals recorded from a tritonserver where a comment says so."""

from __future__ import annotations

import pytest
from helpers_simulation import Outcome, requests, simulate

from trivium.batching.dynamic import DynamicBatcher
from trivium.batching.pending import Pending
from trivium.batching.settings import BatchSettings, QueuePolicy

SECOND_NS = 1_000_000_000
PREFERRED_4_8 = BatchSettings(max_batch_size=8, preferred_sizes=(4, 8), max_delay_ns=SECOND_NS)
DELAY_ONLY = BatchSettings(max_batch_size=8, preferred_sizes=(8,), max_delay_ns=SECOND_NS)
NO_DELAY = BatchSettings(max_batch_size=8, preferred_sizes=(8,))
ONE = BatchSettings(max_batch_size=1, preferred_sizes=(1,))


def run(settings: BatchSettings, arrivals: list[tuple[float, Pending]], **options: float) -> Outcome:
    return simulate(DynamicBatcher(settings), arrivals, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "times_ms", "service_ms", "sizes", "finished_ms"),
    [
        pytest.param(PREFERRED_4_8, [0], 1, [1], [1001], id="one waits for the delay"),
        pytest.param(PREFERRED_4_8, [0, 78, 89, 99], 3, [4], [102] * 4, id="a preferred size runs at once"),
        pytest.param(PREFERRED_4_8, [0, 11, 21, 31, 42], 3, [4, 1], [34] * 4 + [1045], id="the rest waits"),
        pytest.param(PREFERRED_4_8, [4, 8, 12, 16, 20, 23, 28, 32, 36], 1, [4, 4, 1], [17] * 4 + [33] * 4 + [1037], id="the first preferred size"),
        pytest.param(DELAY_ONLY, [2], 1, [1], [1003], id="delay only: one"),
        pytest.param(DELAY_ONLY, [2, 14, 26, 38, 50, 61, 72, 86], 2, [8], [88] * 8, id="delay only: a full batch"),
        pytest.param(DELAY_ONLY, [2, 14, 26, 38, 48, 59, 70, 82, 92, 104], 2, [8, 2], [84] * 8 + [1094] * 2, id="delay only: ten"),
        pytest.param(ONE, [3, 5, 7], 500, [1, 1, 1], [503, 1003, 1503], id="without batching"),
    ],
)
def test_recorded_traces(settings: BatchSettings, times_ms: list[float], service_ms: float, sizes: list[int], finished_ms: list[float]) -> None:
    outcome = run(settings, requests(times_ms), service_ms=service_ms)
    assert outcome.sizes == sizes
    assert [outcome.finished_ms[number] for number in range(len(times_ms))] == finished_ms


def test_twenty_requests_to_a_busy_model_without_delay() -> None:
    times: list[float] = [3, 6, 8, 10, 15, 17, 19, 23, 27, 31, 35, 39, 42, 47, 50, 52, 54, 59, 62, 67]
    outcome = run(NO_DELAY, requests(times), service_ms=200)
    assert outcome.sizes == [1, 8, 8, 3]
    assert outcome.order == list(range(20))


def test_sizes_between_the_preferred_ones_wait_and_run_together() -> None:
    outcome = run(PREFERRED_4_8, requests([2, 106], batch_size=3), service_ms=0)
    assert outcome.batches == [[0, 1]]
    assert outcome.started_ms == [1002]


@pytest.mark.parametrize("rows", [8, 4])
def test_one_request_of_a_preferred_size_runs_at_once(rows: int) -> None:
    assert run(PREFERRED_4_8, requests([1], batch_size=rows)).started_ms == [1]


def test_one_request_above_every_preferred_size_runs_at_once() -> None:
    settings = BatchSettings(max_batch_size=8, preferred_sizes=(2, 4), max_delay_ns=SECOND_NS)
    assert run(settings, requests([1], batch_size=6)).started_ms == [1]


def test_two_instances_take_turns() -> None:
    outcome = run(ONE, requests([0, 1, 4, 4]), service_ms=500, num_instances=2)
    assert [outcome.finished_ms[number] for number in range(4)] == [500, 501, 1000, 1001]


def test_a_request_that_does_not_fit_sends_what_waits_at_once() -> None:
    arrivals = [(0.0, Pending(arrival_ns=0, batch_size=5)), (10.0, Pending(arrival_ns=0, batch_size=4))]
    outcome = run(PREFERRED_4_8, arrivals)
    assert outcome.batches == [[0], [1]]
    assert outcome.started_ms == [10, 10]


def test_requests_of_different_shapes_do_not_run_together() -> None:
    arrivals = [
        (0.0, Pending(arrival_ns=0, shape_key=("A",))),
        (50.0, Pending(arrival_ns=0, shape_key=("A", "B"))),
        (101.0, Pending(arrival_ns=0, shape_key=("A",))),
    ]
    outcome = run(BatchSettings(max_batch_size=8, preferred_sizes=(8,), max_delay_ns=SECOND_NS // 2), arrivals)
    assert outcome.batches == [[0], [1], [2]]
    assert outcome.started_ms == [50, 101, 601]


def test_requests_are_never_passed_over() -> None:
    arrivals = [(0.0, Pending(arrival_ns=0, batch_size=6)), (1.0, Pending(arrival_ns=0, batch_size=6)), (2.0, Pending(arrival_ns=0, batch_size=2))]
    assert run(BatchSettings(max_batch_size=8, preferred_sizes=(8,), max_delay_ns=SECOND_NS), arrivals, service_ms=5).batches == [[0], [1, 2]]


def test_a_full_queue_refuses_and_counts_only_what_waits() -> None:
    settings = BatchSettings(max_batch_size=1, preferred_sizes=(1,), policy=QueuePolicy(max_size=3))
    outcome = run(settings, requests([0, 20, 41, 61, 82, 102, 122]), service_ms=1000)
    assert outcome.refused == dict.fromkeys((4, 5, 6), "Exceeds maximum queue size")
    # Triton answers the four after 1.03, 2.51, 3.51 and 5.01 s.
    assert [outcome.finished_ms[number] for number in range(4)] == [1000, 2000, 3000, 4000]


def test_a_timeout_is_answered_in_time_although_the_instance_is_busy() -> None:
    settings = BatchSettings(max_batch_size=1, preferred_sizes=(1,), policy=QueuePolicy(timeout_us=200_000))
    outcome = run(settings, requests([0, 51, 101, 151]), service_ms=2000)
    assert outcome.expired_ms == {1: 251, 2: 301, 3: 351}
    assert outcome.finished_ms == {0: 2000}


def test_a_request_may_shorten_its_timeout_but_not_lengthen_it() -> None:
    settings = BatchSettings(max_batch_size=1, preferred_sizes=(1,), policy=QueuePolicy(timeout_us=5_000_000, allows_override=True))
    arrivals = [
        (at, Pending(arrival_ns=0, timeout_us=timeout))
        for at, timeout in ((0.0, 0), (51.0, 300_000), (101.0, 60_000_000), (151.0, 0), (161.0, 60_000_000))
    ]
    outcome = run(settings, arrivals, service_ms=2500)
    assert outcome.expired_ms == {1: 351, 4: 5161}
    assert outcome.finished_ms == {0: 2500, 2: 5000, 3: 7500}


def test_without_leave_to_override_a_requests_own_timeout_is_ignored() -> None:
    settings = BatchSettings(max_batch_size=1, preferred_sizes=(1,), policy=QueuePolicy(timeout_us=5_000_000))
    outcome = run(settings, [(0.0, Pending(arrival_ns=0)), (1.0, Pending(arrival_ns=0, timeout_us=1000))], service_ms=100)
    assert outcome.expired_ms == {}


def test_delayed_requests_go_behind_those_in_time() -> None:
    settings = BatchSettings(max_batch_size=1, preferred_sizes=(1,), policy=QueuePolicy(timeout_us=200_000, delays_late=True))
    outcome = run(settings, requests([0, 21, 41, 61, 466, 866]), service_ms=500)
    assert outcome.order == [0, 4, 5, 1, 2, 3]
    # Triton: 0.547, 2.051, 2.552, 3.053, 1.048, 1.549.
    assert [outcome.finished_ms[number] for number in range(6)] == [500, 2000, 2500, 3000, 1000, 1500]


def test_priorities() -> None:
    settings = BatchSettings(max_batch_size=1, preferred_sizes=(1,), priority_levels=3, default_level=2)
    # The recorded order of seven requests, the first of which finds the model free; the priorities are the recorder's.
    priorities = [0, 2, 3, 1, 0, 9, 2]
    arrivals = [
        (at, Pending(arrival_ns=0, priority=priority)) for at, priority in zip((4.0, 16.0, 28.0, 40.0, 51.0, 64.0, 76.0), priorities, strict=True)
    ]
    outcome = run(settings, arrivals, service_ms=300)
    assert outcome.order == [0, 3, 1, 4, 5, 6, 2]
    # Triton needs 2.956 s for these seven.
    assert max(outcome.finished_ms.values()) == 2104


def test_a_higher_priority_goes_before_a_batch_that_waits() -> None:
    settings = BatchSettings(max_batch_size=2, preferred_sizes=(2,), max_delay_ns=SECOND_NS, priority_levels=2, default_level=2)
    arrivals = [
        (0.0, Pending(arrival_ns=0, priority=2)),
        (1.0, Pending(arrival_ns=0, priority=2)),
        (2.0, Pending(arrival_ns=0, priority=2)),
        (3.0, Pending(arrival_ns=0, priority=1)),
    ]
    assert run(settings, arrivals, service_ms=10).batches == [[0, 1], [3, 2]]


def test_policies_by_level() -> None:
    settings = BatchSettings(
        max_batch_size=1,
        preferred_sizes=(1,),
        priority_levels=2,
        default_level=1,
        level_policies={2: QueuePolicy(max_size=1, timeout_us=50_000)},
    )
    arrivals = [(float(at), Pending(arrival_ns=0, priority=priority)) for at, priority in enumerate((1, 2, 2, 1, 1))]
    outcome = run(settings, arrivals, service_ms=100)
    assert outcome.refused == {2: "Exceeds maximum queue size"}
    assert outcome.expired_ms == {1: 51}
    assert outcome.order == [0, 3, 4]


def test_requests_that_left_are_passed_over_and_do_not_count() -> None:
    batcher: DynamicBatcher[Pending] = DynamicBatcher(
        BatchSettings(max_batch_size=4, preferred_sizes=(4,), max_delay_ns=SECOND_NS, policy=QueuePolicy(max_size=4))
    )
    waiting = [Pending(arrival_ns=number) for number in range(4)]
    for pending in waiting:
        batcher.add(pending, 0)
    assert batcher.is_ready(0, 1)
    batcher.remove(waiting[1])
    batcher.remove(waiting[0])
    assert not batcher.is_ready(0, 1)
    assert batcher.next_event_ns(1) == 2 + SECOND_NS
    late = Pending(arrival_ns=5)
    batcher.add(late, 5)
    assert len(batcher) == 3
    assert batcher.take(0, SECOND_NS + 10) == [waiting[2], waiting[3], late]
    assert len(batcher) == 0
    assert batcher.next_event_ns(SECOND_NS + 10) == 0


def test_a_queue_of_cancelled_requests_keeps_no_memory() -> None:
    batcher: DynamicBatcher[Pending] = DynamicBatcher(BatchSettings(max_batch_size=1, preferred_sizes=(1,), policy=QueuePolicy(timeout_us=10**9)))
    for _ in range(1000):
        pending = Pending(arrival_ns=0)
        batcher.add(pending, 0)
        batcher.remove(pending)
        batcher.next_event_ns(0)
    queue = batcher._queue
    assert len(queue._deadlines) < 20
    assert len(next(iter(queue._levels.values())).waiting) < 20


def test_once_the_delay_is_over_everything_runs_not_only_a_preferred_part() -> None:
    settings = BatchSettings(max_batch_size=8, preferred_sizes=(4, 8), max_delay_ns=SECOND_NS)
    arrivals = [(0.0, Pending(arrival_ns=0, batch_size=8)), *requests([1, 2, 3, 4, 5])]
    assert run(settings, arrivals, service_ms=3000).batches == [[0], [1, 2, 3, 4, 5]]


def test_the_delay_counts_from_the_oldest_request_also_if_a_later_one_goes_before_it() -> None:
    settings = BatchSettings(max_batch_size=8, preferred_sizes=(8,), max_delay_ns=SECOND_NS, priority_levels=2, default_level=2)
    outcome = run(settings, [(0.0, Pending(arrival_ns=0, priority=2)), (900.0, Pending(arrival_ns=0, priority=1))])
    assert (outcome.batches, outcome.started_ms) == ([[1, 0]], [1000])


def test_a_request_that_goes_before_others_does_not_share_their_batch_if_its_shape_differs() -> None:
    settings = BatchSettings(max_batch_size=8, preferred_sizes=(8,), max_delay_ns=SECOND_NS, priority_levels=2, default_level=2)
    low = [(float(at), Pending(arrival_ns=0, priority=2, shape_key=("A",))) for at in range(2)]
    outcome = run(settings, [*low, (2.0, Pending(arrival_ns=0, priority=1, shape_key=("B",)))])
    assert (outcome.batches, outcome.started_ms) == ([[2], [0, 1]], [2, 1000])
