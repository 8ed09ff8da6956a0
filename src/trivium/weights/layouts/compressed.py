"""compressed-tensors' weights: packed into words along inputs, or int8 as they are. https://github.com/vllm-project/compressed-tensors"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trivium.arch.quantization import GroupedScheme
from trivium.errors import WeightError
from trivium.weights.bits import unpack
from trivium.weights.layouts.base import Share, TensorSpec, num_groups
from trivium.weights.layouts.gptq import grouped
from trivium.weights.quantized import QuantizedWeight, even_groups


class PackedLayout:
    """`weight_packed` int32 [out, in * bits / 32], numbers plus half the range; `weight_scale` [out, groups]; zero points packed along outputs."""

    def __init__(self, scheme: GroupedScheme) -> None:
        self.scheme = scheme

    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        bits, groups = self.scheme.bits, num_groups(num_in, self.scheme.group_size)
        return (
            TensorSpec("weight_packed", (num_out, -(-num_in * bits // 32))),
            TensorSpec("weight_scale", (num_out, groups)),
            TensorSpec("weight_zero_point", (-(-num_out * bits // 32), groups), required=not self.scheme.symmetric),
            TensorSpec("weight_g_idx", (num_in,), required=self.scheme.act_order),
            TensorSpec("weight_shape", (2,), required=False),
        )

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        bits, device = self.scheme.bits, share.device
        codes = share.take_columns(unpack(share.take_rows(raw["weight_packed"]).to(device), bits), 1)
        zeros = None
        if "weight_zero_point" in raw and not self.scheme.symmetric:
            zeros = share.take_rows(unpack(raw["weight_zero_point"].T.to(device), bits).T)
        scales = share.take_rows(raw["weight_scale"]).to(device)
        return grouped(bits, codes, scales, zeros, groups_of(raw, share, self.scheme.group_size, scales.shape[1]))


class Int8Layout:
    """`weight` int8 [out, in] with `weight_scale` [out, groups]; no rounding of inputs."""

    def __init__(self, scheme: GroupedScheme) -> None:
        self.scheme = scheme

    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        groups = num_groups(num_in, self.scheme.group_size)
        return (
            TensorSpec("weight", (num_out, num_in)),
            TensorSpec("weight_scale", (num_out, groups)),
            TensorSpec("weight_zero_point", (num_out, groups), required=not self.scheme.symmetric),
            TensorSpec("weight_g_idx", (num_in,), required=self.scheme.act_order),
        )

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        codes = int8_codes(share.take_columns(share.take_rows(raw["weight"]), 1).to(share.device))
        zeros = None
        if "weight_zero_point" in raw and not self.scheme.symmetric:
            zeros = share.take_rows(raw["weight_zero_point"]).to(share.device).to(torch.int32) + 128
        scales = share.take_rows(raw["weight_scale"]).to(share.device)
        return grouped(8, codes, scales, zeros, groups_of(raw, share, self.scheme.group_size, scales.shape[1]))


class W8A8Layout:
    """`weight` int8 [out, in] and `weight_scale` [out, 1]; inputs are rounded to int8 as well."""

    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        return TensorSpec("weight", (num_out, num_in)), TensorSpec("weight_scale", (num_out, 1))

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        codes = int8_codes(share.take_columns(share.take_rows(raw["weight"]), 1).to(share.device))
        scales = share.take_rows(raw["weight_scale"]).to(share.device, torch.float32)
        groups = torch.zeros(codes.shape[1], dtype=torch.int64, device=share.device)
        return QuantizedWeight("int8", codes, scales, groups, inputs="int8")


def int8_codes(weight: Tensor) -> Tensor:
    """int8 → uint8, plus 128."""
    if weight.dtype != torch.int8:
        raise WeightError(f"int8 weights expected, found {weight.dtype}.")
    return weight.contiguous().view(torch.uint8) ^ 128


def groups_of(raw: Mapping[str, Tensor], share: Share, group_size: int | None, count: int) -> Tensor:
    """int64 [our inputs], from `weight_g_idx` if it says anything."""
    groups = raw.get("weight_g_idx")
    if groups is None or bool((groups < 0).any()):  # -1: not set
        groups = even_groups(share.num_in, group_size)
    elif int(groups.max()) >= count:
        raise WeightError(f"weight_g_idx names group {int(groups.max())}; there are {count}.")
    return share.take_columns(groups.to(torch.int64), 0).to(share.device)
