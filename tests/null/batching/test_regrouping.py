"""Pauses for clients that come back: made where they pay, and nowhere else."""

from __future__ import annotations

import random

import pytest
from helpers_simulation import Outcome, requests, simulate

from trivium.batching.dynamic import DynamicBatcher
from trivium.batching.pending import Pending
from trivium.batching.settings import BatchSettings

SETTINGS = BatchSettings(max_batch_size=64, preferred_sizes=(64,))
SERVICE_MS = 2.0


def closed_loop(num_clients: int, *, regroups: bool, away_ms: float = 0.15, until_ms: float = 200) -> Outcome:
    """Clients that send again a little after each answer, one after the other."""
    returned = [0]

    def returns(number: int) -> float:
        returned[0] += 1
        return away_ms + 0.05 * (returned[0] % num_clients)

    batcher: DynamicBatcher[Pending] = DynamicBatcher(SETTINGS, regroups=regroups)
    return simulate(batcher, requests([0.01 * number for number in range(num_clients)]), service_ms=SERVICE_MS, until_ms=until_ms, returns=returns)


@pytest.mark.parametrize("num_clients", [2, 4, 8, 16])
def test_clients_that_wait_for_their_answers_come_to_run_together(num_clients: int) -> None:
    together, apart = (closed_loop(num_clients, regroups=regroups) for regroups in (True, False))
    assert together.sizes[-10:] == [num_clients] * 10
    assert max(apart.sizes[-10:]) < num_clients
    assert len(together.finished_ms) > 1.3 * len(apart.finished_ms)


def test_one_client_never_waits() -> None:
    outcome = closed_loop(1, regroups=True)
    pauses = [later - earlier - SERVICE_MS for earlier, later in zip(outcome.started_ms, outcome.started_ms[1:], strict=False)]
    assert pauses == pytest.approx([0.15] * len(pauses), abs=1e-4)


def test_clients_too_slow_to_be_worth_it_are_not_waited_for() -> None:
    assert closed_loop(8, regroups=True, away_ms=1.5).started_ms == closed_loop(8, regroups=False, away_ms=1.5).started_ms


@pytest.mark.parametrize("requests_per_batch", [0.5, 2, 8, 30])
def test_independent_arrivals_are_not_paused_for(requests_per_batch: float) -> None:
    generator = random.Random(1)
    now, times = 0.0, list[float]()
    for _ in range(2000):
        now += generator.expovariate(requests_per_batch / SERVICE_MS)
        times.append(now)

    def total_wait(*, regroups: bool) -> float:
        outcome = simulate(DynamicBatcher(SETTINGS, regroups=regroups), requests(times), service_ms=SERVICE_MS)
        return sum(outcome.finished_ms[number] - at for number, at in enumerate(times)) / len(times)

    assert total_wait(regroups=True) <= 1.02 * total_wait(regroups=False)


def test_when_the_clients_stay_away_the_pause_is_short() -> None:
    """Eight clients come back until request 80 is answered; from then on only two do."""

    def returns(number: int) -> float:
        return 0.2 if number < 80 or number % 8 < 2 else -1

    outcome = simulate(
        DynamicBatcher(SETTINGS, regroups=True), requests([0.01 * number for number in range(8)]), service_ms=SERVICE_MS, until_ms=60, returns=returns
    )
    pauses = [later - earlier - SERVICE_MS for earlier, later in zip(outcome.started_ms, outcome.started_ms[1:], strict=False)]
    # 0.2 ms away, and an eighth of a batch's time without anybody.
    assert 0.2 < max(pauses) <= 0.2 + SERVICE_MS / 8 + 1e-6


def test_a_burst_is_served_as_without() -> None:
    times: list[float] = [3, 6, 8, 10, 15, 17, 19, 23, 27, 31, 35, 39, 42, 47, 50, 52, 54, 59, 62, 67]
    settings = BatchSettings(max_batch_size=8, preferred_sizes=(8,))
    one, other = (simulate(DynamicBatcher(settings, regroups=regroups), requests(times), service_ms=200) for regroups in (True, False))
    assert one == other


def test_a_delay_of_the_configuration_leaves_no_room_for_pauses() -> None:
    settings = BatchSettings(max_batch_size=8, preferred_sizes=(8,), max_delay_ns=1000)
    assert DynamicBatcher[Pending](settings, regroups=True)._regrouping is None
