"""CUDA graphs of decode steps, for each batch-size bucket, all in one memory pool, captured at start.

One graph holds the step from its inputs to its tokens, drawn without filters. Where rows need more, that draw is made for the padding row, and a
short graph is replayed after the step: the draw with filters, or for rows that need more of the sampler a copy of the logits. The host copies
four numbers per row to the device and one back, so a step costs it the same whatever the model. Rows that fill up a bucket have index -1 and
length 0: they touch no cache.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from trivium.engine.rows import RowTable
from trivium.engine.sampler import FAILURES, Sampler
from trivium.engine.staging import PinnedBuffer, PinnedPool
from trivium.models import Model
from trivium.ops.attention.base import AttentionBackend, KVCache
from trivium.ops.batch import ForwardBatch
from trivium.scheduling.step import StepPlan, StepResult

T = TypeVar("T")


def graph_buckets(max_num_seqs: int) -> list[int]:
    """Batch sizes to capture: dense where a step is short and padding costs most, sparser above; the largest is `max_num_seqs`."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, 512, 64), *range(512, max_num_seqs + 1, 128)]
    return sorted({size for size in sizes if size < max_num_seqs} | {max_num_seqs})


@dataclass(slots=True)
class _Captured:
    step: torch.cuda.CUDAGraph
    draw_filtered: torch.cuda.CUDAGraph
    widen: torch.cuda.CUDAGraph


@dataclass(slots=True)
class GraphStep:
    """A launched decode step whose tokens were drawn on the device; see `executor.StepHandle`."""

    plan: StepPlan
    buffer: PinnedBuffer
    pool: PinnedPool
    event: torch.cuda.Event = field(default_factory=torch.cuda.Event)

    def result(self) -> StepResult:
        self.event.synchronize()
        outcome = self.buffer.array[: len(self.plan.rows)]
        result = StepResult(step_id=self.plan.step_id, token_ids=outcome.tolist())
        if int(outcome.min()) < 0:
            result.failed_rows = {row: FAILURES[value] for row, value in zip(self.plan.rows, result.token_ids, strict=True) if value < 0}
            result.token_ids = [max(value, 0) for value in result.token_ids]
        self.pool.give_back(self.buffer)
        return result


class DecodeGraphs:
    """Replays decode steps. What a replay leaves on the device is overwritten by the next one of any bucket."""

    def __init__(
        self,
        model: Model,
        caches: list[KVCache],
        attention: AttentionBackend,
        rows: RowTable,
        sampler: Sampler,
        *,
        buckets: list[int],
        max_model_len: int,
        pool: Any,
    ) -> None:
        """`pool`: a pool handle of `torch.cuda`, shared with other graphs of the same stream."""
        self.buckets = buckets
        self._model = model
        self._caches = caches
        self._attention = attention
        self._rows = rows
        self._sampler = sampler
        self._max_model_len = max_model_len
        largest = buckets[-1]
        self._inputs = torch.zeros(4 * largest, dtype=torch.int64, device=rows.device)
        """For a bucket of B: B rows or -1, B positions, and B rows or the padding row for the step's own draw and for the one after it."""
        self._outcome = torch.zeros(largest, dtype=torch.int64, device=rows.device)
        self._logits = torch.empty((largest, sampler.vocab_size), dtype=torch.float32, device=rows.device)
        self._pinned = PinnedPool(4 * largest)
        self._captured: dict[int, _Captured] = {}
        self._pool = pool

    def capture_all(self, on_captured: Callable[[int, int], None]) -> None:
        """Largest first, so that the smaller ones fit in its pool. `on_captured(done, total)` after each."""
        for done, bucket in enumerate(reversed(self.buckets), 1):
            self._capture(bucket)
            on_captured(done, len(self.buckets))

    def run(self, plan: StepPlan, *, is_filtered: bool) -> GraphStep:
        """One decode step, tokens drawn by `Sampler.sample_simple` and left in `last_tokens` for the next."""
        step = GraphStep(plan, self._pinned.take(), self._pinned)
        count, bucket = self._replay_step(plan, step.buffer, draws=not is_filtered)
        if is_filtered:
            self._captured[bucket].draw_filtered.replay()
        # Ordered after the copy that reads the buffer's inputs, whose place the outcome takes.
        step.buffer.tensor[:count].copy_(self._outcome[:count], non_blocking=True)
        step.event.record()
        return step

    def run_to_logits(self, plan: StepPlan) -> tuple[Tensor, PinnedBuffer]:
        """One decode step up to its logits [rows, vocab] float32. The buffer is to be given back when the step is over."""
        buffer = self._pinned.take()
        count, bucket = self._replay_step(plan, buffer, draws=False)
        self._captured[bucket].widen.replay()
        return self._logits[:count], buffer

    def give_back(self, buffer: PinnedBuffer) -> None:
        self._pinned.give_back(buffer)

    def _replay_step(self, plan: StepPlan, buffer: PinnedBuffer, *, draws: bool) -> tuple[int, int]:
        count = len(plan.rows)
        bucket = self.buckets[bisect_left(self.buckets, count)]
        inputs = buffer.array[: 4 * bucket].reshape(4, bucket)
        inputs[0, :count] = plan.rows
        inputs[1, :count] = plan.num_computed
        inputs[2:] = self._rows.padding_row
        inputs[2 if draws else 3, :count] = plan.rows
        if count < bucket:
            inputs[:2, count:] = ((-1,), (0,))
        self._inputs[: 4 * bucket].copy_(buffer.tensor[: 4 * bucket], non_blocking=True)
        self._captured[bucket].step.replay()
        return count, bucket

    @torch.inference_mode()
    def _capture(self, bucket: int) -> None:
        self._clear_inputs(bucket)
        # Loads kernels and sizes workspaces outside the captures.
        self._draw(self._drawn_step(bucket), is_filtered=True)
        torch.cuda.synchronize()
        step, logits = self._record(lambda: self._drawn_step(bucket))
        # These read the logits where the step's graph writes them; once they exist, later captures may use that memory, too.
        draw_filtered, _ = self._record(lambda: self._draw(logits, is_filtered=True))
        widen, _ = self._record(lambda: self._logits[:bucket].copy_(logits))
        self._captured[bucket] = _Captured(step, draw_filtered, widen)

    def _record(self, run: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()
        return graph, result

    @torch.inference_mode()
    def run_dry(self, bucket: int) -> None:
        """Every launch of a decode step, inside `compile_ahead`."""
        self._clear_inputs(bucket)
        logits = self._step(bucket, is_dry=True)
        for is_filtered in (False, True):
            self._draw(logits, is_filtered=is_filtered)

    def _clear_inputs(self, bucket: int) -> None:
        padding_row = self._rows.padding_row
        self._inputs[: 4 * bucket].view(4, bucket).copy_(torch.tensor([[-1], [0], [padding_row], [padding_row]]))

    def _drawn_step(self, bucket: int) -> Tensor:
        """A step and its draw; the logits stay for a draw after it."""
        logits = self._step(bucket)
        self._draw(logits, is_filtered=False)
        return logits

    def _step(self, bucket: int, *, is_dry: bool = False) -> Tensor:
        """Logits [bucket, vocab] in whatever dtype the model makes them."""
        from trivium.ops.triton.inputs import prepare_decode_inputs

        rows, positions, _, _ = self._inputs[: 4 * bucket].view(4, bucket)
        block_size = self._rows.block_size
        inputs = prepare_decode_inputs(rows, positions, self._rows.last_tokens, self._rows.blocks_device, block_size)
        if is_dry:  # the kernel did not run: what it leaves is read as indices
            for tensor in (inputs.input_ids, inputs.positions, inputs.slots, inputs.seq_lens, inputs.block_tables):
                tensor.zero_()
        batch = ForwardBatch(
            input_ids=inputs.input_ids,
            positions=inputs.positions,
            slots=inputs.slots,
            block_tables=inputs.block_tables,
            query_starts=self._rows.counting[: bucket + 1],
            seq_lens=inputs.seq_lens,
            logits_indices=rows,  # every row is sampled: not looked at
            num_decodes=bucket,
            max_query_len=1,
            max_seq_len=self._max_model_len,
            block_size=block_size,
        )
        self._attention.plan(batch)
        return self._model.compute_logits(self._model.forward(batch, self._caches), widen=False)

    def _draw(self, logits: Tensor, *, is_filtered: bool) -> None:
        from trivium.ops.triton.remember import remember_tokens

        bucket = logits.shape[0]
        rows = self._inputs[: 4 * bucket].view(4, bucket)[3 if is_filtered else 2]
        sampled = self._sampler.sample_simple(logits, rows, is_filtered=is_filtered)
        remember_tokens(rows, sampled.token_ids, sampled.outcome, self._rows.last_tokens, self._outcome[:bucket])
