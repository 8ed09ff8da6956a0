"""Triton kernels that draw one token a line: logits + temperature * noise and their first maximum, in one pass over the logits.

The vocabulary is split into pieces of `PIECE` tokens, one program each; a second, tiny kernel takes the best piece. Pieces do not depend on the
batch, so neither do results. Parameters are read from the sampler's tables through the line's row, which spares a dozen small launches a step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.sampling import noise
from trivium.ops.sampling.filters import DrawParams
from trivium.ops.triton.launch import cdiv, next_pow2, on_device

PIECE = 4096
NO_ID = tl.constexpr(2**31 - 1)
NOT_FINITE = tl.constexpr(-1)

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
def gumbel(seed, counter, token_ids):
    """`noise.gumbel_noise` for one line: scalars int64, token_ids int32 → float32."""
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
    near_zero = v * (1.0 + v * (0.5 + v * (1.0 / 3.0 + v * (0.25 + v * 0.2))))  # -log(1 - v), where 1 - v would lose its digits
    exponential = tl.where(v < 0.03125, near_zero, -tl.log(1.0 - v))
    return -tl.log(exponential)


@triton.jit
def _best_of_piece(
    logits_ptr, logits_stride, temperature_ptr, temperature_stride, seeds_ptr, seeds_stride, counters_ptr, counters_stride, rows_ptr, cutoffs_ptr,
    best_ptr, best_ids_ptr, vocab_size, num_pieces, HAS_CUTOFFS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    line, piece = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows_ptr + line)
    temperature = tl.load(temperature_ptr + row * temperature_stride)
    ids = piece * PIECE + tl.arange(0, PIECE)
    scores = tl.load(logits_ptr + line.to(tl.int64) * logits_stride + ids, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)
    scores = tl.where(scores != scores, float("inf"), scores)  # NaN becomes +inf, which no comparison loses
    if HAS_CUTOFFS:
        scores = tl.where(scores < tl.load(cutoffs_ptr + line), -float("inf"), scores)
    best = tl.max(scores, axis=0)
    if (temperature > 0.0) & (best > -float("inf")):
        seed = tl.load(seeds_ptr + row * seeds_stride)
        counter = tl.load(counters_ptr + row * counters_stride)
        scores += temperature * gumbel(seed, counter, ids)
        best = tl.max(scores, axis=0)
    tl.store(best_ptr + line * num_pieces + piece, best)
    tl.store(best_ids_ptr + line * num_pieces + piece, tl.min(tl.where(scores == best, ids, NO_ID), axis=0))


@triton.jit
def _best_of_line(
    best_ptr, best_ids_ptr, token_ids_ptr, outcome_ptr, rows_ptr, counters_ptr, counters_stride, num_pieces,
    PIECES: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    pieces = tl.arange(0, PIECES)
    scores = tl.load(best_ptr + line * num_pieces + pieces, mask=pieces < num_pieces, other=-float("inf"))
    ids = tl.load(best_ids_ptr + line * num_pieces + pieces, mask=pieces < num_pieces, other=NO_ID)
    best = tl.max(scores, axis=0)
    token = tl.min(tl.where(scores == best, ids, NO_ID), axis=0).to(tl.int64)
    is_ok = (best > -float("inf")) & (best < float("inf"))
    tl.store(token_ids_ptr + line, tl.where(is_ok, token, 0))
    tl.store(outcome_ptr + line, tl.where(is_ok, token, NOT_FINITE))
    counter_ptr = counters_ptr + tl.load(rows_ptr + line) * counters_stride
    tl.store(counter_ptr, tl.load(counter_ptr) + 1)


def draw_rows(logits: Tensor, table: DrawParams, rows: Tensor, cutoffs: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See `draw.draw_rows`; logits below the line's cutoff [S] are left out. Does not write to `logits`. Can be captured in a CUDA graph."""
    num_lines, vocab_size = logits.shape
    assert logits.stride(1) == 1
    num_pieces = cdiv(vocab_size, PIECE)
    device = logits.device
    best = torch.empty(num_lines, num_pieces, dtype=torch.float32, device=device)
    best_ids = torch.empty(num_lines, num_pieces, dtype=torch.int32, device=device)
    token_ids = torch.empty(num_lines, dtype=torch.int64, device=device)
    outcome = torch.empty(num_lines, dtype=torch.int64, device=device)
    if num_lines == 0:
        return token_ids, outcome
    temperature, seeds, counters = table.temperature, table.seeds, table.counters
    with on_device(logits):
        _best_of_piece[(num_lines, num_pieces)](
            logits, logits.stride(0), temperature, temperature.stride(0), seeds, seeds.stride(0), counters, counters.stride(0), rows, cutoffs,
            best, best_ids, vocab_size, num_pieces, HAS_CUTOFFS=cutoffs is not None, PIECE=PIECE, num_warps=8,
        )  # fmt: skip
        _best_of_line[(num_lines,)](
            best, best_ids, token_ids, outcome, rows, counters, counters.stride(0), num_pieces, PIECES=next_pow2(num_pieces), num_warps=1
        )
    return token_ids, outcome


@triton.jit
def _log_sum_exp_kernel(logits_ptr, stride, out_ptr, vocab_size, PIECE: tl.constexpr):
    line = tl.program_id(0)
    maximum = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    start = 0
    while start < vocab_size:
        ids = start + tl.arange(0, PIECE)
        x = tl.load(logits_ptr + line.to(tl.int64) * stride + ids, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(maximum, tl.max(x, axis=0))
        shift = tl.where(higher > -float("inf"), higher, 0.0)
        total = total * tl.exp(maximum - shift) + tl.sum(tl.exp(x - shift), axis=0)
        maximum = higher
        start += PIECE
    tl.store(out_ptr + line, maximum + tl.log(total))


def log_sum_exp(logits: Tensor) -> Tensor:
    """logits [N, V] → [N] float32. One program a line: a line's sum does not depend on the batch."""
    num_lines, vocab_size = logits.shape
    assert logits.stride(1) == 1
    out = torch.empty(num_lines, dtype=torch.float32, device=logits.device)
    if num_lines:
        with on_device(logits):
            _log_sum_exp_kernel[(num_lines,)](logits, logits.stride(0), out, vocab_size, PIECE=PIECE, num_warps=8)
    return out
