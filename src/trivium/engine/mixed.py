"""CUDA graphs of steps with prompts in them, by their number of tokens: without them the host takes longer to launch a short prompt than the
device to compute it.

A graph fixes shapes, so that a step of up to T tokens is laid out as one of exactly T: the rows of one token first, then the prompts' chunks, then
padding, which touches no cache. How many there are of each, and how long, stands in device arrays that the attention kernels read. A graph
ends at the hidden states; which of them are sampled, and how, is left to the runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from trivium.engine.rows import RowTable, StepColumns
from trivium.engine.staging import PinnedBuffer, PinnedPool
from trivium.models import Model
from trivium.ops.attention.base import AttentionBackend, KVCache
from trivium.ops.batch import ForwardBatch
from trivium.scheduling.step import StepPlan

MAX_PROMPTS: Final = 64
SMALL: Final = 1024
"""Tokens up to which padding is cheaper than launching kernel by kernel; also the steps in which few rows are expected to decode."""
SMALL_DECODES: Final = 256
MAX_PADDING: Final = 8
"""Above `SMALL` a step is padded by no more than one part in this many."""
LARGEST: Final = 4096
"""Steps above it keep the device busy for longer than the host takes to launch them."""


@dataclass(frozen=True, slots=True)
class MixedShape:
    """What fits into one graph."""

    tokens: int
    decodes: int
    """Rows of one token."""
    prompts: int
    """Rows of more tokens."""

    @property
    def rows(self) -> int:
        return self.decodes + self.prompts

    @property
    def num_inputs(self) -> int:
        """int64 numbers that the host sends: three a token, two a row and where the rows start."""
        return 3 * self.tokens + 3 * self.rows + 1


def mixed_shapes(max_num_seqs: int, max_num_batched_tokens: int) -> list[MixedShape]:
    """By number of tokens, in steps of what the products' tiles pad anyway where a step is short, coarser above."""
    sizes = [32, 64, *range(128, 1024, 128), *range(1024, 2048, 256), *range(2048, LARGEST + 1, 512)]
    shapes: list[MixedShape] = []
    for tokens in sizes:
        if tokens <= max_num_batched_tokens:
            decodes = min(tokens, max_num_seqs, SMALL_DECODES if tokens <= SMALL else max_num_seqs)
            shapes.append(MixedShape(tokens, decodes, min(MAX_PROMPTS, tokens, max_num_seqs)))
    return shapes


def choose_shape(shapes: list[MixedShape], num_tokens: int, num_decodes: int, num_prompts: int) -> MixedShape | None:
    """The smallest of `shapes` that holds a step; None if there is none or padding would cost more than launching kernel by kernel."""
    for shape in shapes:
        if shape.tokens >= num_tokens and shape.decodes >= num_decodes and shape.prompts >= num_prompts:
            is_cheap = shape.tokens <= SMALL or (shape.tokens - num_tokens) * MAX_PADDING <= num_tokens
            return shape if is_cheap else None
    return None


class MixedGraphs:
    """Replays steps with prompts. The hidden states that a replay leaves are overwritten by the next one of any graph."""

    def __init__(
        self,
        model: Model,
        caches: list[KVCache],
        attention: AttentionBackend,
        rows: RowTable,
        *,
        shapes: list[MixedShape],
        max_model_len: int,
        pool: Any,
    ) -> None:
        """`pool`: a pool handle of `torch.cuda`, shared with other graphs of the same stream."""
        self.shapes = shapes
        self._model = model
        self._caches = caches
        self._attention = attention
        self._rows = rows
        self._max_model_len = max_model_len
        self._pool = pool
        size = max(shape.num_inputs for shape in shapes)
        self._inputs = torch.zeros(size, dtype=torch.int64, device=rows.device)
        self._pinned = PinnedPool(size)
        self._captured: dict[MixedShape, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def shape_for(self, columns: StepColumns) -> MixedShape | None:
        """The graph for a step; None if it is better launched kernel by kernel."""
        num_decodes = int(np.count_nonzero(columns.num_tokens == 1))
        return choose_shape(self.shapes, len(columns.positions), num_decodes, len(columns.rows) - num_decodes)

    @torch.inference_mode()
    def capture_all(self, on_captured: Callable[[int, int], None]) -> None:
        """Largest first, so that the smaller ones fit in its memory. `on_captured(done, total)` after each."""
        for done, shape in enumerate(reversed(self.shapes), 1):
            self._clear_inputs(shape)
            self._forward(shape)  # loads kernels and sizes workspaces outside the capture
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                hidden = self._forward(shape)
            self._captured[shape] = graph, hidden
            on_captured(done, len(self.shapes))

    @torch.inference_mode()
    def run_dry(self, shapes: Iterable[MixedShape]) -> None:
        """Every launch of such steps, inside `compile_ahead`."""
        for shape in shapes:
            self._clear_inputs(shape)
            self._forward(shape, is_dry=True)

    def run(self, shape: MixedShape, plan: StepPlan, columns: StepColumns) -> tuple[Tensor, PinnedBuffer]:
        """Hidden states [shape.tokens, hidden], those of the step's tokens first. The buffer is to be given back when the step is over."""
        buffer = self._pinned.take()
        fill_inputs(buffer.array[: shape.num_inputs], shape, plan, columns)
        self._inputs[: shape.num_inputs].copy_(buffer.tensor[: shape.num_inputs], non_blocking=True)
        graph, hidden = self._captured[shape]
        graph.replay()
        return hidden, buffer

    def give_back(self, buffer: PinnedBuffer) -> None:
        self._pinned.give_back(buffer)

    def _clear_inputs(self, shape: MixedShape) -> None:
        inputs = np.empty(shape.num_inputs, dtype=np.int64)
        clear_inputs(inputs, shape)
        self._inputs[: shape.num_inputs].copy_(torch.from_numpy(inputs))

    def _forward(self, shape: MixedShape, *, is_dry: bool = False) -> Tensor:
        batch = build_batch(self._inputs[: shape.num_inputs], shape, self._rows, self._max_model_len, is_dry=is_dry)
        self._attention.plan(batch)
        return self._model.forward(batch, self._caches)


def build_batch(inputs: Tensor, shape: MixedShape, rows: RowTable, max_model_len: int, *, is_dry: bool = False) -> ForwardBatch:
    """The batch that `inputs` [shape.num_inputs] describe (see `fill_inputs`), made on the device. `is_dry`: kernels don't run."""
    from trivium.ops.triton.inputs import prepare_decode_inputs, prepare_token_inputs

    tokens, rows_and_ends, starts = inputs.split([3 * shape.tokens, 2 * shape.rows, shape.rows + 1])
    token_rows, positions, fed = tokens.view(3, -1)
    batch_rows, last_positions = rows_and_ends.view(2, -1)
    by_row = prepare_decode_inputs(batch_rows, last_positions, rows.last_tokens, rows.blocks_device, rows.block_size)
    input_ids, slots = prepare_token_inputs(token_rows, positions, fed, rows.last_tokens, rows.blocks_device, rows.block_size)
    if is_dry:  # what kernels did not write is read as indices
        for tensor in (input_ids, slots, by_row.seq_lens, by_row.block_tables):
            tensor.zero_()
    return ForwardBatch(
        input_ids=input_ids,
        positions=positions,
        slots=slots,
        block_tables=by_row.block_tables,
        query_starts=starts.to(torch.int32),
        seq_lens=by_row.seq_lens,
        logits_indices=batch_rows,  # not looked at: the graph ends before
        num_decodes=shape.decodes,
        max_query_len=shape.tokens,
        max_seq_len=max_model_len,
        block_size=rows.block_size,
    )


def clear_inputs(inputs: np.ndarray[Any, np.dtype[np.int64]], shape: MixedShape) -> None:
    """A step of nothing but padding: rows of -1 at position 0, no tokens fed, prompts that start and end at 0."""
    inputs[:] = 0
    inputs[: shape.tokens] = -1
    inputs[2 * shape.tokens : 3 * shape.tokens + shape.rows] = -1


def fill_inputs(inputs: np.ndarray[Any, np.dtype[np.int64]], shape: MixedShape, plan: StepPlan, columns: StepColumns) -> None:
    """Lay a step out for its graph.

    For each token its row, its position and its id, -1 where that is what the row sampled last; for each row of the batch its row
    in the tables and the position of its last token; then the token at which each row starts. The prompts are the rows from `shape.decodes` on.
    """
    clear_inputs(inputs, shape)
    num_tokens, num_rows = len(columns.positions), len(columns.rows)
    num_decodes = int(np.count_nonzero(columns.num_tokens == 1))
    token_rows, positions, fed = inputs[: 3 * shape.tokens].reshape(3, -1)
    batch_rows, last_positions = inputs[3 * shape.tokens : 3 * shape.tokens + 2 * shape.rows].reshape(2, -1)
    starts = inputs[3 * shape.tokens + 2 * shape.rows :]
    token_rows[:num_tokens] = np.repeat(columns.rows, columns.num_tokens)
    positions[:num_tokens] = columns.positions
    is_fed = np.repeat(np.array(plan.num_fed, dtype=np.int64) > 0, columns.num_tokens)
    fed[:num_tokens][is_fed] = plan.token_ids
    prompts = slice(shape.decodes, shape.decodes + num_rows - num_decodes)
    for target, source in ((batch_rows, columns.rows), (last_positions, columns.seq_lens - 1)):
        target[:num_decodes] = source[:num_decodes]
        target[prompts] = source[num_decodes:]
    starts[: shape.decodes] = np.minimum(np.arange(shape.decodes), num_decodes)  # padding rows are empty ones before the first prompt
    starts[prompts] = columns.query_starts[num_decodes:-1]
    starts[prompts.stop :] = num_tokens
