"""Batches for tests of the CPU kernels."""

from __future__ import annotations

import itertools

import torch

from trivium.ops.batch import ForwardBatch


def make_batch(rows: list[tuple[int, int]], block_size: int, *, seed: int = 0) -> tuple[ForwardBatch, int]:
    """Rows of (queries, tokens in the cache) with blocks dealt at random; the number of blocks."""
    generator = torch.Generator().manual_seed(seed)
    needs = [-(-seq_len // block_size) for _, seq_len in rows]
    num_blocks = sum(needs) + 2
    order = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
    tables = torch.zeros(len(rows), max([*needs, 1]) + 1, dtype=torch.int32)
    for row, need in enumerate(needs):
        tables[row, :need] = torch.tensor([order.pop() for _ in range(need)], dtype=torch.int32)
    starts = [0, *itertools.accumulate(queries for queries, _ in rows)]
    empty = torch.empty(0, dtype=torch.int64)
    batch = ForwardBatch(
        input_ids=empty,
        positions=empty,
        slots=empty,
        block_tables=tables,
        query_starts=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor([seq_len for _, seq_len in rows], dtype=torch.int32),
        logits_indices=empty,
        num_decodes=0,
        max_query_len=max([queries for queries, _ in rows], default=0),
        max_seq_len=max([seq_len for _, seq_len in rows], default=0),
        block_size=block_size,
        query_starts_cpu=starts,
        seq_lens_cpu=[seq_len for _, seq_len in rows],
    )
    return batch, num_blocks
