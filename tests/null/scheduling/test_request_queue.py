from __future__ import annotations

import random

import pytest
from helpers_fake_engine import make_add

from trivium.scheduling.queue import RequestQueue
from trivium.scheduling.request import Request


def make_request(priority: int, arrival: int) -> Request:
    return Request(make_add(f"{priority}/{arrival}", [1]), sort_key=(priority, arrival), max_len=9)


def test_the_queue_is_ordered_by_priority_then_arrival() -> None:
    queue = RequestQueue()
    keys = [(1, 0), (0, 1), (1, 2), (-1, 3), (0, 4)]
    for key in keys:
        queue.push(make_request(*key))
    assert queue.peek().sort_key == (-1, 3)
    assert [queue.pop().sort_key for _ in keys] == sorted(keys)
    assert len(queue) == 0


def test_a_request_can_return_to_its_place_but_not_stand_in_line_twice() -> None:
    queue = RequestQueue()
    first, second = make_request(0, 0), make_request(0, 1)
    queue.push(first)
    queue.push(second)
    assert queue.pop() is first
    assert first not in queue
    queue.push(first)
    assert queue.peek() is first
    with pytest.raises(AssertionError):
        queue.push(first)


def test_leaving_from_the_middle_keeps_the_order_and_little_else() -> None:
    rng = random.Random(0)
    queue = RequestQueue()
    requests = [make_request(rng.randrange(3), arrival) for arrival in range(500)]
    for request in requests:
        queue.push(request)
    rng.shuffle(requests)
    for request in requests[:480]:
        queue.remove(request)
        assert request not in queue
    assert len(queue) == 20
    assert len(queue._heap) <= 40, "keys of those who left are cleared"
    left = sorted(requests[480:], key=lambda request: request.sort_key)
    assert [queue.pop() for _ in left] == left


def test_an_empty_queue_keeps_nothing() -> None:
    queue = RequestQueue()
    requests = [make_request(0, arrival) for arrival in range(10)]
    for request in requests:
        queue.push(request)
    for request in reversed(requests):
        queue.remove(request)
    assert (len(queue), queue._heap) == (0, [])


def test_waiting_tokens_are_counted_and_for_long_queues_estimated() -> None:
    queue = RequestQueue()
    assert queue.num_tokens() == 0
    for arrival in range(1000):
        queue.push(Request(make_add(f"{arrival}", [1] * 7), sort_key=(0, arrival), max_len=9))
        if arrival == 9:
            assert queue.num_tokens() == 70
    assert queue.num_tokens() == 7000
    queue.remove(queue.peek())
    queue.pop()
    assert queue.num_tokens() == 6986
