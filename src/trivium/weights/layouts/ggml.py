"""ggml's blocks kept as whole numbers: all are `(code - zero) * scale` with groups of 16 or 32 inputs, exactly (see `weights.dequantize`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from trivium.sources.gguf_file import BLOCK_LAYOUT
from trivium.weights import dequantize as ggml
from trivium.weights.layouts.base import Share, TensorSpec
from trivium.weights.quantized import QuantizedWeight, even_groups

BLOCK_BYTES: Final = {name: size for name, _, size in BLOCK_LAYOUT.values()}
BLOCK_WEIGHTS: Final = {name: count for name, count, _ in BLOCK_LAYOUT.values()}


def row_bytes(type_name: str, num_in: int) -> int:
    return num_in // BLOCK_WEIGHTS[type_name] * BLOCK_BYTES[type_name]


class GgmlLayout:
    """`weight` uint8 [out, bytes of a row]."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        return (TensorSpec("weight", (num_out, row_bytes(self.type_name, num_in))),)

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        rows = share.take_rows(raw["weight"])
        block = BLOCK_WEIGHTS[self.type_name]
        start, end = share.columns[0] // block, -(-share.columns[1] // block)
        size = BLOCK_BYTES[self.type_name]
        blocks = rows[:, start * size : end * size].reshape(-1, size)
        codes, scales, zeros = _READERS[self.type_name](blocks)
        width, group = (end - start) * block, block * codes.shape[0] // scales.numel()
        inside = slice(share.columns[0] - start * block, share.columns[1] - start * block)
        return QuantizedWeight(
            "int8" if self.type_name in ("Q8_0", "Q5_K", "Q6_K") else "int4",
            codes.view(len(rows), width)[:, inside].contiguous().to(share.device),
            scales.view(len(rows), -1).to(share.device),
            even_groups(width, group)[inside].to(share.device),
            zeros=None if zeros is None else zeros.view(len(rows), -1).to(share.device),
        )


_Parts = tuple[Tensor, Tensor, Tensor | None]
"""Codes uint8 [blocks, weights], scales and zero points float32 [blocks, groups]."""


def _q4_0(blocks: Tensor) -> _Parts:
    return ggml.nibbles(blocks[:, 2:]), ggml.half(blocks, 0), None


def _q4_1(blocks: Tensor) -> _Parts:
    return _affine(ggml.nibbles(blocks[:, 4:]), ggml.half(blocks, 0), -ggml.half(blocks, 2))


def _q8_0(blocks: Tensor) -> _Parts:
    return blocks[:, 2:] ^ 128, ggml.half(blocks, 0), None


def _q4_k(blocks: Tensor) -> _Parts:
    return _k_affine(blocks, ggml.k_quants(blocks[:, 16:]))


def _q5_k(blocks: Tensor) -> _Parts:
    return _k_affine(blocks, ggml.q5_k_quants(blocks))


def _k_affine(blocks: Tensor, quants: Tensor) -> _Parts:
    scales, minima = ggml.k_scales(blocks[:, 4:16])
    return _affine(quants.flatten(1), scales.squeeze(-1) * ggml.half(blocks, 0), minima.squeeze(-1) * ggml.half(blocks, 2))


def _q6_k(blocks: Tensor) -> _Parts:
    codes = ggml.q6_k_quants(blocks)
    scales = blocks[:, 192:208].view(torch.int8).float() * ggml.half(blocks, 208)
    return codes + 96, scales, None  # 32 is the middle of 6 bits, 128 that of 8


def _affine(codes: Tensor, scales: Tensor, minima: Tensor) -> _Parts:
    """`code * scale - minimum`. A scale of 0 leaves the minimum alone: code 0 of a scale of 1."""
    is_flat = scales == 0
    codes = codes.unflatten(1, (scales.shape[1], -1)).masked_fill(is_flat.unsqueeze(-1), 0).flatten(1)
    scales = scales.masked_fill(is_flat, 1.0)
    return codes, scales, minima / scales


_READERS: Final = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}
