"""A request as its scheduler sees it: how many rows, what it may share a batch with, how urgent, how patient."""

from __future__ import annotations

from trivium.infer import CorrelationId

ShapeKey = tuple[object, ...] | None
"""Requests run together only where their keys are equal; None: every request of the model may run with every other."""


class Pending:
    """One waiting request. Times are nanoseconds of one monotonic clock; `deadline_ns` 0 means that it waits for ever."""

    __slots__ = (
        "arrival_ns",
        "batch_size",
        "correlation_id",
        "deadline_ns",
        "is_cancelled",
        "is_queued",
        "level",
        "place",
        "priority",
        "sequence_end",
        "sequence_start",
        "shape_key",
        "timeout_us",
    )

    def __init__(
        self,
        *,
        arrival_ns: int,
        batch_size: int = 1,
        shape_key: ShapeKey = None,
        priority: int = 0,
        timeout_us: int = 0,
        correlation_id: CorrelationId = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> None:
        self.arrival_ns = arrival_ns
        self.batch_size = batch_size
        self.shape_key = shape_key
        self.priority = priority
        self.timeout_us = timeout_us
        self.correlation_id = correlation_id
        self.sequence_start = sequence_start
        self.sequence_end = sequence_end
        self.deadline_ns = 0
        self.level = 0
        self.place: object = None
        """Where its scheduler keeps it, if one needs to know."""
        self.is_queued = False
        self.is_cancelled = False
