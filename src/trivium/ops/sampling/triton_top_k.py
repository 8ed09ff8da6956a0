"""Triton kernels that draw the lines with top_k (and perhaps min_p and top_p beside it), exactly and without sorting.

    maxima    of every group of 64 tokens of a line
    bounds    a logit that the k-th largest is not below: about the k-th largest of these maxima; and the groups that reach it
    collect   from these groups the logits from the bound upwards, usually little more than k, into a buffer in any order
    draw      the cutoffs in that buffer by bisection over the bits of a float, then the token

A line whose buffer overflows is searched and drawn from the whole line by its one program. Sums of probabilities are integers, so that neither
an order nor the batch changes a result.
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
    from_order_key,
    load_logits,
    order_key,
    race_times,
    weights,
    winner,
)
from trivium.ops.sampling.triton_draw import DrawWork
from trivium.ops.triton.launch import cdiv, next_pow2, run

GROUP = 64
CAPACITY = 2048
"""Logits a line may have in the buffer, held in registers by the search."""
COLLECTORS = 4
"""Programs that share the groups of a line."""
TILE = 1024
"""Of the loops over a whole line: small, for the sake of the registers of lines that don't need them."""
BOUND_STEPS = 14
"""Bisection steps for the bound: the float's exponent and five bits."""


@triton.jit(do_not_specialize_on_alignment=BY_LINE)
def _group_maxima(logits_ptr, stride, rows_ptr, floats_ptr, ints_ptr, maxima_ptr, vocab_size, num_groups, PIECE: tl.constexpr, GROUP: tl.constexpr):
    line, piece = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows_ptr + line)
    if (tl.load(floats_ptr + row * NUM_FLOATS + TOP_K) > 0.0) & (tl.load(floats_ptr + row * NUM_FLOATS + TEMPERATURE) > 0.0):
        ids = piece * PIECE + tl.arange(0, PIECE)
        x = load_logits(logits_ptr + line.to(tl.int64) * stride, ids, ids < vocab_size, floats_ptr, ints_ptr, row, True)
        x = tl.where(x != x, float("inf"), x)
        maxima = tl.max(tl.reshape(x, (PIECE // GROUP, GROUP)), axis=1)
        groups = piece * (PIECE // GROUP) + tl.arange(0, PIECE // GROUP)
        tl.store(maxima_ptr + line.to(tl.int64) * num_groups + groups, maxima, mask=groups < num_groups)


@triton.jit(do_not_specialize_on_alignment=BY_LINE)
def _bounds(rows_ptr, floats_ptr, maxima_ptr, line_max_ptr, bounds_ptr, groups_ptr, group_counts_ptr, counts_ptr, is_drawn_ptr, num_groups,
            GROUPS: tl.constexpr, STEPS: tl.constexpr):  # fmt: skip
    """A bound of +inf where there is nothing to do: no top_k, one that `triton_top_p` does better, or a line that is not finite."""
    line = tl.program_id(0)
    params_ptr = floats_ptr + tl.load(rows_ptr + line) * NUM_FLOATS
    temperature, top_p, top_k = tl.load(params_ptr + TEMPERATURE), tl.load(params_ptr + TOP_P), tl.load(params_ptr + TOP_K)
    tl.store(counts_ptr + line, 0)
    tl.store(group_counts_ptr + line, 0)
    tl.store(is_drawn_ptr + line, 0)
    bound = float("inf")
    if (temperature > 0.0) & (top_k > 0.0) & ((top_k <= num_groups) | (top_p < 1.0)):
        groups = tl.arange(0, GROUPS)
        x = tl.load(maxima_ptr + line.to(tl.int64) * num_groups + groups, mask=groups < num_groups, other=-float("inf"))
        maximum = tl.max(x, axis=0)
        if (maximum > -float("inf")) & (maximum < float("inf")):
            key = order_key(x)
            low, high = tl.min(key, axis=0).to(tl.int64), tl.max(key, axis=0).to(tl.int64) + 1
            for _ in range(STEPS):
                middle = (low + high) >> 1
                is_enough = tl.sum((key >= middle.to(tl.int32)).to(tl.int32), axis=0) >= top_k.to(tl.int32)
                low = tl.where(is_enough, middle, low)
                high = tl.where(is_enough, high, middle)
            by_rank = tl.where(top_k <= num_groups, from_order_key(low.to(tl.int32)), -float("inf"))
            bound = tl.maximum(maximum + temperature * tl.log(tl.load(params_ptr + MIN_P)), by_rank)
            reaches = (x >= bound) & (groups < num_groups)
            slots = tl.cumsum(reaches.to(tl.int32), axis=0) - 1
            tl.store(groups_ptr + line.to(tl.int64) * num_groups + slots, groups, mask=reaches)
            tl.store(group_counts_ptr + line, tl.sum(reaches.to(tl.int32), axis=0))
            tl.store(line_max_ptr + line, maximum)
    tl.store(bounds_ptr + line, bound)


@triton.jit(do_not_specialize_on_alignment=BY_LINE)
def _collect(
    logits_ptr, stride, rows_ptr, floats_ptr, ints_ptr, bounds_ptr, groups_ptr, group_counts_ptr, counts_ptr, values_ptr, ids_ptr, vocab_size,
    num_groups, GROUP: tl.constexpr, CHUNK: tl.constexpr, COLLECTORS: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    line, start = tl.program_id(0), tl.program_id(1) * CHUNK
    count = tl.load(group_counts_ptr + line)
    while start < count:
        index = start + tl.arange(0, CHUNK)
        groups = tl.load(groups_ptr + line.to(tl.int64) * num_groups + index, mask=index < count, other=0)
        ids = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        is_read = (index < count)[:, None] & (ids < vocab_size)
        x = load_logits(logits_ptr + line.to(tl.int64) * stride, ids, is_read, floats_ptr, ints_ptr, tl.load(rows_ptr + line), True)
        is_in = is_read & (x >= tl.load(bounds_ptr + line))
        slots = tl.atomic_add(counts_ptr + line + tl.zeros_like(ids), 1, mask=is_in)
        where = line.to(tl.int64) * CAPACITY + slots
        tl.store(values_ptr + where, x, mask=is_in & (slots < CAPACITY))
        tl.store(ids_ptr + where, ids, mask=is_in & (slots < CAPACITY))
        start += CHUNK * COLLECTORS


@triton.jit
def _amount_from(line_ptr, threshold, maximum, temperature, floats_ptr, ints_ptr, row, vocab_size, IS_COUNT: tl.constexpr, TILE: tl.constexpr):
    """Of the whole line: how many keys are `threshold` or more, or how much they weigh; int64."""
    total = tl.zeros((TILE,), tl.int64)
    start = 0
    while start < vocab_size:
        ids = start + tl.arange(0, TILE)
        x = load_logits(line_ptr, ids, ids < vocab_size, floats_ptr, ints_ptr, row, True)
        is_in = (order_key(x) >= threshold) & (ids < vocab_size)
        if IS_COUNT:
            total += is_in.to(tl.int64)
        else:
            total += tl.where(is_in, weights(x, maximum, temperature), 0)
        start += TILE
    return tl.sum(total, axis=0)


@triton.jit
def _cutoff(key, amounts, target, low, high, fits, line_ptr, maximum, temperature, floats_ptr, ints_ptr, row, vocab_size,
            IS_COUNT: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """The largest key from `low` on whose tokens and those above it amount to `target` (float64) or more; `low` itself is taken to do so."""
    while high - low > 1:
        middle = (low + high) >> 1
        threshold = middle.to(tl.int32)
        if fits:
            amount = tl.sum(tl.where(key >= threshold, amounts, 0), axis=0).to(tl.int64)
        else:
            amount = _amount_from(line_ptr, threshold, maximum, temperature, floats_ptr, ints_ptr, row, vocab_size, IS_COUNT, TILE)
        is_enough = amount.to(tl.float64) >= target
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle)
    return low


@triton.jit
def _draw_from_line(line_ptr, threshold, maximum, temperature, seed, counter, floats_ptr, ints_ptr, row, vocab_size, TILE: tl.constexpr):
    best = tl.full((TILE,), float("inf"), tl.float32)
    best_ids = tl.full((TILE,), NO_ID, tl.int32)
    start = 0
    while start < vocab_size:
        ids = start + tl.arange(0, TILE)
        x = load_logits(line_ptr, ids, ids < vocab_size, floats_ptr, ints_ptr, row, True)
        times = race_times(x, ids, maximum, temperature, seed, counter)
        is_better = (order_key(x) >= threshold) & (times < best)
        best = tl.where(is_better, times, best)
        best_ids = tl.where(is_better, ids, best_ids)
        start += TILE
    _, token = winner(best, best_ids)
    return token


@triton.jit(do_not_specialize_on_alignment=BY_LINE)
def _draw_line(
    logits_ptr, stride, rows_ptr, floats_ptr, ints_ptr, line_max_ptr, bounds_ptr, counts_ptr, values_ptr, ids_ptr, is_drawn_ptr, token_ids_ptr,
    outcome_ptr, vocab_size, CAPACITY: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    bound = tl.load(bounds_ptr + line)
    if bound < float("inf"):
        row = tl.load(rows_ptr + line)
        params_ptr = floats_ptr + row * NUM_FLOATS
        temperature, top_k = tl.load(params_ptr + TEMPERATURE), tl.load(params_ptr + TOP_K)
        top_p, min_p = tl.load(params_ptr + TOP_P), tl.load(params_ptr + MIN_P)
        seed, counter = tl.load(ints_ptr + row * NUM_INTS + SEED), tl.load(ints_ptr + row * NUM_INTS + COUNTER)
        maximum, count = tl.load(line_max_ptr + line), tl.load(counts_ptr + line)
        line_ptr = logits_ptr + line.to(tl.int64) * stride
        fits = count <= CAPACITY
        slots = tl.arange(0, CAPACITY)
        is_in = (slots < count) & fits
        x = tl.load(values_ptr + line.to(tl.int64) * CAPACITY + slots, mask=is_in, other=-float("inf"))
        ids = tl.load(ids_ptr + line.to(tl.int64) * CAPACITY + slots, mask=is_in, other=NO_ID)
        key = order_key(x)
        end = order_key(maximum).to(tl.int64) + 1
        cut = tl.maximum(order_key(bound), order_key(maximum + temperature * tl.log(min_p))).to(tl.int64)
        cut = _cutoff(key, is_in.to(tl.int32), top_k.to(tl.float64), cut, end, fits, line_ptr, maximum, temperature, floats_ptr, ints_ptr, row,
                      vocab_size, True, TILE)  # fmt: skip
        if top_p < 1.0:
            amounts = weights(x, maximum, temperature)
            if fits:
                total = tl.sum(tl.where(key >= cut.to(tl.int32), amounts, 0), axis=0)
            else:
                total = _amount_from(line_ptr, cut.to(tl.int32), maximum, temperature, floats_ptr, ints_ptr, row, vocab_size, False, TILE)
            target = top_p.to(tl.float64) * total.to(tl.float64)
            cut = _cutoff(key, amounts, target, cut, end, fits, line_ptr, maximum, temperature, floats_ptr, ints_ptr, row, vocab_size, False, TILE)
        if fits:
            times = race_times(x, ids, maximum, temperature, seed, counter)
            _, token = winner(tl.where(key >= cut.to(tl.int32), times, float("inf")), ids)
        else:
            token = _draw_from_line(line_ptr, cut.to(tl.int32), maximum, temperature, seed, counter, floats_ptr, ints_ptr, row, vocab_size, TILE)
        tl.store(is_drawn_ptr + line, 1)
        tl.store(token_ids_ptr + line, token.to(tl.int64))
        tl.store(outcome_ptr + line, token.to(tl.int64))


def draw(logits: Tensor, table: SamplingTable, rows: Tensor, work: DrawWork) -> None:
    """Draw the lines of logits [S, V] that have a top_k, set `work.is_drawn` for them and clear it for all others."""
    num_lines, vocab_size = logits.shape
    num_groups, num_pieces = cdiv(vocab_size, GROUP), cdiv(vocab_size, PIECE)
    device = logits.device
    maxima = torch.empty(num_lines, num_groups, dtype=torch.float32, device=device)
    groups = torch.empty(num_lines, num_groups, dtype=torch.int32, device=device)
    line_max, bounds = torch.empty(2, num_lines, dtype=torch.float32, device=device)
    group_counts, counts = torch.empty(2, num_lines, dtype=torch.int32, device=device)
    values = torch.empty(num_lines, CAPACITY, dtype=torch.float32, device=device)
    ids = torch.empty(num_lines, CAPACITY, dtype=torch.int32, device=device)
    source = (logits, logits.stride(0), rows, table.floats, table.ints)
    run(_group_maxima, (num_lines, num_pieces))(*source, maxima, vocab_size, num_groups, PIECE=PIECE, GROUP=GROUP, num_warps=8)
    run(_bounds, (num_lines,))(
        rows, table.floats, maxima, line_max, bounds, groups, group_counts, counts, work.is_drawn, num_groups,
        GROUPS=next_pow2(num_groups), STEPS=BOUND_STEPS, num_warps=4,
    )  # fmt: skip
    run(_collect, (num_lines, COLLECTORS))(
        *source, bounds, groups, group_counts, counts, values, ids, vocab_size, num_groups,
        GROUP=GROUP, CHUNK=16, COLLECTORS=COLLECTORS, CAPACITY=CAPACITY, num_warps=4,
    )  # fmt: skip
    run(_draw_line, (num_lines,))(
        *source, line_max, bounds, counts, values, ids, work.is_drawn, work.token_ids, work.outcome, vocab_size,
        CAPACITY=CAPACITY, TILE=TILE, num_warps=4,
    )  # fmt: skip
