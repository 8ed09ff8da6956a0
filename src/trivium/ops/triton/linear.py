"""Products with plain weights: the fast path of `ops.linear`, and the fused products that surround a residual stream.

Who wins depends on the number of rows: up to a few, a matrix-vector kernel; up to some dozens, a tensor-core kernel made for reading W
once; above, cuBLAS. The table is measured (`benchmarks/kernels.py`). The fused functions return None where plain steps are as good.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from trivium.ops.triton.launch import ArrivalCounters
from trivium.ops.triton.matvec import matvec
from trivium.ops.triton.skinny import SkinnyConfig, config_for, skinny

Way = Literal["matvec", "skinny", "library"]

MATVEC_ROWS = 2
"""Most rows for which the matrix-vector kernel wins."""
SKINNY_ROWS = 64
"""Most rows for which the skinny kernel wins."""
MIN_WEIGHT = 64 * 64

_counters = ArrivalCounters()


def way(num_rows: int, weight: Tensor, dtype: torch.dtype) -> Way:
    """Which kernel multiplies `num_rows` rows of type `dtype` by this weight [N, K]."""
    n, k = weight.shape
    if num_rows > SKINNY_ROWS or num_rows == 0 or weight.numel() < MIN_WEIGHT or dtype not in (torch.bfloat16, torch.float16):
        return "library"
    if weight.dtype != dtype or weight.stride(1) != 1 or k % 16 or weight.stride(0) % 8:  # rows must start at 16 bytes
        return "library"
    if num_rows <= MATVEC_ROWS and k <= 32768:
        return "matvec"
    return "skinny" if n >= 64 else "library"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K], weight [N, K], bias [N] → [..., N]."""
    rows = x.reshape(-1, x.shape[-1])
    chosen = way(rows.shape[0], weight, x.dtype)
    if chosen == "library":
        return functional.linear(x, weight, bias)
    y = matvec(rows, weight, bias) if chosen == "matvec" else _skinny(rows, weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor | None:
    """`act_and_mul(linear(x))`: x [T, K], weight [2F, K], the gates' rows first → [T, F]."""
    chosen = way(x.shape[0], weight, x.dtype)
    if chosen == "library":
        return None
    return matvec(x, weight, bias, kind=kind) if chosen == "matvec" else _skinny(x, weight, bias, kind=kind)


def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor | None:
    """`residual += linear(x)` in place: x [T, K], weight [N, K], residual [T, N] → the residual."""
    chosen = way(x.shape[0], weight, x.dtype)
    if chosen == "library":
        return None
    if chosen == "matvec":
        return matvec(x, weight, bias, residual=residual, out=residual)
    return _skinny(x, weight, bias, residual=residual, out=residual)


def norm_linear(residual: Tensor, norm: Tensor, eps: float, offset: float, weight: Tensor, bias: Tensor | None, *, kind: str = "") -> Tensor | None:
    """`linear(rms_norm(residual))`, with `act_and_mul` after it if `kind` is given; only for the few rows where norming again in every
    program costs nothing."""
    if way(residual.shape[0], weight, residual.dtype) != "matvec":
        return None
    return matvec(residual, weight, bias, kind=kind, norm=norm, norm_eps=eps, norm_offset=offset)


def _skinny(x: Tensor, weight: Tensor, bias: Tensor | None, *, kind: str = "", residual: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    num_out = weight.shape[0] // 2 if kind else weight.shape[0]
    config: SkinnyConfig = config_for(x.shape[0], num_out, x.shape[1], is_gated=bool(kind))
    counters = _counters.for_weight(weight, -(-num_out // config.block_n))
    return skinny(x, weight, bias, counters, kind=kind, residual=residual, out=out, config=config)
