"""Products with plain weights: the fast paths of `ops.linear`.

Who wins depends on the number of rows: for one, a matrix-vector kernel; for a few, a matrix-vector kernel of several rows if the weight is
small; up to 64, a tensor-core kernel made for reading W once (`bulk` on Hopper, elsewhere `skinny` for some long weights); above, cuBLAS.
The rules of `way` are measured in whole decode steps (`docs/benchmarks.md`). Folding the norm before a product into it, or the addition to the
residual stream after it, lost: every program norms again, and waits for the residual once it has its sum.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from trivium.ops.triton.gemv import MAX_K, gemv
from trivium.ops.triton.launch import INTERPRETED, ArrivalCounters
from trivium.ops.triton.matvec import matvec
from trivium.ops.triton.skinny import SkinnyConfig, config_for, skinny

Way = Literal["gemv", "matvec", "skinny", "bulk", "library"]

MATVEC_WEIGHT = 5 << 20
"""Elements of a weight up to which the matrix-vector kernel wins for 2 rows; for up to 4 rows half of it."""
SKINNY_ROWS = 16
"""Most rows for which the skinny kernel wins, and the elements of a weight from which it does; its rows must be long, too."""
SKINNY_WEIGHT = 32 << 20
BULK_ROWS = 64
"""Most rows for which the bulk kernel wins, and the elements of a weight from which it does."""
BULK_WEIGHT = 12_000_000
MIN_WEIGHT = 64 * 64

_counters = ArrivalCounters()


@cache
def bulk_kernels(device_index: int | None) -> Any | None:
    """The module `bulk` on Hopper, the chip it is written for. Gluon is experimental: a Triton that has another one leaves its products to the
    library."""
    if INTERPRETED or not torch.cuda.is_available() or torch.cuda.get_device_capability(device_index) != (9, 0):
        return None
    try:
        return import_module("trivium.ops.triton.bulk")
    except ImportError:
        return None


def way(num_rows: int, weight: Tensor, dtype: torch.dtype) -> Way:
    """Which kernel multiplies `num_rows` rows of type `dtype` by this weight [N, K]."""
    n, k = weight.shape
    if num_rows > max(BULK_ROWS, SKINNY_ROWS, 4) or num_rows == 0 or weight.numel() < MIN_WEIGHT or dtype not in (torch.bfloat16, torch.float16):
        return "library"
    if weight.dtype != dtype or weight.stride(1) != 1 or k % 16 or weight.stride(0) % 8:  # rows must start at 16 bytes
        return "library"
    if num_rows == 1:
        return "gemv" if k <= MAX_K else "library"
    if num_rows <= 4 and weight.numel() <= (MATVEC_WEIGHT if num_rows == 2 else MATVEC_WEIGHT // 2) and k <= 2048:
        return "matvec"
    is_large = num_rows <= BULK_ROWS and weight.numel() >= BULK_WEIGHT
    if is_large and weight.is_cuda and weight.data_ptr() % 16 == 0 and bulk_kernels(weight.device.index):
        return "bulk"
    return "skinny" if 2 < num_rows <= SKINNY_ROWS and k >= 2 * n and weight.numel() >= SKINNY_WEIGHT else "library"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K], weight [N, K], bias [N] → [..., N]."""
    rows = x.reshape(-1, x.shape[-1])
    chosen = way(rows.shape[0], weight, x.dtype)
    if chosen == "library":
        return functional.linear(x, weight, bias)
    if chosen == "gemv":
        y = gemv(rows, weight, bias)
    elif chosen == "bulk":
        y = _bulk(rows, weight, bias)
    else:
        y = matvec(rows, weight, bias) if chosen == "matvec" else _skinny(rows, weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor | None:
    """`act_and_mul(linear(x))`: x [T, K], weight [2F, K], the gates' rows first → [T, F]."""
    chosen = way(x.shape[0], weight, x.dtype)
    if chosen == "library":
        return None
    if chosen == "gemv":
        return gemv(x, weight, bias, kind=kind)
    if chosen == "bulk":
        return _bulk(x, weight, bias, kind=kind)
    return matvec(x, weight, bias, kind=kind) if chosen == "matvec" else _skinny(x, weight, bias, kind=kind)


def _skinny(x: Tensor, weight: Tensor, bias: Tensor | None, *, kind: str = "") -> Tensor:
    num_out = weight.shape[0] // 2 if kind else weight.shape[0]
    config: SkinnyConfig = config_for(x.shape[0], num_out, x.shape[1], is_gated=bool(kind))
    counters = _counters.for_weight(weight, -(-num_out // config.block_n))
    return skinny(x, weight, bias, counters, kind=kind, config=config)


def _bulk(x: Tensor, weight: Tensor, bias: Tensor | None, *, kind: str = "") -> Tensor:
    kernels = bulk_kernels(weight.device.index)
    assert kernels is not None
    num_out = weight.shape[0] // 2 if kind else weight.shape[0]
    config = kernels.config_for(x.shape[0])
    counters = _counters.for_weight(weight, -(-num_out // config.block_n))
    return kernels.bulk(x, weight, bias, counters, kind=kind, config=config)
