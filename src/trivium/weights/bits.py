"""Small unsigned numbers in words of 32 bits, least significant first: a stream of bits along the last dimension."""

from __future__ import annotations

import torch
from torch import Tensor


def unpack(words: Tensor, bits: int) -> Tensor:
    """int32 [..., W] → uint8 [..., 32 W / bits], for 2, 3, 4 and 8 bits. Three bits: 32 numbers in three words."""
    if bits == 3:
        return _unpack_three(words)
    packed = words.contiguous().view(torch.uint8)
    if bits == 8:
        return packed
    mask = (1 << bits) - 1
    return torch.stack([(packed >> shift) & mask for shift in range(0, 8, bits)], dim=-1).flatten(-2)


def pack(numbers: Tensor, bits: int) -> Tensor:
    """uint8 [..., n] → int32 [..., n * bits / 32]; n * bits must be a multiple of 32."""
    if bits == 3:
        return _pack_three(numbers)
    per_byte = 8 // bits
    parts = numbers.unflatten(-1, (-1, per_byte))
    packed = parts[..., 0].clone()
    for index in range(1, per_byte):
        packed |= parts[..., index] << (index * bits)
    return packed.contiguous().view(torch.int32)


def _unpack_three(words: Tensor) -> Tensor:
    triples = words.to(torch.int64).bitwise_and(0xFFFFFFFF).unflatten(-1, (-1, 3))
    numbers: list[Tensor] = []
    for index in range(32):
        word, shift = divmod(3 * index, 32)
        number = triples[..., word] >> shift
        if shift > 29:
            number = number | (triples[..., word + 1] << (32 - shift))
        numbers.append((number & 7).to(torch.uint8))
    return torch.stack(numbers, dim=-1).flatten(-2)


def _pack_three(numbers: Tensor) -> Tensor:
    wide = numbers.to(torch.int64).unflatten(-1, (-1, 32))
    words = torch.zeros(*wide.shape[:-1], 3, dtype=torch.int64, device=numbers.device)
    for index in range(32):
        word, shift = divmod(3 * index, 32)
        words[..., word] |= (wide[..., index] << shift) & 0xFFFFFFFF
        if shift > 29:
            words[..., word + 1] |= wide[..., index] >> (32 - shift)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32).flatten(-2)
