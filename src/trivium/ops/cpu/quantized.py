"""Products with weights of 4 or 8 bits in groups, on the kernels of `kernels/quantized.h`."""

from __future__ import annotations

import ctypes
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from trivium.ops.cpu import library, memory
from trivium.ops.cpu.library import TYPES, loaded
from trivium.ops.cpu.linear import PANEL, STORE, padded, try_pack_int8
from trivium.ops.linear import PackedWeight
from trivium.ops.quantized_inputs import gather_inputs
from trivium.weights.quantized import Arranged

TABLE4, INT8, FP8 = 0, 1, 2
STEP: Final = {torch.float32: 1, torch.bfloat16: 2}
"""Entries of a row that one product of a lane takes."""


def try_pack(weight: Arranged, dtype: torch.dtype) -> PackedWeight | None:
    """`ops.quantized.pack_quantized` for the CPU."""
    if weight.inputs == "int8":
        if weight.order is None and weight.scales.shape[1] == 1:
            codes = (weight.codes[:, : weight.num_in] ^ 128).contiguous().view(torch.int8)
            return try_pack_int8(codes, weight.scales.flatten())
        return None
    return CPUQuantized(weight, dtype if dtype in TYPES else torch.float32)


class CPUQuantized:
    """A weight [N, K] of codes in panels. A row's result doesn't depend on the rows computed with it. Inputs are computed with in `dtype`."""

    keeps_rows_apart = True

    def __init__(self, weight: Arranged, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.num_out, self.width = weight.codes.shape
        self.num_in, self.group, self.order = weight.num_in, weight.group, weight.order
        self.kind = {"int8": INT8, "fp8": FP8}.get(weight.kind, TABLE4)
        entries = _panels(weight.codes, STEP[dtype])
        zeros = weight.zeros
        if self.kind == TABLE4:
            half = entries.shape[-1] // 2
            packed = entries[..., :half] | (entries[..., half:] << 4)
        else:
            packed = entries ^ 128 if self.kind == INT8 else entries
            zeros = zeros - 128 if zeros is not None and self.kind == INT8 else zeros
        self.codes = memory.weights.empty(packed.numel(), torch.uint8)
        self.codes.copy_(packed.flatten())
        self.scales = _by_panel(weight.scales)
        self.zeros = None if zeros is None else _by_panel(zeros)
        self.table = _table(weight)
        kept = (self.codes, self.scales, self.zeros, self.table)
        self.struct = library.QuantizedWeight(*(_pointer(tensor) for tensor in kept), self.group, self.kind)
        """For calls of the library; valid as long as this object lives."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.codes, self.scales, self.zeros, self.order) if tensor is not None)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] → [..., N] in x's dtype."""
        rows = self._rows(x)
        out = torch.empty(rows.shape[0], self.num_out, dtype=rows.dtype)
        self._run(rows, out, bias)
        return out.to(x.dtype).view(*x.shape[:-1], self.num_out)

    def wide(self, x: Tensor) -> Tensor:
        """x [T, K] → [T, N] float32, not rounded on the way."""
        rows = self._rows(x)
        out = torch.empty(rows.shape[0], self.num_out)
        self._run(rows, out, None)
        return out

    def _rows(self, x: Tensor) -> Tensor:
        rows = x.to(self.dtype).reshape(-1, x.shape[-1])
        assert rows.shape[1] == self.num_in, f"the weight is {self.num_out} x {self.num_in}, the input {tuple(x.shape)}"
        rows = gather_inputs(rows, self.order, self.width)
        return rows if rows.stride(1) == 1 else rows.contiguous()

    def _run(self, x: Tensor, out: Tensor, bias: Tensor | None) -> None:
        wide_bias = None if bias is None else padded(bias, self.num_out, torch.float32)
        args = library.LinearArgs(
            x.data_ptr(),
            None,
            _pointer(wide_bias),
            out.data_ptr(),
            None,
            None,
            None,
            None,
            x.stride(0),
            out.stride(0),
            x.shape[0],
            self.num_out,
            self.width,
            STORE,
            0,
            out.dtype == torch.float32,
        )
        loaded().quantized_linear(TYPES[x.dtype], ctypes.byref(args), ctypes.byref(self.struct), torch.get_num_threads())


def _panels(codes: Tensor, step: int) -> Tensor:
    """uint8 [N, K] → [panels, K / step, PANEL * step]: the entries of a step side by side, columns first."""
    num_out, width = codes.shape
    codes = functional.pad(codes, (0, 0, 0, -num_out % PANEL))
    return codes.view(-1, PANEL, width // step, step).transpose(1, 2).reshape(-1, width // step, PANEL * step)


def _by_panel(values: Tensor) -> Tensor:
    """float32 [N, G] → [panels, G, PANEL], padded with zeros."""
    num_out, groups = values.shape
    return functional.pad(values.float(), (0, 0, 0, -num_out % PANEL)).view(-1, PANEL, groups).transpose(1, 2).contiguous()


def _table(weight: Arranged) -> Tensor:
    """What 4-bit codes stand for, before zero points."""
    if weight.table is not None:
        return weight.table.float().contiguous()
    return torch.arange(16, dtype=torch.float32) - (8 if weight.zeros is None else 0)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
