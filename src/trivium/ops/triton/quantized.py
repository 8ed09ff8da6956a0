"""Quantized weights for CUDA: in which layout they are kept, and which kernel multiplies them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trivium.ops.linear import PackedWeight
from trivium.ops.quantized_inputs import gather_inputs
from trivium.ops.triton.quantized_product import MAX_ROWS, RUN, Codes, dequantize, product
from trivium.ops.triton.rounded_product import rounded_product
from trivium.weights.quantized import Arranged

MIN_ROUNDED_GROUP = 32
"""8-bit matrix instructions multiply 32 inputs at a time: smaller groups are decoded instead."""


def try_pack(weight: Arranged, dtype: torch.dtype) -> PackedWeight:
    """`ops.quantized.pack_quantized` for CUDA."""
    return TritonQuantized(weight)


class TritonQuantized:
    """A weight [N, K] of codes. Products differ in the last bits with the number of rows."""

    keeps_rows_apart = False

    def __init__(self, weight: Arranged) -> None:
        self.order, self.width = weight.order, weight.codes.shape[1]
        self.num_out, self.num_in = weight.codes.shape[0], weight.num_in
        self.codes = _codes(weight)
        self.rounds_inputs = weight.inputs != "plain" and weight.group % MIN_ROUNDED_GROUP == 0 and _multiplies(weight)

    @property
    def nbytes(self) -> int:
        kept = (self.codes.codes, self.codes.scales, self.codes.zeros, self.order)
        return sum(tensor.nbytes for tensor in kept if tensor is not None)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [..., K] → [..., N] in x's dtype."""
        return self._multiply(x.reshape(-1, x.shape[-1]), bias, x.dtype).view(*x.shape[:-1], self.num_out)

    def wide(self, x: Tensor) -> Tensor:
        """x [T, K] → [T, N] float32."""
        return self._multiply(x, None, torch.float32)

    def _multiply(self, x: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        out = torch.empty(x.shape[0], self.num_out, dtype=dtype, device=x.device)
        if x.shape[0] == 0:
            return out
        x = gather_inputs(x, self.order, self.width)
        x = x if x.stride(1) == 1 else x.contiguous()
        if self.rounds_inputs:
            return rounded_product(x, self.codes, bias, out=out)
        if x.shape[0] <= MAX_ROWS:
            return product(x, self.codes, bias, out=out)
        return functional.linear(x, dequantize(self.codes, x.dtype), bias).to(dtype)


def _codes(weight: Arranged) -> Codes:
    kind: str = weight.kind
    zeros = weight.zeros
    if kind in ("int4", "table4"):
        codes = _interleaved(weight.codes, in_pairs=kind == "table4")
    elif kind == "fp8" and not _has_float8(weight.codes.device):
        kind, codes = "fp8_bits", weight.codes
    elif kind == "fp8":
        codes = weight.codes.view(torch.float8_e4m3fn)
    else:
        codes = (weight.codes ^ 128).view(torch.int8)
        zeros = None if zeros is None else zeros - 128
    return Codes(
        kind=kind,
        codes=codes,
        # Rounded inputs multiply with float32 scales in the vendor's library as well.
        scales=_smallest(weight.scales.T, torch.float16 if weight.inputs == "plain" else torch.float32),
        zeros=None if zeros is None else _smallest(zeros.T, torch.int8 if kind == "int8" else torch.uint8),
        table=None if weight.table is None else weight.table.to(torch.float32),
        table_bytes=None if weight.table is None else _table_bytes(weight.table),
        group=weight.group,
        num_in=weight.codes.shape[1],
    )


def _interleaved(codes: Tensor, *, in_pairs: bool) -> Tensor:
    """uint8 [N, K] → int32 [K / RUN, N, 16] as `quantized_codes` says, K padded to a multiple of RUN."""
    codes = functional.pad(codes, (0, -codes.shape[1] % RUN)).unflatten(1, (-1, RUN))
    if in_pairs:
        codes = codes.unflatten(2, (2, 4, 8, 2))  # output, run; half of the inputs, byte of a word, pair of words, half of a byte
        words = (codes[..., 0] | (codes[..., 1] << 4)).permute(1, 0, 4, 2, 3)
    else:
        codes = codes.unflatten(2, (4, 2, 16))  # output, run; byte of a word, half of a byte, word
        words = (codes[:, :, :, 0] | (codes[:, :, :, 1] << 4)).permute(1, 0, 3, 2)
    return words.contiguous().view(torch.int32).view(words.shape[0], words.shape[1], 16)


def _table_bytes(table: Tensor) -> Tensor:
    """float32 [16] → int32 [8]: the low bytes of the entries in bf16, four in a word, then the high ones."""
    return table.to(torch.bfloat16).view(torch.uint8).view(16, 2).T.contiguous().view(torch.int32).flatten()


def _smallest(values: Tensor, dtype: torch.dtype) -> Tensor:
    """In `dtype` where that is exact."""
    narrow = values.to(dtype)
    return (narrow if torch.equal(narrow.to(torch.float32), values) else values).contiguous()


def _multiplies(weight: Arranged) -> bool:
    """Whether the device's matrix instructions take such numbers."""
    return weight.inputs == "int8" or _has_float8(weight.codes.device)


def _has_float8(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)  # the interpreter has it
