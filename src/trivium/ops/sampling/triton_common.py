"""What the sampling kernels share: the noise, the draw among a tile of logits, integer weights, logits with penalties, and columns of the table."""

from __future__ import annotations

import triton
import triton.language as tl

from trivium.ops.sampling import noise, penalties, table
from trivium.ops.triton.launch import LOG2E

PIECE = 4096
"""Tokens of a line that one program of a spread kernel looks at. Pieces don't depend on the batch, so neither do results."""
NO_ID = tl.constexpr(2**31 - 1)
NOT_FINITE = tl.constexpr(-1)

NUM_FLOATS = tl.constexpr(table.NUM_FLOATS)
NUM_INTS = tl.constexpr(table.NUM_INTS)
TEMPERATURE = tl.constexpr(table.TEMPERATURE)
TOP_P = tl.constexpr(table.TOP_P)
TOP_K = tl.constexpr(table.TOP_K)
MIN_P = tl.constexpr(table.MIN_P)
REPETITION = tl.constexpr(table.REPETITION)
FREQUENCY = tl.constexpr(table.FREQUENCY)
PRESENCE = tl.constexpr(table.PRESENCE)
SEED = tl.constexpr(table.SEED)
COUNTER = tl.constexpr(table.COUNTER)
SEEN = tl.constexpr(table.SEEN)

BY_LINE = [
    "rows_ptr", "token_ids_ptr", "outcome_ptr", "is_drawn_ptr", "line_max_ptr", "bounds_ptr", "counts_ptr", "group_counts_ptr", "drawn_ptr",
    "above_ptr", "totals_ptr", "best_ptr", "best_ids_ptr", "maxima_ptr",
]  # fmt: skip
"""Arguments of a few numbers a line, whose alignment depends on the number of lines: kernels are not compiled again for it."""

_UNIT = tl.constexpr(2.0**32)
_COUNT_MASK = tl.constexpr(penalties.COUNT_MASK)
_MAGNITUDE = tl.constexpr(2**31 - 1)
_GOLDEN = tl.constexpr(noise.GOLDEN)
_MIX64_1 = tl.constexpr(noise.MIX64_1)
_MIX64_2 = tl.constexpr(noise.MIX64_2)
_MASK31 = tl.constexpr(noise.MASK31)
_MASK33 = tl.constexpr(2**33 - 1)
_MASK34 = tl.constexpr(2**34 - 1)
_MASK37 = tl.constexpr(2**37 - 1)
_WEYL = tl.constexpr(noise.WEYL)
_MIX_1 = tl.constexpr(noise.MIX_1)
_MIX_2 = tl.constexpr(noise.MIX_2)
_MIX_3 = tl.constexpr(noise.MIX_3)
_MIX_4 = tl.constexpr(noise.MIX_4)
_SCALE = tl.constexpr(noise.UNIFORM_SCALE)
_SHIFT = tl.constexpr(noise.UNIFORM_SHIFT)


@triton.jit
def _mix64(x):
    x = (x ^ ((x >> 30) & _MASK34)) * _MIX64_1
    x = (x ^ ((x >> 27) & _MASK37)) * _MIX64_2
    return x ^ ((x >> 31) & _MASK33)


@triton.jit
def exponential(seed, counter, token_ids):
    """-log(1 - v) of `noise`, the exponential variable behind the Gumbel noise, for one line: scalars int64, token_ids int32 → float32 above 0."""
    key = _mix64(_mix64(seed + _GOLDEN) + (counter + 1) * _GOLDEN)
    low = (key & _MASK31).to(tl.int32)
    high = ((key >> 32) & _MASK31).to(tl.int32)
    x = (((token_ids * _WEYL) & _MASK31) + low) & _MASK31
    x = x ^ (x >> 16)
    x = (x * _MIX_1) & _MASK31
    x = x ^ (x >> 15)
    x = (x * _MIX_2 + high) & _MASK31
    x = x ^ (x >> 15)
    x = (x * _MIX_3) & _MASK31
    x = x ^ (x >> 16)
    x = (x * _MIX_4) & _MASK31
    x = x ^ (x >> 14)
    v = x.to(tl.float32) * _SCALE + _SHIFT
    near_zero = v * (1.0 + v * (0.5 + v * (1.0 / 3.0 + v * (0.25 + v * 0.2))))  # where 1 - v would lose its digits
    return tl.where(v < 0.03125, near_zero, -tl.log(1.0 - v))


@triton.jit
def race_times(x, ids, maximum, temperature, seed, counter):
    """Exponential over p / (p of a token at `maximum`): the smallest wins the draw, with temperature * gumbel = -temperature * log(exponential).

    That spares a logarithm for each token. inf for x = -inf. `maximum` > -inf is the largest of the line or of the tile: what lies so far below that
    its time overflows could not win.
    """
    return exponential(seed, counter, ids) * tl.exp2((maximum - x) * (LOG2E / temperature))


@triton.jit
def winner(times, ids):
    """(smallest time, its id; the first of equals) of a tile."""
    best = tl.min(times, axis=0)
    return best, tl.min(tl.where(times == best, ids, NO_ID), axis=0)


@triton.jit
def weights(x, maximum, temperature):
    """p / (largest p) in units of 2^-32, int64, so that sums do not depend on an order; 0 for -inf."""
    ratio = tl.exp2((x - maximum) * (LOG2E / temperature))
    return (tl.where(x > -float("inf"), ratio, 0.0) * _UNIT).to(tl.int64)


@triton.jit
def order_key(x):
    """float32 → int32 in the same order. NaN is not expected."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & _MAGNITUDE)


@triton.jit
def from_order_key(key):
    return (key ^ ((key >> 31) & _MAGNITUDE)).to(tl.float32, bitcast=True)


@triton.jit
def penalized(x, state, floats_ptr, row):
    """`penalties.penalized` with the parameters of a row of the table."""
    repetition = tl.load(floats_ptr + row * NUM_FLOATS + REPETITION)
    frequency = tl.load(floats_ptr + row * NUM_FLOATS + FREQUENCY)
    presence = tl.load(floats_ptr + row * NUM_FLOATS + PRESENCE)
    counts = state & _COUNT_MASK
    repeated = tl.where(x > 0, x / repetition, x * repetition)
    return tl.where(state != 0, repeated, x) - frequency * counts.to(tl.float32) - tl.where(counts > 0, presence, 0.0)


@triton.jit
def seen_pointer(ints_ptr, row):
    """(the row's state of penalties, whether it has one)"""
    address = tl.load(ints_ptr + row * NUM_INTS + SEEN)
    return tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 16), address != 0


@triton.jit
def load_logits(line_ptr, ids, is_in, floats_ptr, ints_ptr, row, HAS_PENALTIES: tl.constexpr):
    """Logits of a line at `ids` as float32, with its penalties; -inf where not `is_in`."""
    x = tl.load(line_ptr + ids, mask=is_in, other=-float("inf")).to(tl.float32)
    if HAS_PENALTIES:
        seen_ptr, has_penalties = seen_pointer(ints_ptr, row)
        if has_penalties:
            x = penalized(x, tl.load(seen_ptr + ids, mask=is_in, other=0), floats_ptr, row)
    return x
