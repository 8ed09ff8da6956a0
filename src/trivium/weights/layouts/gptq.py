"""GPTQ: `qweight` [in * bits / 32, out] packed along inputs, `qzeros` [groups, out * bits / 32], `scales` [groups, out], `g_idx` [in].

https://github.com/ModelCloud/GPTQModel. Version 1 stores zero points less one, version 2 as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trivium.arch.quantization import GroupedScheme
from trivium.errors import WeightError
from trivium.weights.bits import pack, unpack
from trivium.weights.layouts.base import Share, TensorSpec, num_groups
from trivium.weights.quantized import CENTER, QuantizedWeight, even_groups

ALIGNMENT = 32
"""Inputs, or outputs, after which packed words start anew, whatever the number of bits."""


class GptqLayout:
    def __init__(self, scheme: GroupedScheme) -> None:
        self.scheme = scheme

    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        bits, groups = self.scheme.bits, num_groups(num_in, self.scheme.group_size)
        return (
            TensorSpec("qweight", (num_in * bits // 32, num_out)),
            TensorSpec("qzeros", (groups, num_out * bits // 32)),
            TensorSpec("scales", (groups, num_out)),
            TensorSpec("g_idx", (num_in,), required=self.scheme.act_order),
        )

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        scheme, bits = self.scheme, self.scheme.bits
        packed = share.take_rows(raw["qweight"], 1)
        is_aligned = share.columns_are_aligned(ALIGNMENT)
        if is_aligned:
            start, end = (edge * bits // 32 for edge in share.columns)
            packed = packed[start:end]
        codes = unpack(packed.to(share.device).T, bits)
        if not is_aligned:
            codes = share.take_columns(codes, 1).contiguous()
        zeros = unpack(raw["qzeros"].to(share.device), bits)
        zeros = (zeros + scheme.zero_offset) & ((1 << bits) - 1)
        return grouped(bits, codes, share.take_rows(raw["scales"], 1).to(share.device).T, share.take_rows(zeros, 1).T, self._groups(raw, share))

    def _groups(self, raw: Mapping[str, Tensor], share: Share) -> Tensor:
        if "g_idx" not in raw:
            groups = even_groups(share.num_in, self.scheme.group_size)
        else:
            groups = raw["g_idx"].to(torch.int64)
            if not 0 <= int(groups.min()) <= int(groups.max()) < len(raw["scales"]):
                raise WeightError(f"g_idx names groups from {int(groups.min())} to {int(groups.max())}; there are {len(raw['scales'])}.")
        return share.take_columns(groups, 0).to(share.device)


def grouped(bits: int, codes: Tensor, scales: Tensor, zeros: Tensor | None, groups: Tensor) -> QuantizedWeight:
    """Codes of up to 8 bits. Zero points [N, G] that are all the middle of the range are left out: None."""
    kind, middle = "int4" if bits <= 4 else "int8", 1 << (bits - 1)
    if zeros is None or bool((zeros == middle).all()):
        codes, zeros = codes + (CENTER[kind] - middle), None
    wide_zeros = None if zeros is None else zeros.to(torch.float32).contiguous()
    return QuantizedWeight(kind, codes.contiguous(), scales.to(torch.float32).contiguous(), groups, zeros=wide_zeros)


def pack_gptq(codes: Tensor, scales: Tensor, zeros: Tensor, groups: Tensor, bits: int, *, version: int = 1) -> dict[str, Tensor]:
    """codes and zeros uint8 [N, K] and [N, G], scales [N, G], groups [K] → the tensors of a checkpoint, by suffix."""
    stored = (zeros - 1) & ((1 << bits) - 1) if version == 1 else zeros
    return {
        "qweight": pack(codes, bits).T.contiguous(),
        "qzeros": pack(stored.T.contiguous(), bits),
        "scales": scales.T.to(torch.float16).contiguous(),
        "g_idx": groups.to(torch.int32),
    }
