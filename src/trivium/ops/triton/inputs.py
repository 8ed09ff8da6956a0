"""What captured steps compute before their first layer: from rows and positions to a batch's inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.triton.launch import cdiv, next_pow2, on_device, pdl, run, wait_and_trigger


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Tensors of a `ForwardBatch`, B rows of one token."""

    input_ids: Tensor  # [B] int32
    positions: Tensor  # [B] int64
    slots: Tensor  # [B] int64
    seq_lens: Tensor  # [B] int32
    block_tables: Tensor  # [B, max_blocks] int32, zeros past a row's length


@triton.jit(do_not_specialize=["stride_table", "width"], do_not_specialize_on_alignment=["rows_ptr", "positions_ptr"])
def _decode_inputs_kernel(
    rows_ptr, positions_ptr, last_tokens_ptr, tables_ptr, ids_ptr, positions_out_ptr, slots_ptr, seq_lens_ptr, tables_out_ptr,
    stride_table, width, PAGE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    wait_and_trigger(PDL)
    row = tl.load(rows_ptr + index).to(tl.int64)
    position = tl.load(positions_ptr + index).to(tl.int64)
    is_row = row >= 0
    table = tables_ptr + tl.maximum(row, 0) * stride_table
    if tl.program_id(1) == 0:
        block = tl.load(table + position // PAGE, mask=is_row, other=0).to(tl.int64)
        tl.store(ids_ptr + index, tl.load(last_tokens_ptr + tl.maximum(row, 0), mask=is_row, other=0))
        tl.store(positions_out_ptr + index, tl.where(is_row, position, 0))
        tl.store(slots_ptr + index, tl.where(is_row, block * PAGE + position % PAGE, -1))
        tl.store(seq_lens_ptr + index, tl.where(is_row, position + 1, 0).to(tl.int32))
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    blocks = tl.load(table + columns, mask=is_row & (columns <= position // PAGE) & (columns < width), other=0)
    tl.store(tables_out_ptr + index * width + columns, blocks, mask=columns < width)


def prepare_decode_inputs(rows: Tensor, positions: Tensor, last_tokens: Tensor, block_tables: Tensor, block_size: int) -> DecodeInputs:
    """The inputs of a step in which each of `rows` [B] runs on the token it sampled last, at `positions` [B].

    last_tokens [max_rows] int32, block_tables [max_rows, max_blocks] int32. A row of -1 is padding: token 0 at position 0 with slot -1
    and length 0, for which attention gives zeros.
    """
    batch, width = rows.shape[0], block_tables.shape[1]

    def new(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(batch, *shape, dtype=dtype, device=rows.device)

    out = DecodeInputs(
        input_ids=new(torch.int32),
        positions=new(torch.int64),
        slots=new(torch.int64),
        seq_lens=new(torch.int32),
        block_tables=new(torch.int32, width),
    )
    if batch == 0:
        return out
    block = min(next_pow2(width), 1024)
    with on_device(rows):
        run(_decode_inputs_kernel, (batch, cdiv(width, block)))(
            rows, positions, last_tokens, block_tables, out.input_ids, out.positions, out.slots, out.seq_lens, out.block_tables,
            block_tables.stride(0), width, PAGE=block_size, BLOCK=block, num_warps=max(1, min(4, block // 128)), **pdl(rows),
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["count", "stride_table"], do_not_specialize_on_alignment=["rows_ptr", "positions_ptr", "fed_ptr"])
def _token_inputs_kernel(
    rows_ptr, positions_ptr, fed_ptr, last_tokens_ptr, tables_ptr, ids_ptr, slots_ptr, count, stride_table,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = tokens < count
    wait_and_trigger(PDL)
    row = tl.load(rows_ptr + tokens, mask=mask, other=-1).to(tl.int64)
    position = tl.load(positions_ptr + tokens, mask=mask, other=0).to(tl.int64)
    fed = tl.load(fed_ptr + tokens, mask=mask, other=0).to(tl.int32)
    is_row = row >= 0
    last = tl.load(last_tokens_ptr + row, mask=is_row & (fed < 0), other=0)
    tl.store(ids_ptr + tokens, tl.where(fed < 0, last, fed), mask=mask)
    block = tl.load(tables_ptr + row * stride_table + position // PAGE, mask=is_row, other=0).to(tl.int64)
    tl.store(slots_ptr + tokens, tl.where(is_row, block * PAGE + position % PAGE, -1), mask=mask)


def prepare_token_inputs(
    rows: Tensor, positions: Tensor, fed: Tensor, last_tokens: Tensor, block_tables: Tensor, block_size: int
) -> tuple[Tensor, Tensor]:
    """For each of T tokens of `rows` at `positions`: its id, and the slot of its key and value ([T] int32, [T] int64).

    rows, positions, fed [T] int64; last_tokens [max_rows] int32, block_tables [max_rows, max_blocks] int32. The id is `fed`, or what the
    row sampled last where that is -1. A row of -1 is padding: its slot is -1.
    """
    count = rows.shape[0]
    ids = torch.empty(count, dtype=torch.int32, device=rows.device)
    slots = torch.empty(count, dtype=torch.int64, device=rows.device)
    if count:
        with on_device(rows):
            run(_token_inputs_kernel, (cdiv(count, 128),))(
                rows, positions, fed, last_tokens, block_tables, ids, slots, count, block_tables.stride(0),
                PAGE=block_size, BLOCK=128, num_warps=4, **pdl(rows),
            )  # fmt: skip
    return ids, slots
