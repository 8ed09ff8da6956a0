"""The waiting line.

One order serves both policies: by (priority, arrival), where FCFS gives everybody the same priority. A preempted request keeps its place
in it, which under FCFS is the head: whoever runs arrived before whoever waits.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from trivium.scheduling.request import Request

MAX_SAMPLED: Final = 256


class RequestQueue:
    """Heap of keys beside a dict of requests: leaving from the middle is O(1) and frees the request at once, only its key stays behind."""

    __slots__ = ("_heap", "_requests")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._requests: dict[tuple[int, int], Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: Request) -> bool:
        return request.sort_key in self._requests

    def push(self, request: Request) -> None:
        assert request not in self
        self._requests[request.sort_key] = request
        heappush(self._heap, request.sort_key)

    def num_tokens(self) -> int:
        """Known tokens of all who wait; beyond the first 256, an estimate from these."""
        sampled = list(islice(self._requests.values(), MAX_SAMPLED))
        return sum(len(request.token_ids) for request in sampled) * len(self._requests) // max(len(sampled), 1)

    def peek(self) -> Request:
        """The next request; the queue must not be empty."""
        while self._heap[0] not in self._requests:
            heappop(self._heap)
        return self._requests[self._heap[0]]

    def pop(self) -> Request:
        request = self.peek()
        heappop(self._heap)
        del self._requests[request.sort_key]
        return request

    def remove(self, request: Request) -> None:
        del self._requests[request.sort_key]
        # A left-behind key costs a pop later on; once most keys are such, clear them all.
        if len(self._heap) > 2 * len(self._requests):
            self._heap = [key for key in self._heap if key in self._requests]
            heapify(self._heap)
