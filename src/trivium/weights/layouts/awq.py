"""AWQ: "gemm" packs along outputs in an order of its own; "gemv" packs along inputs, with scales padded.

https://github.com/casper-hansen/AutoAWQ, `WQLinear_GEMM` and `WQLinear_GEMV`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from trivium.arch.quantization import GroupedScheme
from trivium.errors import WeightError
from trivium.weights.bits import pack, unpack
from trivium.weights.layouts.base import Share, TensorSpec, num_groups
from trivium.weights.layouts.gptq import grouped
from trivium.weights.quantized import QuantizedWeight, even_groups

PACKED_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight outputs is in each nibble of a word, least significant first."""
UNPACKED_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which nibble holds each of the eight."""


class AwqLayout:
    """`qweight` [in, out / 8], `qzeros` [groups, out / 8], `scales` [groups, out]."""

    def __init__(self, scheme: GroupedScheme) -> None:
        self.scheme = scheme

    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        groups = num_groups(num_in, self.scheme.group_size)
        return (
            TensorSpec("qweight", (num_in, num_out // 8)),
            TensorSpec("qzeros", (groups, num_out // 8)),
            TensorSpec("scales", (groups, num_out)),
        )

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        codes = _unpack_rows(share.take_columns(raw["qweight"], 0), share)
        zeros = _unpack_rows(raw["qzeros"], share)
        scales = share.take_rows(raw["scales"], 1).to(share.device)
        groups = share.take_columns(even_groups(share.num_in, self.scheme.group_size), 0).to(share.device)
        return grouped(4, codes.T, scales.T, zeros.T, groups)


def _unpack_rows(words: Tensor, share: Share) -> Tensor:
    """int32 [m, out / 8] → uint8 [m, our outputs]."""
    if share.rows_are_aligned(8):
        return _reordered(unpack(share.take_rows(words, 1, per_entry=8).to(share.device), 4), UNPACKED_ORDER)
    return share.take_rows(_reordered(unpack(words.to(share.device), 4), UNPACKED_ORDER), 1)


def _reordered(numbers: Tensor, order: tuple[int, ...]) -> Tensor:
    return numbers.unflatten(-1, (-1, 8))[..., list(order)].flatten(-2)


def pack_awq(codes: Tensor, scales: Tensor, zeros: Tensor) -> dict[str, Tensor]:
    """codes and zeros uint8 [N, K] and [N, G], scales [N, G] → the tensors of a "gemm" checkpoint, by suffix."""
    return {
        "qweight": pack(_reordered(codes.T, PACKED_ORDER), 4),
        "qzeros": pack(_reordered(zeros.T, PACKED_ORDER), 4),
        "scales": scales.T.to(torch.float16).contiguous(),
    }


class AwqGemvLayout:
    """`qweight` [out, in / 8] in plain order, `qzeros` [out, w], `scales` [out, 8 w], where w is wide enough for all groups."""

    def __init__(self, scheme: GroupedScheme) -> None:
        self.scheme = scheme

    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        return TensorSpec("qweight", (num_out, num_in // 8)), TensorSpec("qzeros", None), TensorSpec("scales", None)

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        groups = num_groups(share.num_in, self.scheme.group_size)
        for name, per_entry in (("qzeros", 8), ("scales", 1)):
            shape = raw[name].shape
            if len(shape) != 2 or shape[0] != share.num_out or shape[1] * per_entry < groups:
                raise WeightError(f"{name} has shape {list(shape)}, which can't hold {groups} groups of {share.num_out} outputs.")
        codes = share.take_columns(unpack(share.take_rows(raw["qweight"]).to(share.device), 4), 1)
        zeros = unpack(share.take_rows(raw["qzeros"]).to(share.device), 4)[:, :groups]
        scales = share.take_rows(raw["scales"]).to(share.device)[:, :groups]
        which = share.take_columns(even_groups(share.num_in, self.scheme.group_size), 0).to(share.device)
        return grouped(4, codes, scales, zeros, which)
