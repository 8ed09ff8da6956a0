"""Whether to let an instance pause for the clients it has just answered.

Clients that send their next request when they have the answer to the last fall into two groups that take turns: while one group's batch
runs, the other waits, and each batch has half the requests it could have. A pause of a fraction of a batch's time lets both groups run
together from then on: with a 2 ms model and 8 such clients, twice the throughput at half the latency. Requests that arrive independently of
answers gain nothing, so a pause is made only while experience says that it pays.
"""

from __future__ import annotations

from typing import Final

GAP_SHARE: Final = 8
"""A pause is over when nobody came for this fraction of a batch's time…"""
TOTAL_SHARE: Final = 2
"""…and in any case after this fraction."""
MAX_GAP_NS: Final = 1_000_000
MIN_RETURNED: Final = 0.75
"""Share of the answered that must have come back within the pause, lately. Independent arrivals reach 1 / `TOTAL_SHARE` of it at most."""
MEMORY: Final = 0.25
"""Weight of the latest batch in what is known of batches."""


class Regrouping:
    """For one instance. Watches what comes after each batch, whether or not a pause is made."""

    __slots__ = ("_expected", "_finished_ns", "_gap_ns", "_last_ns", "_num_answered", "_num_returned", "_returned", "_started_ns", "_total_ns")

    def __init__(self) -> None:
        self._started_ns = 0
        self._finished_ns = 0
        self._last_ns = 0
        """When the batch ended, or the last of those it answered came back."""
        self._expected = 0
        """Clients that were answered and may come back in time."""
        self._num_answered = 0
        self._num_returned = 0
        self._returned = 0.0
        self._gap_ns = 0
        self._total_ns = 0

    def on_start(self, now_ns: int) -> None:
        """The instance begins a batch."""
        self._started_ns = now_ns

    def on_finish(self, num_requests: int, now_ns: int) -> None:
        """The instance has done it."""
        if self._num_answered:
            self._returned += MEMORY * (self._num_returned / self._num_answered - self._returned)
        duration_ns = now_ns - self._started_ns
        self._gap_ns = min(MAX_GAP_NS, duration_ns // GAP_SHARE)
        self._total_ns = duration_ns // TOTAL_SHARE
        self._finished_ns = self._last_ns = now_ns
        self._expected = self._num_answered = num_requests
        self._num_returned = 0

    def on_arrival(self, now_ns: int) -> None:
        if self._expected == 0:
            return
        if now_ns < self._end_ns():
            self._expected -= 1
            self._num_returned += 1
            self._last_ns = now_ns
        else:
            self._expected = 0

    def pause_until_ns(self, now_ns: int) -> int:
        """0: run what there is; otherwise, when to ask again if nobody comes."""
        if self._expected == 0 or self._returned < MIN_RETURNED:
            return 0
        end_ns = self._end_ns()
        return end_ns if now_ns < end_ns else 0

    def _end_ns(self) -> int:
        return min(self._last_ns + self._gap_ns, self._finished_ns + self._total_ns)
