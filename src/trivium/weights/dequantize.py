"""ggml's block formats → float32, vectorized. Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.

Each function for one format takes uint8 [num_blocks, bytes_per_block] and gives float32 [num_blocks, weights_per_block].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from trivium.sources.gguf_file import BLOCK_LAYOUT

CHUNK_BLOCKS: Final = 4096
"""Blocks at a time: intermediate results stay in the cache, and the peak stays near the size of the result."""


def dequantize(raw: Tensor, type_name: str) -> Tensor:
    """Bytes of a tensor of ggml type `type_name` (a key of `DEQUANTIZERS`) → its weights in order, float32 [num_weights]."""
    block_bytes, block = next((size, count) for name, count, size in BLOCK_LAYOUT.values() if name == type_name)
    blocks = raw.view(-1, block_bytes)
    result = torch.empty(blocks.shape[0], block)
    decode = DEQUANTIZERS[type_name]
    for start in range(0, blocks.shape[0], CHUNK_BLOCKS):
        result[start : start + CHUNK_BLOCKS] = decode(blocks[start : start + CHUNK_BLOCKS])
    return result.view(-1)


def half(blocks: Tensor, start: int) -> Tensor:
    """The float16 at byte `start` of each block: float32 [num_blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def nibbles(packed: Tensor) -> Tensor:
    """uint8 [n, m] → uint8 [n, 2m]: all low halves, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=1)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(half(blocks, 0))


def _q4_0(blocks: Tensor) -> Tensor:
    return nibbles(blocks[:, 2:]).float().sub_(8.0).mul_(half(blocks, 0))


def _q4_1(blocks: Tensor) -> Tensor:
    return nibbles(blocks[:, 4:]).float().mul_(half(blocks, 0)).add_(half(blocks, 2))


def k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """12 bytes hold eight 6-bit scales and eight 6-bit minima: float32 [n, 8, 1] each."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 6) << 4)), dim=1)
    minima = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=1)
    return scales.float().unsqueeze(-1), minima.float().unsqueeze(-1)


def k_quants(low: Tensor) -> Tensor:
    """128 bytes → eight groups of 32: each 32 bytes hold two groups, low halves first. uint8 [n, 8, 32]."""
    grouped = low.reshape(-1, 4, 1, 32)
    return torch.cat((grouped & 15, grouped >> 4), dim=2).reshape(-1, 8, 32)


def _k_affine(blocks: Tensor, quants: Tensor) -> Tensor:
    scales, minima = k_scales(blocks[:, 4:16])
    scale = half(blocks, 0).unsqueeze(-1) * scales
    minimum = half(blocks, 2).unsqueeze(-1) * minima
    return quants.float().mul_(scale).sub_(minimum).reshape(-1, 256)


def _q4_k(blocks: Tensor) -> Tensor:
    return _k_affine(blocks, k_quants(blocks[:, 16:]))


def q5_k_quants(blocks: Tensor) -> Tensor:
    """Whole blocks of Q5_K → their numbers, uint8 [n, 8, 32]."""
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    high = (blocks[:, 16:48].unsqueeze(1) >> shifts) & 1
    return k_quants(blocks[:, 48:]) | (high << 4)


def _q5_k(blocks: Tensor) -> Tensor:
    return _k_affine(blocks, q5_k_quants(blocks))


def q6_k_quants(blocks: Tensor) -> Tensor:
    """Whole blocks of Q6_K → their numbers, uint8 [n, 256] around 32.

    Two halves of 128 weights; each has 64 bytes of low nibbles and 32 bytes of two high bits.
    """
    low = blocks[:, 0:128].reshape(-1, 2, 1, 64)
    low = torch.cat((low & 15, low >> 4), dim=2).reshape(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    return (low | (high << 4)).reshape(-1, 256)


def _q6_k(blocks: Tensor) -> Tensor:
    quants = q6_k_quants(blocks).float().sub_(32.0).view(-1, 16, 16)
    scales = blocks[:, 192:208].view(torch.int8).float() * half(blocks, 208)
    return quants.mul_(scales.unsqueeze(-1)).reshape(-1, 256)


DEQUANTIZERS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
PLAIN_DTYPES: Final[dict[str, torch.dtype]] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Stored as they are; given back as they are."""
