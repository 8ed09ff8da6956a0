"""Triton kernels for min_p and top_p without sorting or searching: draw first, ask whether the token was allowed, and draw again if not.

The token with the largest score is the answer if the filters allow it: min_p by its logit, top_p if the tokens that are more likely weigh less
than top_p of the mass (a top_k too large for `triton_top_k`: if they are fewer than top_k). If they don't allow it, they allow no token that is less
likely or as likely either; so the next candidate is the largest score among the more likely ones. Those few are collected on the way, so that drawing
again is cheap.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.sampling.table import SamplingTable
from trivium.ops.sampling.triton_common import (
    BY_LINE,
    COUNTER,
    MIN_P,
    NO_ID,
    NUM_FLOATS,
    NUM_INTS,
    PIECE,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    load_logits,
    race_times,
    seen_pointer,
    weights,
    winner,
)
from trivium.ops.sampling.triton_draw import DrawWork
from trivium.ops.triton.launch import run

CAPACITY = 2048
"""Tokens more likely than the first draw that are kept for the next; with more, a line is read again in each round."""
PIECE_CAPACITY = 256


@triton.jit
def _amounts(x, floor, maximum, temperature, top_k):
    """What each token counts for, int64: one for a line with top_k, else its mass; 0 below min_p's floor."""
    return tl.where(x >= floor, tl.where(top_k > 0.0, 1, weights(x, maximum, temperature)), 0)


@triton.jit
def _is_checked(temperature, top_p, top_k, min_p):
    return (temperature > 0.0) & ((top_p < 1.0) | (min_p > 0.0) | (top_k > 0.0))


@triton.jit
def _is_refused(drawn, floor, above, total, top_p, top_k):
    """Whether the filters don't allow a token with logit `drawn`, above which lies the amount `above` of `total`."""
    limit = tl.where(top_k > 0.0, top_k.to(tl.float64), top_p.to(tl.float64) * total.to(tl.float64))
    return (drawn < floor) | (((top_k > 0.0) | (top_p < 1.0)) & (above.to(tl.float64) >= limit))


@triton.jit(do_not_specialize_on_alignment=BY_LINE)
def _weigh_piece(
    logits_ptr, stride, rows_ptr, floats_ptr, ints_ptr, is_drawn_ptr, outcome_ptr, line_max_ptr, drawn_ptr, above_ptr, totals_ptr, vocab_size,
    PIECE: tl.constexpr,
):  # fmt: skip
    """Adds a piece's amount above the drawn token, and its amount in all, to the line's sums."""
    line, piece = tl.program_id(0), tl.program_id(1)
    if tl.load(is_drawn_ptr + line) != 0:
        return
    row = tl.load(rows_ptr + line)
    params_ptr = floats_ptr + row * NUM_FLOATS
    temperature, top_p, top_k = tl.load(params_ptr + TEMPERATURE), tl.load(params_ptr + TOP_P), tl.load(params_ptr + TOP_K)
    min_p, token = tl.load(params_ptr + MIN_P), tl.load(outcome_ptr + line)
    if _is_checked(temperature, top_p, top_k, min_p) & (token >= 0):
        line_ptr = logits_ptr + line.to(tl.int64) * stride
        ids = piece * PIECE + tl.arange(0, PIECE)
        x = load_logits(line_ptr, ids, ids < vocab_size, floats_ptr, ints_ptr, row, True)
        drawn = tl.max(load_logits(line_ptr, token + tl.arange(0, 1), token >= 0, floats_ptr, ints_ptr, row, True), axis=0)
        maximum = tl.load(line_max_ptr + line)
        amounts = _amounts(x, maximum + temperature * tl.log(min_p), maximum, temperature, top_k)
        tl.atomic_add(totals_ptr + line, tl.sum(amounts, axis=0))
        above = tl.sum(tl.where(x > drawn, amounts, 0), axis=0)
        if above > 0:
            tl.atomic_add(above_ptr + line, above)
        if piece == 0:
            tl.store(drawn_ptr + line, drawn)


@triton.jit(do_not_specialize_on_alignment=BY_LINE)
def _collect_piece(
    logits_ptr, stride, rows_ptr, floats_ptr, ints_ptr, is_drawn_ptr, outcome_ptr, line_max_ptr, drawn_ptr, above_ptr, totals_ptr, counts_ptr,
    values_ptr, ids_ptr, vocab_size, PIECE: tl.constexpr, CAPACITY: tl.constexpr, PIECE_CAPACITY: tl.constexpr,
):  # fmt: skip
    """For a refused token: collects the tokens above it."""
    line, piece = tl.program_id(0), tl.program_id(1)
    if tl.load(is_drawn_ptr + line) != 0:
        return
    row = tl.load(rows_ptr + line)
    params_ptr = floats_ptr + row * NUM_FLOATS
    temperature, top_p, top_k = tl.load(params_ptr + TEMPERATURE), tl.load(params_ptr + TOP_P), tl.load(params_ptr + TOP_K)
    min_p = tl.load(params_ptr + MIN_P)
    if _is_checked(temperature, top_p, top_k, min_p) & (tl.load(outcome_ptr + line) >= 0):
        drawn = tl.load(drawn_ptr + line)
        floor = tl.load(line_max_ptr + line) + temperature * tl.log(min_p)
        if _is_refused(drawn, floor, tl.load(above_ptr + line), tl.load(totals_ptr + line), top_p, top_k):
            ids = piece * PIECE + tl.arange(0, PIECE)
            x = load_logits(logits_ptr + line.to(tl.int64) * stride, ids, ids < vocab_size, floats_ptr, ints_ptr, row, True)
            is_above = (x > drawn) & (x >= floor)
            num_above = tl.sum(is_above.to(tl.int32), axis=0)
            if num_above > PIECE_CAPACITY:
                tl.atomic_add(counts_ptr + line, CAPACITY + 1)
            elif num_above > 0:
                slots = tl.atomic_add(counts_ptr + line + tl.zeros_like(ids), 1, mask=is_above)
                where = line.to(tl.int64) * CAPACITY + slots
                tl.store(values_ptr + where, x, mask=is_above & (slots < CAPACITY))
                tl.store(ids_ptr + where, ids, mask=is_above & (slots < CAPACITY))


@triton.jit
def _draw_above(line_ptr, pivot, floor, maximum, temperature, seed, counter, floats_ptr, ints_ptr, row, vocab_size, TILE: tl.constexpr):
    """The draw among the line's tokens above `pivot` and from `floor` upwards."""
    best = tl.full((TILE,), float("inf"), tl.float32)
    best_ids = tl.full((TILE,), NO_ID, tl.int32)
    start = 0
    while start < vocab_size:
        ids = start + tl.arange(0, TILE)
        x = load_logits(line_ptr, ids, ids < vocab_size, floats_ptr, ints_ptr, row, True)
        times = race_times(x, ids, maximum, temperature, seed, counter)
        is_better = (x > pivot) & (x >= floor) & (times < best)
        best = tl.where(is_better, times, best)
        best_ids = tl.where(is_better, ids, best_ids)
        start += TILE
    _, token = winner(best, best_ids)
    return token


@triton.jit
def _amount_above(line_ptr, pivot, floor, maximum, temperature, top_k, floats_ptr, ints_ptr, row, vocab_size, TILE: tl.constexpr):
    total = tl.zeros((TILE,), tl.int64)
    start = 0
    while start < vocab_size:
        ids = start + tl.arange(0, TILE)
        x = load_logits(line_ptr, ids, ids < vocab_size, floats_ptr, ints_ptr, row, True)
        total += tl.where(x > pivot, _amounts(x, floor, maximum, temperature, top_k), 0)
        start += TILE
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize_on_alignment=BY_LINE)
def _finish_line(
    logits_ptr, stride, rows_ptr, floats_ptr, ints_ptr, is_drawn_ptr, outcome_ptr, token_ids_ptr, line_max_ptr, drawn_ptr, above_ptr, totals_ptr,
    counts_ptr, values_ptr, ids_ptr, vocab_size, TILE: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Draws again until the token is allowed; then counts it for the penalties."""
    line = tl.program_id(0)
    row = tl.load(rows_ptr + line)
    params_ptr = floats_ptr + row * NUM_FLOATS
    temperature, top_p, top_k = tl.load(params_ptr + TEMPERATURE), tl.load(params_ptr + TOP_P), tl.load(params_ptr + TOP_K)
    min_p, token = tl.load(params_ptr + MIN_P), tl.load(outcome_ptr + line).to(tl.int32)
    if _is_checked(temperature, top_p, top_k, min_p) & (tl.load(is_drawn_ptr + line) == 0) & (token >= 0):
        maximum, drawn = tl.load(line_max_ptr + line), tl.load(drawn_ptr + line)
        floor = maximum + temperature * tl.log(min_p)
        total, above = tl.load(totals_ptr + line), tl.load(above_ptr + line)
        if _is_refused(drawn, floor, above, total, top_p, top_k):
            line_ptr = logits_ptr + line.to(tl.int64) * stride
            seed, counter = tl.load(ints_ptr + row * NUM_INTS + SEED), tl.load(ints_ptr + row * NUM_INTS + COUNTER) - 1
            count = tl.load(counts_ptr + line)
            if count <= CAPACITY:
                slots = tl.arange(0, CAPACITY)
                values = tl.load(values_ptr + line.to(tl.int64) * CAPACITY + slots, mask=slots < count, other=-float("inf"))
                ids = tl.load(ids_ptr + line.to(tl.int64) * CAPACITY + slots, mask=slots < count, other=NO_ID)
                amounts = _amounts(values, floor, maximum, temperature, top_k)
                times = race_times(values, ids, maximum, temperature, seed, counter)
                while _is_refused(drawn, floor, above, total, top_p, top_k):
                    is_left = values > drawn
                    _, token = winner(tl.where(is_left, times, float("inf")), tl.where(is_left, ids, NO_ID))
                    drawn = tl.max(tl.where(ids == token, values, -float("inf")), axis=0)
                    above = tl.sum(tl.where(values > drawn, amounts, 0), axis=0)
            else:
                while _is_refused(drawn, floor, above, total, top_p, top_k):
                    token = _draw_above(line_ptr, drawn, floor, maximum, temperature, seed, counter, floats_ptr, ints_ptr, row, vocab_size, TILE)
                    drawn = tl.max(load_logits(line_ptr, token + tl.arange(0, 1), token >= 0, floats_ptr, ints_ptr, row, True), axis=0)
                    above = _amount_above(line_ptr, drawn, floor, maximum, temperature, top_k, floats_ptr, ints_ptr, row, vocab_size, TILE)
            tl.store(outcome_ptr + line, token.to(tl.int64))
            tl.store(token_ids_ptr + line, token.to(tl.int64))
    seen_ptr, has_penalties = seen_pointer(ints_ptr, row)
    if has_penalties & (token >= 0):
        tl.store(seen_ptr + token, tl.load(seen_ptr + token) + 1)


def redraw(logits: Tensor, table: SamplingTable, rows: Tensor, work: DrawWork) -> None:
    """Replace the tokens in `work` that min_p, top_p or a large top_k of their lines don't allow. The counters have gone up already."""
    num_lines, vocab_size = logits.shape
    num_pieces = work.maxima.shape[1]
    above, totals, counts = torch.zeros(3, num_lines, dtype=torch.int64, device=logits.device)
    drawn = torch.empty(num_lines, dtype=torch.float32, device=logits.device)
    values = torch.empty(num_lines, CAPACITY, dtype=torch.float32, device=logits.device)
    ids = torch.empty(num_lines, CAPACITY, dtype=torch.int32, device=logits.device)
    source = (logits, logits.stride(0), rows, table.floats, table.ints, work.is_drawn, work.outcome)
    run(_weigh_piece, (num_lines, num_pieces))(*source, work.line_max, drawn, above, totals, vocab_size, PIECE=PIECE, num_warps=8)
    run(_collect_piece, (num_lines, num_pieces))(
        *source, work.line_max, drawn, above, totals, counts, values, ids, vocab_size,
        PIECE=PIECE, CAPACITY=CAPACITY, PIECE_CAPACITY=PIECE_CAPACITY, num_warps=8,
    )  # fmt: skip
    run(_finish_line, (num_lines,))(
        *source, work.token_ids, work.line_max, drawn, above, totals, counts, values, ids, vocab_size, TILE=PIECE, CAPACITY=CAPACITY, num_warps=8
    )
