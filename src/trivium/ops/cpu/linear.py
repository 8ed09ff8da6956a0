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


class PackedLinear:
    """A weight [N, K], float32 or bf16, in panels that the kernel streams. A row's result doesn't depend on the rows computed with it.

    Inputs of the other type are converted. `gated`: the weight is gate and up, one above the other, and the activation is applied, too.
    """

    def __init__(self, weight: Tensor) -> None:
        assert weight.dim() == 2 and weight.dtype in TYPES and weight.device.type == "cpu"
        if weight.stride(1) != 1:
            weight = weight.contiguous()
        self.num_out, self.num_in = weight.shape
        self.dtype = weight.dtype
        number = TYPES[weight.dtype]
        self.data = memory.weights.empty(loaded().packed_entries(number, self.num_out, self.num_in), weight.dtype)
        loaded().pack_weight(number, weight.data_ptr(), weight.stride(0), self.num_out, self.num_in, self.data.data_ptr(), torch.get_num_threads())

    keeps_rows_apart = True

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] → [..., N] in x's dtype."""
        rows = _as_rows(x.to(self.dtype))
        out = torch.empty(rows.shape[0], self.num_out, dtype=self.dtype)
        self._run(rows, out, STORE, bias)
        return out.to(x.dtype).view(*x.shape[:-1], self.num_out)

    def wide(self, x: Tensor) -> Tensor:
        """x [T, K] → [T, N] float32, not rounded on the way."""
        rows = _as_rows(x.to(self.dtype))
        out = torch.empty(rows.shape[0], self.num_out)
        self._run(rows, out, STORE, None, out_float=True)
        return out

    def gated(self, x: Tensor, activation: int, bias: Tensor | None = None) -> Tensor:
        """x [T, K] → act(gate) * up [T, N / 2]."""
        assert self.num_out % (2 * PANEL) == 0
        rows = _as_rows(x.to(self.dtype))
        out = torch.empty(rows.shape[0], self.num_out // 2, dtype=self.dtype)
        self._run(rows, out, ACT_MUL, bias, activation=activation)
        return out.to(x.dtype)

    def _run(self, x: Tensor, out: Tensor, epilogue: int, bias: Tensor | None, *, activation: int = 0, out_float: bool = False) -> None:
        assert x.shape[1] == self.num_in, f"the weight is {self.num_out} x {self.num_in}, the input {tuple(x.shape)}"
        padded = None if bias is None else padded_bias(bias, self.num_out)
        if self.num_in % 2 and self.dtype == torch.bfloat16:
            x = torch.nn.functional.pad(x, (0, 1))  # entries are read in pairs
        args = LinearArgs(
            x.data_ptr(),
            self.data.data_ptr(),
            None if padded is None else padded.data_ptr(),
            out.data_ptr(),
            None,
            x.stride(0),
            out.stride(0),
            x.shape[0],
            self.num_out,
            self.num_in,
            epilogue,
            activation,
            out_float,
        )
        loaded().linear(TYPES[self.dtype], ctypes.byref(args), torch.get_num_threads())


def try_pack(weight: Tensor) -> PackedLinear | None:
    """`ops.linear.try_pack_weight` for the CPU: None for types the kernels don't take."""
    if weight.dim() != 2 or weight.dtype not in TYPES or 0 in weight.shape:
        return None
    return PackedLinear(weight)


def padded_bias(bias: Tensor, num_out: int) -> Tensor:
    assert bias.shape == (num_out,)
    padded = torch.zeros(-(-num_out // PANEL) * PANEL, dtype=torch.float32)
    padded[:num_out] = bias
    return padded


def _as_rows(x: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()
