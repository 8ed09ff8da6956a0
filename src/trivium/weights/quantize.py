"""From a plain matrix to a quantized one, each number rounded by itself (no calibration)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trivium.weights.quantized import QuantizedWeight, even_groups
from trivium.weights.tables import code_table

FP8_MAX = 448.0
"""Largest float8_e4m3fn."""
BLOCK = 64
"""bitsandbytes' block size."""


def quantize_int8(weight: Tensor, *, rounds_inputs: bool = False) -> QuantizedWeight:
    """[N, K] → int8 with a scale per output: its largest magnitude becomes 127."""
    wide = weight.to(torch.float32)
    scales = _nonzero(wide.abs().amax(dim=1, keepdim=True) / 127)
    codes = (wide / scales).round_().add_(128).to(torch.uint8)
    return QuantizedWeight("int8", codes, scales, _one_group(weight), inputs="int8" if rounds_inputs else "plain")


def quantize_fp8(weight: Tensor) -> QuantizedWeight:
    """[N, K] → float8_e4m3fn with a scale per output: its largest magnitude becomes 448."""
    wide = weight.to(torch.float32)
    scales = _nonzero(wide.abs().amax(dim=1, keepdim=True) / FP8_MAX)
    codes = (wide / scales).to(torch.float8_e4m3fn).view(torch.uint8)
    return QuantizedWeight("fp8", codes, scales, _one_group(weight), inputs="fp8")


def quantize_table4(weight: Tensor, table_name: str) -> QuantizedWeight:
    """[N, K] → codes of "nf4" or "fp4", by the largest magnitude of each 64 inputs of an output."""
    table = code_table(table_name).to(weight.device)
    blocks, scales = _blocks(weight, BLOCK)
    codes = nearest(blocks / scales.unsqueeze(-1), table).flatten(1)[:, : weight.shape[1]]
    groups = even_groups(weight.shape[1], BLOCK, weight.device)
    return QuantizedWeight("table4", codes.contiguous(), scales, groups, table=table)


def quantize_int4(weight: Tensor, group_size: int | None) -> QuantizedWeight:
    """[N, K] → 4 bits around 8, by the largest magnitude of each group: it becomes 7."""
    group = group_size or weight.shape[1]
    blocks, scales = _blocks(weight, group)
    scales = scales / 7
    codes = (blocks / scales.unsqueeze(-1)).round_().add_(8).to(torch.uint8).flatten(1)[:, : weight.shape[1]]
    return QuantizedWeight("int4", codes.contiguous(), scales, even_groups(weight.shape[1], group, weight.device))


def nearest(values: Tensor, table: Tensor) -> Tensor:
    """uint8: the code of the nearest entry of `table`."""
    ordered, codes = table.sort()
    return codes.to(torch.uint8)[torch.bucketize(values, (ordered[1:] + ordered[:-1]) / 2)]


def _blocks(weight: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """float32 [N, G, size], padded with zeros, and the largest magnitude of each, [N, G]."""
    num_in = weight.shape[1]
    blocks = functional.pad(weight.to(torch.float32), (0, -num_in % size)).unflatten(1, (-1, size))
    return blocks, _nonzero(blocks.abs().amax(dim=-1))


def _nonzero(scales: Tensor) -> Tensor:
    return scales.masked_fill(scales == 0, 1.0)


def _one_group(weight: Tensor) -> Tensor:
    return torch.zeros(weight.shape[1], dtype=torch.int64, device=weight.device)
