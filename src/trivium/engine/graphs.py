"""CUDA graphs of decode steps: one for each batch-size bucket, all in one memory pool, captured at start.

A graph contains the whole step up to the logits, the building of its inputs included. The host only copies two numbers per row, the row
index and the position, so replaying costs the same whatever the model. Rows that fill up a bucket are the padding row at position 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trivium.engine.rows import Ints, RowTable
from trivium.models import Model
from trivium.ops.attention.base import AttentionBackend, KVCache
from trivium.ops.batch import ForwardBatch


def graph_buckets(max_num_seqs: int) -> list[int]:
    """Batch sizes to capture: dense where a step is short and padding costs most, sparser above; the largest is `max_num_seqs`."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 512, 32), *range(512, max_num_seqs + 1, 64)]
    return sorted({size for size in sizes if size < max_num_seqs} | {max_num_seqs})


@dataclass(slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    logits: Tensor  # [bucket, vocab]


class DecodeGraphs:
    """Replays decode steps. The logits it returns are overwritten by the next replay of any bucket."""

    def __init__(self, model: Model, caches: list[KVCache], attention: AttentionBackend, rows: RowTable, *, buckets: list[int], max_model_len: int) -> None:
        self.buckets = buckets
        self._model = model
        self._caches = caches
        self._attention = attention
        self._rows = rows
        self._max_model_len = max_model_len
        self._inputs = torch.zeros((2, buckets[-1]), dtype=torch.int64, device=rows.device)  # row indices, positions
        self._inputs[0].fill_(rows.padding_row)
        self._captured: dict[int, _Captured] = {}
        self._pool: tuple[int, int] | None = None

    def capture_all(self, on_captured: Callable[[int, int], None]) -> None:
        """Largest first, so that the smaller ones fit in its pool. `on_captured(done, total)` after each."""
        for done, bucket in enumerate(reversed(self.buckets), 1):
            self._capture(bucket)
            on_captured(done, len(self.buckets))

    def run(self, rows: Ints, positions: Ints) -> Tensor:
        """One decode step of these rows; logits [len(rows), vocab]."""
        bucket = self.buckets[bisect_left(self.buckets, len(rows))]
        staged = np.zeros((2, bucket), dtype=np.int64)
        staged[0] = self._rows.padding_row
        staged[0, : len(rows)] = rows
        staged[1, : len(rows)] = positions
        self._inputs[:, :bucket].copy_(torch.from_numpy(staged).pin_memory(), non_blocking=True)
        captured = self._captured[bucket]
        captured.graph.replay()
        return captured.logits[: len(rows)]

    @torch.inference_mode()
    def _capture(self, bucket: int) -> None:
        self._step(bucket)  # compiles kernels and sizes workspaces outside the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = self._step(bucket)
        self._pool = graph.pool()
        self._captured[bucket] = _Captured(graph, logits)

    def _step(self, bucket: int) -> Tensor:
        rows, positions = self._inputs[0, :bucket], self._inputs[1, :bucket]
        block_size = self._rows.block_size
        block_tables = self._rows.blocks_device.index_select(0, rows)
        blocks = block_tables.gather(1, (positions // block_size)[:, None])[:, 0]
        batch = ForwardBatch(
            input_ids=self._rows.last_tokens.index_select(0, rows),
            positions=positions,
            slots=blocks.to(torch.int64) * block_size + positions % block_size,
            block_tables=block_tables,
            query_starts=torch.arange(bucket + 1, dtype=torch.int32, device=rows.device),
            seq_lens=(positions + 1).to(torch.int32),
            logits_indices=rows,  # every row is sampled: not looked at
            num_decodes=bucket,
            max_query_len=1,
            max_seq_len=self._max_model_len,
            block_size=block_size,
        )
        self._attention.plan(batch)
        return self._model.compute_logits(self._model.forward(batch, self._caches))
