"""Products with quantized weights: `pack_quantized` gives the device's own layout of them, or this module's, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from trivium.ops.dispatch import fast_path
from trivium.ops.linear import PackedWeight, int8_linear_reference, linear, try_pack_weight
from trivium.ops.quantized_inputs import gather_inputs
from trivium.weights.quantized import Arranged, QuantizedWeight, arrange, decode


def pack_quantized(weight: QuantizedWeight, dtype: torch.dtype) -> PackedWeight:
    """For inputs of type `dtype`. The caller may drop `weight` afterwards."""
    arranged = arrange(weight)
    if (fast := fast_path("pack_quantized", weight.codes)) and (packed := fast(arranged, dtype)) is not None:
        return packed
    return QuantizedReference(arranged)


class QuantizedReference:
    """The codes, in as many bits as they need; the whole matrix is dequantized for each product."""

    keeps_rows_apart = False

    def __init__(self, weight: Arranged) -> None:
        self.weight = weight
        self.num_out = weight.codes.shape[0]
        self.is_narrow = weight.kind in ("int4", "table4")
        self.codes = weight.codes[:, 0::2] | (weight.codes[:, 1::2] << 4) if self.is_narrow else weight.codes
        self.weight = Arranged(**{**vars(weight), "codes": self.codes})

    @property
    def nbytes(self) -> int:
        kept = (self.codes, self.weight.scales, self.weight.zeros, self.weight.order)
        return sum(tensor.nbytes for tensor in kept if tensor is not None)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [..., K] → [..., N] in x's dtype."""
        rows = gather_inputs(x.reshape(-1, x.shape[-1]), self.weight.order, self._width)
        if self.weight.inputs == "int8":
            out = self._rounded(rows, bias)
        else:
            out = functional.linear(rows, self.dequantize(torch.float32).to(x.dtype), bias)
        return out.view(*x.shape[:-1], self.num_out)

    def wide(self, x: Tensor) -> Tensor:
        """x [T, K] → [T, N] float32."""
        return self(x.to(torch.float32), None)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """[N, K'] with inputs in the order of the groups."""
        weight, codes = self.weight, self.codes
        if self.is_narrow:
            codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)
        zeros = None if weight.zeros is None else weight.zeros.repeat_interleave(weight.group, dim=1)
        return decode(weight.kind, codes, weight.table, zeros, dtype) * weight.scales.to(dtype).repeat_interleave(weight.group, dim=1)

    @property
    def _width(self) -> int:
        return self.codes.shape[1] * (2 if self.is_narrow else 1)

    def _rounded(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        assert self.weight.scales.shape[1] == 1
        return int8_linear_reference(rows, (self.codes ^ 128).view(torch.int8), self.weight.scales, bias)


class PlainProduct:
    """A plain matrix [N, K] among quantized ones."""

    def __init__(self, weight: Tensor) -> None:
        self.packed = try_pack_weight(weight)
        self.weight = weight if self.packed is None else None

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes if self.weight is not None else 0 if self.packed is None else self.packed.nbytes

    @property
    def keeps_rows_apart(self) -> bool:
        return self.packed is not None and self.packed.keeps_rows_apart

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.packed is not None:
            return self.packed(x, bias)
        assert self.weight is not None
        return linear(x, self.weight, bias)

    def wide(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            return self.packed.wide(x)
        return self(x, None).to(torch.float32)


class StackedProducts:
    """Several matrices of the same inputs, one below the other, that can't be one: of other formats, or with groups in another order."""

    def __init__(self, parts: Sequence[tuple[PackedWeight, int]]) -> None:
        """`parts`: each with the number of its outputs."""
        self.parts = [part for part, _ in parts]
        self.sizes = [size for _, size in parts]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def keeps_rows_apart(self) -> bool:
        return all(part.keeps_rows_apart for part in self.parts)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        biases = [None] * len(self.parts) if bias is None else bias.split(self.sizes)
        return torch.cat([part(x, own) for part, own in zip(self.parts, biases, strict=True)], dim=-1)

    def wide(self, x: Tensor) -> Tensor:
        return torch.cat([part.wide(x) for part in self.parts], dim=-1)
