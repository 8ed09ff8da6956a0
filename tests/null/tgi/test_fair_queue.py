"""Whose turn it is: shares of clients, room, waits that end early; and that whatever is taken is given back."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from helpers_scripted_engine import FakeEngine, fake_backend
from helpers_turns import FakeGeneration

from trivium.errors import InvalidRequest, NotReady, Overloaded, RequestCancelled
from trivium.metrics.catalogue import ADMISSION_REJECTIONS, HELD_SEQUENCES
from trivium.metrics.instruments import Registry
from trivium.repository.manager import ModelManager
from trivium.service import InferenceService, ServiceLimits
from trivium.service.queue import FairQueue, QueuedGeneration, Turn
from trivium.types import GenerateRequest, SamplingParams, TokenEvent


def started(queue: FairQueue, client: str, num_sequences: int = 1) -> Turn:
    turn = queue.enter(client, num_sequences)
    if turn.is_running:
        turn.start()
    return turn


async def test_turns_come_at_once_while_there_is_room() -> None:
    queue = FairQueue(4)
    turns = [queue.enter("a", 1) for _ in range(6)]
    assert [turn.is_running for turn in turns] == [True] * 5 + [False]  # one more than run at once
    assert queue.num_waiting == 1


async def test_a_new_client_goes_before_the_crowd_of_another() -> None:
    queue = FairQueue(4)
    crowd = [started(queue, "crowd") for _ in range(50)]
    late = queue.enter("late", 1)
    assert not late.is_running
    crowd[0].leave()
    assert late.is_running


async def test_clients_that_want_more_get_equal_shares() -> None:
    """Whatever the lengths of their answers: the one whose answers take long gets no more rows for it."""
    queue = FairQueue(16)
    waiting = {client: [queue.enter(client, 1) for _ in range(300)] for client in ("long", "short", "medium")}
    life = {"long": 9, "short": 1, "medium": 3}
    age: dict[Turn, int] = {}
    shares: dict[str, list[int]] = {client: [] for client in life}
    for _ in range(60):
        for client, turns in waiting.items():
            running = [turn for turn in turns if turn.is_running]
            shares[client].append(len(running))
            for turn in running:
                turn.start()
                age[turn] = age.get(turn, 0) + 1
                if age[turn] >= life[client]:
                    turn.leave()
    means = [sum(counts[20:]) / len(counts[20:]) for counts in shares.values()]
    assert max(means) - min(means) < 1.5
    assert sum(means) == pytest.approx(17, abs=0.5)


async def test_of_clients_with_equal_shares_the_one_that_waits_longest_comes_first() -> None:
    queue = FairQueue(1)
    first = [started(queue, "x"), started(queue, "y")]
    order = [queue.enter(client, 1) for client in ("c", "a", "b")]
    for turn in (*first, *order[:-1]):
        turn.leave()
        assert sum(later.is_running for later in order) >= 1
    assert [turn.is_running for turn in order] == [False, False, True]


async def test_a_request_larger_than_the_room_keeps_nobody_waiting() -> None:
    queue = FairQueue(4)
    small = [started(queue, "a") for _ in range(4)]
    large = queue.enter("b", 16)
    assert large.is_running
    behind = queue.enter("c", 1)
    assert not behind.is_running
    large.leave()
    assert behind.is_running
    assert all(turn.is_running for turn in small)


async def test_the_engine_gets_no_more_than_it_begins_with() -> None:
    """Where the KV cache is short, rows are free but nothing begins: what waits here is shared fairly, what waits there is not."""
    queue = FairQueue(256)
    crowd = [queue.enter("crowd", 1) for _ in range(200)]
    assert sum(turn.is_running for turn in crowd) == 64
    late = queue.enter("late", 1)
    crowd[0].start()
    crowd[0].start()
    assert late.is_running
    assert sum(turn.is_running for turn in crowd) == 64


async def test_who_leaves_the_line_is_skipped() -> None:
    waits: list[int] = []
    queue = FairQueue(1, on_change=waits.append)
    running = [started(queue, "a"), started(queue, "a")]
    gone, next_one = queue.enter("a", 1), queue.enter("a", 3)
    assert waits[-1] == 4
    gone.leave()
    gone.leave()
    running[0].leave()
    assert next_one.is_running
    assert waits[-1] == 0
    with pytest.raises(asyncio.CancelledError):
        await gone.granted


async def test_failing_a_turn_that_has_come_changes_nothing() -> None:
    queue = FairQueue(1)
    turn = queue.enter("a", 1)
    turn.fail(NotReady("x"))
    await turn.granted
    assert turn.is_running


async def test_nothing_is_lost_in_any_order_of_events() -> None:
    rng = random.Random(5)
    for _ in range(30):
        max_num_seqs = rng.randint(1, 8)
        queue = FairQueue(max_num_seqs)
        turns: list[Turn] = []
        for _ in range(200):
            if not turns or rng.random() < 0.5:
                turns.append(queue.enter(rng.choice("abc"), rng.randint(1, 3)))
            else:
                turn = rng.choice(turns)
                action = rng.choice((turn.start, turn.leave)) if turn.is_running else turn.leave
                action()
                if action == turn.leave:
                    turns.remove(turn)
            assert queue.num_waiting == sum(turn.num_sequences for turn in turns if not turn.is_running)
        while turns:
            turn = next(turn for turn in turns if turn.is_running)
            turn.leave()
            turns.remove(turn)
        assert queue.num_waiting == 0
        assert all(queue.enter("z", 1).is_running for _ in range(max_num_seqs))


# -- generations --------------------------------------------------------------------------------------------------------------------


def queued(queue: FairQueue, name: str, log: list[str], *, client: str = "", timeout: Any = None) -> tuple[QueuedGeneration, FakeGeneration]:
    inner = FakeGeneration(name, log)
    return QueuedGeneration(inner, queue, client, 1, timeout), inner


async def read(generation: QueuedGeneration) -> int:
    return len([event async for event in generation])


async def leave(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_generation_waits_between_its_checks_and_its_first_event() -> None:
    queue, log = FairQueue(1), []
    pairs = [queued(queue, name, log) for name in "abc"]
    readers = [asyncio.create_task(read(generation)) for generation, _ in pairs]
    await settle()
    assert log == ["a", "b"]
    for _, inner in pairs:
        inner.begins.set()
        inner.ends.set()
    assert await asyncio.gather(*readers) == [2, 2, 2]
    assert log == ["a", "b", "c"]
    assert queue.num_waiting == 0


async def test_what_is_wrong_with_a_request_is_told_before_it_waits() -> None:
    queue, log = FairQueue(1), []
    for _ in range(2):
        started(queue, "")
    generation, inner = queued(queue, "a", log)
    inner.start_error = InvalidRequest("no")
    with pytest.raises(InvalidRequest):
        await generation.start()
    assert queue.num_waiting == 0


async def test_a_wait_that_takes_too_long_ends() -> None:
    queue, log = FairQueue(1), []
    held = [started(queue, "") for _ in range(2)]
    generation, _ = queued(queue, "a", log, timeout=(0.01, lambda: Overloaded("too long")))
    with pytest.raises(Overloaded, match="too long"):
        await anext(generation)
    assert queue.num_waiting == 0
    held[0].leave()
    quick, inner = queued(queue, "b", log, timeout=(60, lambda: Overloaded("too long")))
    inner.begins.set()
    inner.ends.set()
    assert await read(quick) == 2


async def test_failing_while_it_waits() -> None:
    queue, log = FairQueue(1), []
    held = [started(queue, "") for _ in range(2)]
    generation, inner = queued(queue, "a", log)
    done: list[str] = []
    generation.add_done_callback(lambda: done.append("done"))
    reader = asyncio.create_task(read(generation))
    await settle()
    generation.fail(RequestCancelled("gone"))
    generation.fail(RequestCancelled("twice"))
    with pytest.raises(RequestCancelled, match="gone"):
        await reader
    assert (log, done, queue.num_waiting) == ([], ["done"], 0)
    assert inner.error is not None
    await generation.aclose()
    held[0].leave()


async def test_failing_before_it_waits() -> None:
    queue, log = FairQueue(1), []
    generation, _ = queued(queue, "a", log)
    generation.fail(NotReady("down"))
    with pytest.raises(NotReady):
        await anext(generation)
    assert log == []


async def test_a_turn_that_comes_to_one_who_was_just_cancelled_is_passed_on() -> None:
    queue, log = FairQueue(1), []
    held = [started(queue, "") for _ in range(2)]
    generation, _ = queued(queue, "a", log)
    reader = asyncio.create_task(read(generation))
    await settle()
    reader.cancel()
    held[0].leave()
    after = queue.enter("b", 1)
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert after.is_running
    assert log == []


async def test_cancelling_the_reader_gives_the_place_back() -> None:
    queue, log = FairQueue(1), []
    held = [started(queue, "") for _ in range(2)]
    generation, _ = queued(queue, "a", log)
    reader = asyncio.create_task(read(generation))
    await settle()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert queue.num_waiting == 0
    held[0].leave()
    assert queue.enter("b", 1).is_running


# -- the service --------------------------------------------------------------------------------------------------------------------


def service_with(limits: ServiceLimits, **engine: Any) -> InferenceService:
    registry, manager = Registry(), ModelManager()
    manager.add(("fake",), fake_backend(FakeEngine(**engine), registry))
    return InferenceService(manager, limits=limits, registry=registry)


def request(prompt: str = "abc", client: str = "", n: int = 1, **params: Any) -> GenerateRequest:
    values = {"max_tokens": 4, "temperature": 0.0, **params}
    return GenerateRequest(request_id="r", model="fake", prompt=prompt, params=SamplingParams(**values), n=n, client=client)


async def finish(service: InferenceService, one: GenerateRequest, order: list[str] | None = None) -> str:
    generation = service.generate(one)
    try:
        text = "".join([event.text async for event in generation if isinstance(event, TokenEvent)])
    finally:
        await generation.aclose()
    if order is not None:
        order.append(one.client)
    return text


async def test_a_crowd_of_one_client_does_not_keep_the_others_waiting() -> None:
    service = service_with(ServiceLimits(is_fair=True), max_num_seqs=2, step_s=0.001)
    order: list[str] = []
    tasks = [asyncio.create_task(finish(service, request(client="crowd"), order)) for _ in range(60)]
    await asyncio.sleep(0.003)
    tasks += [asyncio.create_task(finish(service, request(client="late"), order)) for _ in range(2)]
    assert set(await asyncio.gather(*tasks)) == {"abca"}
    assert [place for place, client in enumerate(order) if client == "late"][-1] < 25
    assert service.registry.gauge(HELD_SEQUENCES, "fake").value == 0
    assert service.num_running == 0


async def test_a_large_n_is_submitted_when_its_turn_comes_and_not_before() -> None:
    service = service_with(ServiceLimits(is_fair=True), max_num_seqs=1)
    engine = service.manager.lease("fake").backend._engine  # type: ignore[attr-defined]
    held = [asyncio.create_task(finish(service, request("!hang", client="a"))) for _ in range(2)]
    await settle()
    many = asyncio.create_task(finish(service, request(client="b", n=3, temperature=1.0, seed=1)))
    await settle()
    assert len(engine.submitted) == 2
    await leave(held)
    await settle()
    assert len(engine.submitted) == 5
    await leave([many])
    assert service.num_running == 0


async def test_the_wait_has_a_limit_of_its_own() -> None:
    service = service_with(ServiceLimits(queue_timeout_s=0.02), max_num_seqs=1)
    held = [asyncio.create_task(finish(service, request("!hang"))) for _ in range(2)]
    await settle()
    with pytest.raises(Overloaded, match=r"turn did not come within 0.02 s") as refused:
        await finish(service, request())
    assert refused.value.retry_after_s >= 1
    assert service.registry.counter(ADMISSION_REJECTIONS, "fake", "queue_timeout").value == 1
    await leave(held)
    assert service.num_running == 0


async def test_a_bound_on_all_that_runs_and_waits() -> None:
    service = service_with(ServiceLimits(max_concurrent=2))
    assert service.max_concurrent("fake") == 2
    held = [service.generate(request("!hang")) for _ in range(2)]
    for call in (lambda: service.generate(request()), lambda: service.check_room("fake")):
        with pytest.raises(Overloaded):
            call()
    with pytest.raises(InvalidRequest, match="at most 2 at once"):
        service.check_room("fake", 3)
    for generation in held:
        await generation.aclose()
    service.check_room("fake", 2)
    assert service_with(ServiceLimits()).max_concurrent("fake") == 256 + 1024


async def test_any_name_where_names_do_not_matter() -> None:
    service = service_with(ServiceLimits(ignores_unknown_names=True))
    assert service.model("unheard-of").name == "fake"
    assert service.model("fake").name == "fake"
