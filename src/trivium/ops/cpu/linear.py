"""Weights packed for the CPU kernels, and products with them."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from trivium.ops.cpu import memory
from trivium.ops.cpu.library import TYPES, LinearArgs, loaded

PANEL = 32
"""Columns of a packed panel; biases are padded to a multiple of it."""

STORE, ADD, ACT_MUL = 0, 1, 2

INT8 = 2
"""Number of the type of int8 weights."""

MAX_INT8_K = (1 << 31) // (255 * 128) - 1
"""Sums of more products of an unsigned and a signed byte may leave 32 bits."""


class PackedLinear:
    """A weight [N, K] in panels that the kernel streams. A row's result doesn't depend on the rows computed with it.

    `weight` is float32 or bf16, or int8 with `scale` [N], what one step of each row is worth; inputs are then rounded to int8, each row by its
    largest magnitude. Inputs of another type than the weight's, or than float32 and bf16 for int8, are converted.
    """

    keeps_rows_apart = True
    """For the batch-invariant mode; see `ops.linear.PackedWeight`."""

    def __init__(self, weight: Tensor, scale: Tensor | None = None) -> None:
        assert weight.dim() == 2 and weight.device.type == "cpu"
        assert weight.dtype == torch.int8 if scale is not None else weight.dtype in TYPES
        if weight.stride(1) != 1:
            weight = weight.contiguous()
        self.num_out, self.num_in = weight.shape
        self.dtype = weight.dtype
        """As the weight is stored."""
        number = TYPES.get(weight.dtype, INT8)
        self.data = memory.weights.empty(loaded().packed_entries(number, self.num_out, self.num_in), weight.dtype)
        loaded().pack_weight(number, weight.data_ptr(), weight.stride(0), self.num_out, self.num_in, self.data.data_ptr(), torch.get_num_threads())
        self.scale = self.sum = None
        if scale is not None:
            assert self.num_in <= MAX_INT8_K, "sums would overflow"
            self.scale = padded(scale.flatten(), self.num_out, torch.float32)
            self.sum = padded(weight.sum(dim=1, dtype=torch.int64) * 128, self.num_out, torch.int32)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (self.scale.nbytes + self.sum.nbytes if self.scale is not None and self.sum is not None else 0)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] → [..., N] in x's dtype."""
        rows = self._rows(x)
        out = torch.empty(rows.shape[0], self.num_out, dtype=rows.dtype)
        self._run(rows, out, STORE, bias)
        return out.to(x.dtype).view(*x.shape[:-1], self.num_out)

    def wide(self, x: Tensor) -> Tensor:
        """x [T, K] → [T, N] float32, not rounded on the way."""
        rows = self._rows(x)
        out = torch.empty(rows.shape[0], self.num_out)
        self._run(rows, out, STORE, None, out_float=True)
        return out

    def gated(self, x: Tensor, activation: int, bias: Tensor | None = None) -> Tensor:
        """x [T, K], the weight gate and up, one above the other → act(gate) * up [T, N / 2]."""
        assert self.num_out % (2 * PANEL) == 0
        rows = self._rows(x)
        out = torch.empty(rows.shape[0], self.num_out // 2, dtype=rows.dtype)
        self._run(rows, out, ACT_MUL, bias, activation=activation)
        return out.to(x.dtype)

    def _rows(self, x: Tensor) -> Tensor:
        dtype = self.dtype if self.scale is None else x.dtype if x.dtype in TYPES else torch.float32
        rows = x.to(dtype).reshape(-1, x.shape[-1])
        assert rows.shape[1] == self.num_in, f"the weight is {self.num_out} x {self.num_in}, the input {tuple(x.shape)}"
        if dtype == torch.bfloat16 and self.num_in % 2 and self.scale is None:
            return torch.nn.functional.pad(rows, (0, 1))  # entries are read in pairs
        return rows if rows.stride(1) == 1 else rows.contiguous()

    def _run(self, x: Tensor, out: Tensor, epilogue: int, bias: Tensor | None, *, activation: int = 0, out_float: bool = False) -> None:
        wide_bias = None if bias is None else padded(bias, self.num_out, torch.float32)
        args = LinearArgs(
            x.data_ptr(),
            self.data.data_ptr(),
            _pointer(wide_bias),
            out.data_ptr(),
            None,
            None,
            _pointer(self.scale),
            _pointer(self.sum),
            x.stride(0),
            out.stride(0),
            x.shape[0],
            self.num_out,
            self.num_in,
            epilogue,
            activation,
            out_float,
        )
        loaded().linear(TYPES[x.dtype], ctypes.byref(args), torch.get_num_threads())


def try_pack(weight: Tensor) -> PackedLinear | None:
    """`ops.linear.try_pack_weight` for the CPU: None for types the kernels don't take."""
    if weight.dim() != 2 or weight.dtype not in TYPES or 0 in weight.shape:
        return None
    return PackedLinear(weight)


def try_pack_int8(weight: Tensor, scale: Tensor) -> PackedLinear | None:
    """Weight [N, K] int8 whose rows are worth `scale` [N] or [N, 1] a step; inputs are rounded to int8, too."""
    return PackedLinear(weight, scale) if weight.shape[1] <= MAX_INT8_K else None


def padded(values: Tensor, num_out: int, dtype: torch.dtype) -> Tensor:
    """[N] as [N rounded up to a panel], with zeros."""
    assert values.shape == (num_out,)
    out = torch.zeros(-(-num_out // PANEL) * PANEL, dtype=dtype)
    out[:num_out] = values
    return out


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
