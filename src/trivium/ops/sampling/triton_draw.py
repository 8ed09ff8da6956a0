"""Triton kernels that draw one token a line: logits + temperature * noise and their first maximum, in one pass over the logits.

The vocabulary is split into pieces, one program each; a second, tiny kernel takes the best piece. Parameters are read from the sampler's table
through the line's row, which spares a dozen small launches a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.sampling.table import SamplingTable
from trivium.ops.sampling.triton_common import (
    BY_LINE,
    COUNTER,
    NO_ID,
    NOT_FINITE,
    NUM_FLOATS,
    NUM_INTS,
    PIECE,
    SEED,
    TEMPERATURE,
    load_logits,
    race_times,
    winner,
)
from trivium.ops.triton.launch import cdiv, next_pow2, on_device, run


@dataclass(frozen=True, slots=True)
class DrawWork:
    """What the kernels of one draw share. S lines, P pieces."""

    best: Tensor  # [S, P] float32 score
    best_ids: Tensor  # [S, P] int32
    maxima: Tensor  # [S, P] float32 largest logit, NaN as +inf
    line_max: Tensor  # [S] float32
    is_drawn: Tensor  # [S] int32: the line has its token, from `triton_top_k`
    token_ids: Tensor  # [S] int64
    outcome: Tensor  # [S] int64

    @staticmethod
    def of(num_lines: int, num_pieces: int, device: torch.device) -> DrawWork:
        best, maxima = torch.empty(2, num_lines, num_pieces, dtype=torch.float32, device=device)
        token_ids, outcome = torch.empty(2, num_lines, dtype=torch.int64, device=device)
        return DrawWork(
            best=best,
            best_ids=torch.empty(num_lines, num_pieces, dtype=torch.int32, device=device),
            maxima=maxima,
            line_max=torch.empty(num_lines, dtype=torch.float32, device=device),
            is_drawn=torch.empty(num_lines, dtype=torch.int32, device=device),
            token_ids=token_ids,
            outcome=outcome,
        )


@triton.jit(do_not_specialize_on_alignment=BY_LINE)
def _best_of_piece(
    logits_ptr, stride, rows_ptr, floats_ptr, ints_ptr, is_drawn_ptr, best_ptr, best_ids_ptr, maxima_ptr, vocab_size, num_pieces,
    IS_FULL: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    line, piece = tl.program_id(0), tl.program_id(1)
    if IS_FULL:  # noqa: SIM102
        if tl.load(is_drawn_ptr + line) != 0:
            return
    row = tl.load(rows_ptr + line)
    temperature = tl.load(floats_ptr + row * NUM_FLOATS + TEMPERATURE)
    ids = piece * PIECE + tl.arange(0, PIECE)
    x = load_logits(logits_ptr + line.to(tl.int64) * stride, ids, ids < vocab_size, floats_ptr, ints_ptr, row, IS_FULL)
    x = tl.where(x != x, float("inf"), x)  # NaN becomes +inf, which no comparison loses
    maximum = tl.max(x, axis=0)
    slot = line * num_pieces + piece
    if (temperature > 0.0) & (maximum > -float("inf")) & (maximum < float("inf")):
        seed, counter = tl.load(ints_ptr + row * NUM_INTS + SEED), tl.load(ints_ptr + row * NUM_INTS + COUNTER)
        time, token = winner(race_times(x, ids, maximum, temperature, seed, counter), ids)
        tl.store(best_ptr + slot, maximum - temperature * tl.log(time))
        tl.store(best_ids_ptr + slot, token)
    else:
        tl.store(best_ptr + slot, maximum)
        tl.store(best_ids_ptr + slot, tl.min(tl.where(x == maximum, ids, NO_ID), axis=0))
    if IS_FULL:
        tl.store(maxima_ptr + slot, maximum)


@triton.jit(do_not_specialize_on_alignment=BY_LINE)
def _best_of_line(
    best_ptr, best_ids_ptr, maxima_ptr, line_max_ptr, token_ids_ptr, outcome_ptr, rows_ptr, ints_ptr, is_drawn_ptr, num_pieces,
    IS_FULL: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    counter_ptr = ints_ptr + tl.load(rows_ptr + line) * NUM_INTS + COUNTER
    tl.store(counter_ptr, tl.load(counter_ptr) + 1)
    if IS_FULL:  # noqa: SIM102
        if tl.load(is_drawn_ptr + line) != 0:
            return
    pieces = tl.arange(0, PIECES)
    slots = line * num_pieces + pieces
    scores = tl.load(best_ptr + slots, mask=pieces < num_pieces, other=-float("inf"))
    ids = tl.load(best_ids_ptr + slots, mask=pieces < num_pieces, other=NO_ID)
    best = tl.max(scores, axis=0)
    token = tl.min(tl.where(scores == best, ids, NO_ID), axis=0).to(tl.int64)
    is_ok = (best > -float("inf")) & (best < float("inf"))
    tl.store(token_ids_ptr + line, tl.where(is_ok, token, 0))
    tl.store(outcome_ptr + line, tl.where(is_ok, token, NOT_FINITE))
    if IS_FULL:
        tl.store(line_max_ptr + line, tl.max(tl.load(maxima_ptr + slots, mask=pieces < num_pieces, other=-float("inf")), axis=0))


def draw_rows(logits: Tensor, table: SamplingTable, rows: Tensor, *, is_full: bool) -> tuple[Tensor, Tensor]:
    """See `draw.draw_rows`, without typical_p; logits [S, V] of any float type, which are not written to. Can be captured in a CUDA graph.

    `is_full`: with penalties (and their count of the drawn token) and filters. Lines with top_k are then drawn first (`triton_top_k`), all others as
    if they had no filter; a draw that min_p or top_p would not allow is drawn again (`triton_top_p`).
    """
    from trivium.ops.sampling import triton_top_k, triton_top_p

    num_lines, vocab_size = logits.shape
    assert logits.stride(1) == 1
    num_pieces = cdiv(vocab_size, PIECE)
    work = DrawWork.of(num_lines, num_pieces, logits.device)
    if num_lines == 0:
        return work.token_ids, work.outcome
    with on_device(logits):
        if is_full:
            triton_top_k.draw(logits, table, rows, work)
        run(_best_of_piece, (num_lines, num_pieces))(
            logits, logits.stride(0), rows, table.floats, table.ints, work.is_drawn, work.best, work.best_ids, work.maxima, vocab_size, num_pieces,
            IS_FULL=is_full, PIECE=PIECE, num_warps=8,
        )  # fmt: skip
        run(_best_of_line, (num_lines,))(
            work.best, work.best_ids, work.maxima, work.line_max, work.token_ids, work.outcome, rows, table.ints, work.is_drawn, num_pieces,
            IS_FULL=is_full, PIECES=next_pow2(num_pieces), num_warps=1,
        )  # fmt: skip
        if is_full:
            triton_top_p.redraw(logits, table, rows, work)
    return work.token_ids, work.outcome
