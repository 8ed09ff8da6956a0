"""Marlin's own format: `B` int32 [in / 16, 2 out], 4 bits in the order in which its kernel's threads want them, and `s` [groups, out].

https://github.com/IST-DASLab/marlin, `Layer.pack`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from trivium.arch.quantization import GroupedScheme
from trivium.weights.bits import pack, unpack
from trivium.weights.layouts.base import Share, TensorSpec, num_groups
from trivium.weights.layouts.gptq import grouped
from trivium.weights.quantized import QuantizedWeight, even_groups

TILE = 16
RUN = 1024
"""Codes that are permuted together: four tiles of 16 x 16."""


class MarlinLayout:
    def __init__(self, scheme: GroupedScheme) -> None:
        self.scheme = scheme

    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        groups = num_groups(num_in, self.scheme.group_size)
        return TensorSpec("B", (num_in // TILE, num_out * TILE // 8)), TensorSpec("s", (groups, num_out))

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        codes = _codes(unpack(raw["B"], 4), share.num_in, share.num_out)
        order = _scale_order(self.scheme.group_size is None)
        scales = raw["s"].unflatten(1, (-1, len(order)))[..., order.argsort()].flatten(1)
        groups = even_groups(share.num_in, self.scheme.group_size)
        return grouped(
            4,
            share.take_columns(share.take_rows(codes), 1).to(share.device),
            share.take_rows(scales, 1).T.to(share.device),
            None,
            share.take_columns(groups, 0).to(share.device),
        )


def _codes(stored: Tensor, num_in: int, num_out: int) -> Tensor:
    """uint8 [in / 16, 16 out] in Marlin's order → [out, in]."""
    tiles = stored.reshape(-1, RUN)[:, _code_order().argsort()].view(num_in // TILE, num_out // TILE, TILE, TILE)
    return tiles.permute(0, 2, 1, 3).reshape(num_in, num_out).T


def pack_marlin(codes: Tensor, scales: Tensor) -> dict[str, Tensor]:
    """codes uint8 [N, K] around 8, scales [N, G] → tensors by suffix. N must be a multiple of 64, K of 16."""
    num_out, num_in = codes.shape
    tiles = codes.T.reshape(num_in // TILE, TILE, num_out // TILE, TILE).permute(0, 2, 1, 3).reshape(-1, RUN)
    order = _scale_order(scales.shape[1] == 1)
    stored = tiles[:, _code_order()].view(num_in // TILE, num_out * TILE)
    return {"B": pack(stored, 4), "s": scales.T.reshape(-1, len(order))[:, order].view(-1, num_out).to(torch.float16)}


@cache
def _code_order() -> Tensor:
    """Which of 1,024 codes, four tiles of 16 rows of 16 outputs, is stored where."""
    order: list[int] = []
    for thread in range(32):
        column, row = thread // 4, 2 * (thread % 4)
        own = [16 * r + column + 8 * half for half in (0, 1) for r in (row, row + 1, row + 8, row + 9)]
        for tile in range(4):
            order += [place + 256 * tile for place in own]
    return torch.tensor(order).view(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].flatten()


@cache
def _scale_order(single: bool) -> Tensor:
    if single:
        return torch.tensor([2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)])
    return torch.tensor([i + 8 * j for i in range(8) for j in range(8)])
