"""A step while it is being put together, and what the scheduler remembers of it until its result is back."""

from __future__ import annotations

from typing import NamedTuple

from trivium.scheduling.request import Request
from trivium.scheduling.step import NewRow, StepPlan

_NO_BLOCKS: list[int] = []
"""Shared by all rows that got no new block. Plans are read-only."""


class Flight(NamedTuple):
    """A step whose result has not arrived."""

    step_id: int
    rows: list[int]
    requests: list[Request]
    """By row of the plan."""
    sampled: list[Request]
    """Those whose result has a token."""


class Chunk(NamedTuple):
    """Known tokens of one request, to be computed in this step."""

    request: Request
    start: int
    num_tokens: int
    new_row: NewRow | None


class PlanBuilder:
    """Collects decode rows in columns (they are many, every step) and prefill chunks as objects (they are few)."""

    __slots__ = ("chunks", "decodes", "grown", "num_computed", "rows", "step_id")

    def __init__(self, step_id: int) -> None:
        self.step_id = step_id
        self.decodes: list[Request] = []
        self.rows: list[int] = []
        self.num_computed: list[int] = []
        self.grown: list[tuple[int, Request]] = []
        """(index, request) of decode rows that start a new block."""
        self.chunks: list[Chunk] = []

    def build(self) -> tuple[StepPlan, Flight] | None:
        """None if there is nothing to do. Order: decodes, chunks of one token, longer chunks."""
        count = len(self.rows)
        if not count and not self.chunks:
            return None
        plan = StepPlan(
            step_id=self.step_id,
            new_rows=[],
            rows=self.rows,
            num_tokens=[1] * count,
            num_computed=self.num_computed,
            num_fed=[0] * count,
            token_ids=[],
            samples=[True] * count,
            block_starts=[0] * count,
            new_blocks=[_NO_BLOCKS] * count,
        )
        for index, request in self.grown:
            plan.block_starts[index] = len(request.block_ids) - 1
            plan.new_blocks[index] = request.block_ids[-1:]
        requests = self.decodes
        sampled = requests
        if self.chunks:
            sampled = requests.copy()
            self.chunks.sort(key=lambda chunk: chunk.num_tokens > 1)
            for chunk in self.chunks:
                _append(plan, chunk)
                requests.append(chunk.request)
                if plan.samples[-1]:
                    sampled.append(chunk.request)
        return plan, Flight(self.step_id, plan.rows, requests, sampled)


def _append(plan: StepPlan, chunk: Chunk) -> None:
    request, end = chunk.request, chunk.start + chunk.num_tokens
    plan.rows.append(request.row)
    plan.num_tokens.append(chunk.num_tokens)
    plan.num_computed.append(chunk.start)
    plan.num_fed.append(chunk.num_tokens)
    plan.token_ids += request.token_ids[chunk.start : end]
    plan.samples.append(end == request.prefill_end)
    plan.block_starts.append(0)
    if chunk.new_row is None:
        plan.new_blocks.append(_NO_BLOCKS)
    else:
        plan.new_rows.append(chunk.new_row)
        plan.new_blocks.append(request.block_ids.copy())
