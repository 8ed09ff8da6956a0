"""The runner's persistent rows: block tables and last tokens, on the host where decisions are written and on the device where they are read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trivium.engine.staging import Staging
from trivium.scheduling.step import StepPlan

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class StepColumns:
    """A plan as arrays. R rows, T tokens."""

    rows: Ints  # [R]
    num_tokens: Ints  # [R]
    num_computed: Ints  # [R]
    query_starts: Ints  # [R + 1]
    positions: Ints  # [T]
    slots: Ints  # [T]
    seq_lens: Ints  # [R]
    sampled: Ints  # [S] indices into rows


class RowTable:
    """Row `max_num_seqs` belongs to nobody: padding of captured graphs runs on it, reading and writing block 0."""

    def __init__(self, max_num_seqs: int, max_blocks: int, block_size: int, device: torch.device) -> None:
        self.block_size = block_size
        self.device = device
        self.padding_row = max_num_seqs
        self.blocks: npt.NDArray[np.int32] = np.zeros((max_num_seqs + 1, max_blocks), dtype=np.int32)
        if device.type == "cpu":
            self.blocks_device = torch.from_numpy(self.blocks)
        else:
            self.blocks_device = torch.zeros(self.blocks.shape, dtype=torch.int32, device=device)
        self.last_tokens = torch.zeros(max_num_seqs + 1, dtype=torch.int32, device=device)
        self.counting = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device)
        """`query_starts` of decode steps."""

    def apply(self, plan: StepPlan, staging: Staging) -> None:
        """Write the plan's new blocks into the tables."""
        width = self.blocks.shape[1]
        flat: list[int] = []
        values: list[int] = []
        for row, start, blocks in zip(plan.rows, plan.block_starts, plan.new_blocks, strict=True):
            if blocks:
                first = row * width + start
                flat.extend(range(first, first + len(blocks)))
                values.extend(blocks)
        if not flat:
            return
        index = np.array(flat, dtype=np.int64)
        value = np.array(values, dtype=np.int32)
        self.blocks.reshape(-1)[index] = value
        if self.device.type != "cpu":
            self.blocks_device.view(-1).index_copy_(0, staging.ship(index), staging.ship(value))

    def columns(self, plan: StepPlan) -> StepColumns:
        rows = np.array(plan.rows, dtype=np.int64)
        num_tokens = np.array(plan.num_tokens, dtype=np.int64)
        num_computed = np.array(plan.num_computed, dtype=np.int64)
        query_starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(num_tokens, out=query_starts[1:])
        positions = np.arange(query_starts[-1]) + np.repeat(num_computed - query_starts[:-1], num_tokens)
        blocks = self.blocks[np.repeat(rows, num_tokens), positions // self.block_size]
        return StepColumns(
            rows=rows,
            num_tokens=num_tokens,
            num_computed=num_computed,
            query_starts=query_starts,
            positions=positions,
            slots=blocks.astype(np.int64) * self.block_size + positions % self.block_size,
            seq_lens=num_computed + num_tokens,
            sampled=np.flatnonzero(np.array(plan.samples, dtype=np.bool_)),
        )

    def gather_blocks(self, columns: StepColumns, rows_device: Tensor) -> Tensor:
        """Block tables of the step's rows, [R, enough columns for the longest]."""
        width = int(-(-columns.seq_lens.max() // self.block_size))
        if self.device.type == "cpu":
            return torch.from_numpy(self.blocks[columns.rows, :width])
        return self.blocks_device[:, :width].index_select(0, rows_device)

    def input_ids(self, plan: StepPlan, columns: StepColumns, rows_device: Tensor, staging: Staging) -> Tensor:
        """Token ids of the step, [T] int32: what the plan feeds, and for the other rows what they sampled last."""
        num_fed = np.array(plan.num_fed, dtype=np.int64)
        resident = np.flatnonzero(num_fed == 0)
        if len(resident) == len(num_fed):
            return self.last_tokens.index_select(0, rows_device)
        ids = np.zeros(len(columns.positions), dtype=np.int32)
        fed = np.ones(len(ids), dtype=np.bool_)
        fed[columns.query_starts[resident]] = False
        ids[fed] = plan.token_ids
        ids_device = staging.ship(ids)
        if len(resident):
            where = staging.ship(columns.query_starts[resident])
            ids_device.index_copy_(0, where, self.last_tokens.index_select(0, rows_device[staging.ship(resident)]))
        return ids_device
