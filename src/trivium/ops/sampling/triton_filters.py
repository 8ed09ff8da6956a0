"""Triton kernels for the cutoffs of min_p, top_k and top_p, exact and without sorting.

Four launches, whatever the filters:

    maxima    of every 64 tokens of a line
    bounds    from them, a logit that the cutoff can't lie below: the k-th largest maximum for top_k; for top_p (1 - top_p) / V of the mass,
              since all tokens below that together weigh less than what is cut off
    collect   the logits from the bound upwards, usually a few hundred, into a buffer in any order
    search    the cutoff in that buffer (or, where it overflows, in the whole line) by bisection over the bits of a float

Probabilities are summed as integers (units of 2^-32 of the largest), so sums do not depend on an order and results not on the batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.sampling.filters import DrawParams
from trivium.ops.triton.launch import LOG2E, cdiv, next_pow2, on_device

PIECE = 4096
GROUP = 64
CAPACITY = 4096
"""Logits a line may have in the buffer, held in registers by the search."""
_UNIT = tl.constexpr(2.0**32)
_MIN_KEY = tl.constexpr(-(2**31))
_MAGNITUDE = tl.constexpr(2**31 - 1)


@triton.jit
def _key(x):
    """float32 → int32 in the same order. NaN is not expected."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & _MAGNITUDE)


@triton.jit
def _from_key(key):
    return (key ^ ((key >> 31) & _MAGNITUDE)).to(tl.float32, bitcast=True)


@triton.jit
def _weights(x, maximum, inv_temperature):
    """p / (largest p) in units of 2^-32, int64; 0 for -inf."""
    ratio = tl.exp2((x - maximum) * inv_temperature * LOG2E)
    return (tl.where(x > -float("inf"), ratio, 0.0) * _UNIT).to(tl.int64)


@triton.jit
def _is_filtered(temperature, top_k, top_p, min_p):
    return (temperature > 0.0) & ((top_k > 0.0) | (top_p < 1.0) | (min_p > 0.0))


@triton.jit
def _maxima_kernel(
    logits_ptr, stride, rows_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, param_stride, maxima_ptr, vocab_size, num_groups,
    PIECE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    line, piece = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows_ptr + line) * param_stride
    if _is_filtered(tl.load(temperature_ptr + row), tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)):
        ids = piece * PIECE + tl.arange(0, PIECE)
        x = tl.load(logits_ptr + line.to(tl.int64) * stride + ids, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)
        x = tl.where(x != x, float("inf"), x)
        maxima = tl.max(tl.reshape(x, (PIECE // GROUP, GROUP)), axis=1)
        groups = piece * (PIECE // GROUP) + tl.arange(0, PIECE // GROUP)
        tl.store(maxima_ptr + line.to(tl.int64) * num_groups + groups, maxima, mask=groups < num_groups)


@triton.jit
def _bounds_kernel(
    rows_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, param_stride, maxima_ptr, line_max_ptr, bounds_ptr, counts_ptr, masses_ptr,
    cutoffs_ptr, vocab_size, num_groups, GROUPS: tl.constexpr,
):  # fmt: skip
    """Per line: the maximum, the bound (+inf where there is nothing to search) and cleared accumulators."""
    line = tl.program_id(0)
    row = tl.load(rows_ptr + line) * param_stride
    temperature, top_k = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row)
    top_p, min_p = tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
    tl.store(counts_ptr + line, 0)
    tl.store(masses_ptr + line, tl.full((), 0, tl.int64))
    tl.store(cutoffs_ptr + line, -float("inf"))
    tl.store(bounds_ptr + line, float("inf"))
    if _is_filtered(temperature, top_k, top_p, min_p):
        groups = tl.arange(0, GROUPS)
        x = tl.load(maxima_ptr + line.to(tl.int64) * num_groups + groups, mask=groups < num_groups, other=-float("inf"))
        maximum = tl.max(x, axis=0)
        if (maximum > -float("inf")) & (maximum < float("inf")):
            bound = maximum + temperature * tl.log(min_p)
            if top_p < 1.0:
                mass = tl.sum(tl.where(x > -float("inf"), tl.exp2((x - maximum) / temperature * LOG2E), 0.0), axis=0)
                # Kept tokens may be fewer than all (min_p, top_k), but then those filters bound the cutoff better. 0.999 is for rounding.
                if (top_k == 0.0) & (min_p == 0.0):
                    bound = tl.maximum(bound, maximum + temperature * tl.log(0.999 * (1.0 - top_p) * mass / vocab_size))
            if (top_k > 0.0) & (top_k <= num_groups):
                key = _key(x)
                k = top_k.to(tl.int32)
                low, high = tl.min(key, axis=0).to(tl.int64), tl.max(key, axis=0).to(tl.int64) + 1
                while high - low > 1:
                    middle = (low + high) >> 1
                    is_enough = tl.sum((key >= middle.to(tl.int32)).to(tl.int32), axis=0) >= k
                    low = tl.where(is_enough, middle, low)
                    high = tl.where(is_enough, high, middle)
                bound = tl.maximum(bound, _from_key(low.to(tl.int32)))
            tl.store(line_max_ptr + line, maximum)
            if (top_k > 0.0) | (top_p < 1.0):
                tl.store(bounds_ptr + line, bound)
            else:
                tl.store(cutoffs_ptr + line, bound)


@triton.jit
def _collect_kernel(
    logits_ptr, stride, rows_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, param_stride, maxima_ptr, line_max_ptr, bounds_ptr,
    counts_ptr, masses_ptr, buffer_ptr, vocab_size, num_groups, PIECE: tl.constexpr, GROUP: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    line, piece = tl.program_id(0), tl.program_id(1)
    bound = tl.load(bounds_ptr + line)
    if bound < float("inf"):
        row = tl.load(rows_ptr + line) * param_stride
        needs_mass = (tl.load(top_p_ptr + row) < 1.0) & (tl.load(top_k_ptr + row) == 0.0)
        groups = piece * (PIECE // GROUP) + tl.arange(0, PIECE // GROUP)
        maxima = tl.load(maxima_ptr + line.to(tl.int64) * num_groups + groups, mask=groups < num_groups, other=-float("inf"))
        has_some = tl.max(maxima, axis=0) >= bound
        if has_some | needs_mass:
            ids = piece * PIECE + tl.arange(0, PIECE)
            x = tl.load(logits_ptr + line.to(tl.int64) * stride + ids, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)
            if needs_mass:
                temperature, maximum = tl.load(temperature_ptr + row), tl.load(line_max_ptr + line)
                floor = maximum + temperature * tl.log(tl.load(min_p_ptr + row))
                tl.atomic_add(masses_ptr + line, tl.sum(tl.where(x >= floor, _weights(x, maximum, 1.0 / temperature), 0), axis=0))
            if has_some:
                is_in = (x >= bound) & (ids < vocab_size)
                position = tl.cumsum(is_in.to(tl.int32), axis=0) - 1
                start = tl.atomic_add(counts_ptr + line, tl.sum(is_in.to(tl.int32), axis=0))
                position += start
                tl.store(buffer_ptr + line.to(tl.int64) * CAPACITY + position, x, mask=is_in & (position < CAPACITY))


@triton.jit
def _count_from(line_ptr, threshold, vocab_size, CAPACITY: tl.constexpr):
    """How many keys of the whole line are `threshold` or more."""
    total = tl.full((), 0, tl.int32)
    start = 0
    while start < vocab_size:
        ids = start + tl.arange(0, CAPACITY)
        x = tl.load(line_ptr + ids, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)
        total += tl.sum(((_key(x) >= threshold) & (ids < vocab_size)).to(tl.int32), axis=0)
        start += CAPACITY
    return total


@triton.jit
def _mass_from(line_ptr, threshold, maximum, inv_temperature, vocab_size, CAPACITY: tl.constexpr):
    total = tl.full((), 0, tl.int64)
    start = 0
    while start < vocab_size:
        ids = start + tl.arange(0, CAPACITY)
        x = tl.load(line_ptr + ids, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)
        total += tl.sum(tl.where(_key(x) >= threshold, _weights(x, maximum, inv_temperature), 0), axis=0)
        start += CAPACITY
    return total


@triton.jit
def _search_kernel(
    logits_ptr, stride, rows_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, param_stride, line_max_ptr, bounds_ptr, counts_ptr,
    masses_ptr, buffer_ptr, cutoffs_ptr, vocab_size, CAPACITY: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    bound = tl.load(bounds_ptr + line)
    if bound < float("inf"):
        row = tl.load(rows_ptr + line) * param_stride
        temperature, top_k = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row)
        top_p, min_p = tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
        maximum, count = tl.load(line_max_ptr + line), tl.load(counts_ptr + line)
        line_ptr = logits_ptr + line.to(tl.int64) * stride
        slots = tl.arange(0, CAPACITY)
        fits = count <= CAPACITY
        x = tl.load(buffer_ptr + line.to(tl.int64) * CAPACITY + slots, mask=(slots < count) & fits, other=-float("inf"))
        key = _key(x)
        inv_temperature = 1.0 / temperature
        end = _key(maximum).to(tl.int64) + 1
        cut = _key(maximum + temperature * tl.log(min_p)).to(tl.int64)
        if top_k > 0.0:
            k = top_k.to(tl.int32)
            low, high = tl.maximum(_key(bound).to(tl.int64), cut) - 1, end  # low: all that are left count; high: too few
            while high - low > 1:
                middle = (low + high) >> 1
                threshold = middle.to(tl.int32)
                if fits:
                    found = tl.sum((key >= threshold).to(tl.int32), axis=0)
                else:
                    found = _count_from(line_ptr, threshold, vocab_size, CAPACITY)
                low = tl.where(found >= k, middle, low)
                high = tl.where(found >= k, high, middle)
            cut = tl.maximum(cut, low)
        if top_p < 1.0:
            weights = _weights(x, maximum, inv_temperature)
            total = tl.load(masses_ptr + line)
            if top_k > 0.0:
                threshold = cut.to(tl.int32)
                if fits:
                    total = tl.sum(tl.where(key >= threshold, weights, 0), axis=0)
                else:
                    total = _mass_from(line_ptr, threshold, maximum, inv_temperature, vocab_size, CAPACITY)
            target = top_p.to(tl.float64) * total.to(tl.float64)
            low, high = tl.maximum(_key(bound).to(tl.int64), cut) - 1, end
            while high - low > 1:
                middle = (low + high) >> 1
                threshold = middle.to(tl.int32)
                if fits:
                    mass = tl.sum(tl.where(key >= threshold, weights, 0), axis=0)
                else:
                    mass = _mass_from(line_ptr, threshold, maximum, inv_temperature, vocab_size, CAPACITY)
                is_enough = mass.to(tl.float64) >= target
                low = tl.where(is_enough, middle, low)
                high = tl.where(is_enough, high, middle)
            cut = tl.maximum(cut, low)
        tl.store(cutoffs_ptr + line, _from_key(tl.maximum(cut, _MIN_KEY).to(tl.int32)))


def cutoffs(logits: Tensor, table: DrawParams, rows: Tensor) -> Tensor:
    """logits [S, V] float32 → what `filters.cutoffs_reference` returns for the parameters `table[rows[i]]` of line i, [S]; rows [S] int64.
    -inf for lines that are greedy, have none of these filters, or are not finite."""
    num_lines, vocab_size = logits.shape
    num_groups, num_pieces = cdiv(vocab_size, GROUP), cdiv(vocab_size, PIECE)
    device = logits.device
    columns = (table.temperature, table.top_k, table.top_p, table.min_p)
    assert len({column.stride(0) for column in columns}) == 1
    stride = table.temperature.stride(0)
    maxima = torch.empty(num_lines, num_groups, dtype=torch.float32, device=device)
    line_max, bounds, result = torch.empty(3, num_lines, dtype=torch.float32, device=device)
    counts = torch.empty(num_lines, dtype=torch.int32, device=device)
    masses = torch.empty(num_lines, dtype=torch.int64, device=device)
    buffer = torch.empty(num_lines, CAPACITY, dtype=torch.float32, device=device)
    if num_lines == 0:
        return result
    with on_device(logits):
        _maxima_kernel[(num_lines, num_pieces)](
            logits, logits.stride(0), rows, *columns, stride, maxima, vocab_size, num_groups, PIECE=PIECE, GROUP=GROUP, num_warps=8
        )
        _bounds_kernel[(num_lines,)](
            rows, *columns, stride, maxima, line_max, bounds, counts, masses, result, vocab_size, num_groups,
            GROUPS=next_pow2(num_groups), num_warps=8,
        )  # fmt: skip
        _collect_kernel[(num_lines, num_pieces)](
            logits, logits.stride(0), rows, *columns, stride, maxima, line_max, bounds,
            counts, masses, buffer, vocab_size, num_groups, PIECE=PIECE, GROUP=GROUP, CAPACITY=CAPACITY, num_warps=8,
        )  # fmt: skip
        _search_kernel[(num_lines,)](
            logits, logits.stride(0), rows, *columns, stride, line_max, bounds, counts, masses, buffer, result, vocab_size,
            CAPACITY=CAPACITY, num_warps=8,
        )  # fmt: skip
    return result
