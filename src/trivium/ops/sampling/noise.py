"""The random numbers of sampling: a stateless hash of (seed, counter, token id), the same in torch and in Triton's language.

A request owns a stream named by its 64-bit seed. `counter` is the number of tokens it has sampled so far. Each token of the vocabulary gets its
own number, so that the token drawn depends on nothing but the request: not on its row, its batch mates, a preemption or a prefix hit.

    key(seed, counter) = mix64(mix64(seed + G) + (counter + 1) * G)            splitmix64 (Steele, Lea, Flood 2014), G the golden ratio
    m(key, id)         = 31-bit permutation of `id`, keyed twice: by the low half of `key` before and by the high half after a two-multiply mix
    v                  = (m + 1/2) / 2^31 in (0, 1)
    gumbel             = -log(-log(1 - v))                                      exact in the tail that decides: v is fine-grained near 0

31 bits, because torch has no logical shift of int32: with the sign bit kept clear, the arithmetic one is the same. Sums and products wrap.
The log-probability of the rarest token that can still be drawn as often as it should is about -20.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

MASK31 = 0x7FFFFFFF
WEYL = 0x1E3779B1
MIX_1 = 0x7FEB352D
MIX_2 = 0x046CA68B
MIX_3 = 0x31848BAB
MIX_4 = 0x2C1B3C6D
UNIFORM_SCALE = (1.0 - 2.0**-24) * 2.0**-31
"""Slightly below 2^-31, so that the largest `v` is the float32 below 1 and the noise stays finite."""
UNIFORM_SHIFT = 2.0**-32

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX64_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX64_2 = 0x94D049BB133111EB - 2**64
_MASK64 = 2**64 - 1


def _mix64(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 30) & (2**34 - 1))) * MIX64_1
    x = (x ^ ((x >> 27) & (2**37 - 1))) * MIX64_2
    return x ^ ((x >> 31) & (2**33 - 1))


def stream_keys(seeds: Tensor, counters: Tensor) -> tuple[Tensor, Tensor]:
    """seeds, counters [S] int64 → the two 31-bit halves of each row's key, [S] int32."""
    key = _mix64(_mix64(seeds + GOLDEN) + (counters + 1) * GOLDEN)
    return (key & MASK31).to(torch.int32), ((key >> 32) & MASK31).to(torch.int32)


def host_stream_keys(seeds: list[int], counters: list[int]) -> tuple[list[int], list[int]]:
    """`stream_keys` in Python's own integers: for the few rows of a CPU's batch cheaper than forty launches."""
    keys = [_host_mix64(_host_mix64(seed + GOLDEN) + (counter + 1) * GOLDEN) for seed, counter in zip(seeds, counters, strict=True)]
    return [key & MASK31 for key in keys], [(key >> 32) & MASK31 for key in keys]


def _host_mix64(x: int) -> int:
    x &= _MASK64
    x = ((x ^ (x >> 30)) * MIX64_1) & _MASK64
    x = ((x ^ (x >> 27)) * MIX64_2) & _MASK64
    return x ^ (x >> 31)


def spread_ids(token_ids: Tensor) -> Tensor:
    """Token ids (int32) on the multiples of `WEYL`: what the hash starts from."""
    return (token_ids * WEYL) & MASK31


def _permute_(x: Tensor, scratch: Tensor, key_low: Tensor | int, key_high: Tensor | int) -> Tensor:
    """In place on int32 `x`, below 2^31; `scratch` has its shape."""

    def xor_shift(bits: int) -> None:
        torch.bitwise_right_shift(x, bits, out=scratch)
        x.bitwise_xor_(scratch)

    x.add_(key_low).bitwise_and_(MASK31)
    xor_shift(16)
    x.mul_(MIX_1).bitwise_and_(MASK31)
    xor_shift(15)
    x.mul_(MIX_2).add_(key_high).bitwise_and_(MASK31)
    xor_shift(15)
    x.mul_(MIX_3).bitwise_and_(MASK31)
    xor_shift(16)
    x.mul_(MIX_4).bitwise_and_(MASK31)
    xor_shift(14)
    return x


def _log_exponential_(bits: Tensor, out: Tensor) -> Tensor:
    """log(E) for E = -log(1 - v), a standard exponential variable, from 31 random bits; into float32 `out`."""
    out.copy_(bits)
    return out.mul_(-UNIFORM_SCALE).sub_(UNIFORM_SHIFT).log1p_().neg_().log_()


def gumbel_noise(seeds: Tensor, counters: Tensor, token_ids: Tensor) -> Tensor:
    """seeds, counters [S] int64, token_ids [S, K] or [K] → standard Gumbel noise [S, K] float32, always finite."""
    return keyed_noise(*stream_keys(seeds, counters), token_ids)


def keyed_noise(low: Tensor, high: Tensor, token_ids: Tensor) -> Tensor:
    """`gumbel_noise` of keys from `stream_keys`, [S] int32."""
    x = spread_ids(token_ids.to(torch.int32)).expand(low.shape[0], -1).clone(memory_format=torch.contiguous_format)
    _permute_(x, torch.empty_like(x), low[:, None], high[:, None])
    return _log_exponential_(x, torch.empty_like(x, dtype=torch.float32)).neg_()


class NoiseScratch:
    """Adds temperature-scaled noise to whole rows of logits, one row at a time in buffers that stay in the processor's cache. For one thread."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self._start = spread_ids(torch.arange(vocab_size, dtype=torch.int32, device=device))
        self._x = torch.empty_like(self._start)
        self._shifted = torch.empty_like(self._start)
        self._noise = torch.empty(vocab_size, dtype=torch.float32, device=device)

    def add_noise_(self, logits: Tensor, temperature: float, key_low: int, key_high: int) -> None:
        """logits [V] float32 += temperature * gumbel. Then argmax(logits) is a draw from softmax(logits / temperature)."""
        self._x.copy_(self._start)
        _permute_(self._x, self._shifted, key_low, key_high)
        logits.sub_(_log_exponential_(self._x, self._noise).mul_(temperature))


_scratches = threading.local()


def noise_scratch(vocab_size: int) -> NoiseScratch:
    """The calling thread's buffers for rows of this length on the CPU, kept for the next call: fresh memory costs more than the arithmetic."""
    scratch: NoiseScratch | None = getattr(_scratches, "last", None)
    if scratch is None or scratch.vocab_size != vocab_size:
        with torch.inference_mode(mode=False):  # else the buffers could be used in inference mode only
            scratch = _scratches.last = NoiseScratch(vocab_size, torch.device("cpu"))
    return scratch
