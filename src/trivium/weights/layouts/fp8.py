"""float8_e4m3fn with a scale for all, per output, or per block of outputs and inputs (DeepSeek-V3, https://arxiv.org/abs/2412.19437, 3.3)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trivium.arch.quantization import Fp8Scheme
from trivium.errors import WeightError
from trivium.weights.layouts.base import Share, TensorSpec
from trivium.weights.quantized import QuantizedWeight, even_groups


class Fp8Layout:
    """`weight` and its scales, which are multiplied whatever their name. Stored scales of inputs are not used: inputs have their own, row by row."""

    def __init__(self, scheme: Fp8Scheme) -> None:
        self.scheme = scheme

    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        block = self.scheme.block
        shape = (-(-num_out // block[0]), -(-num_in // block[1])) if self.scheme.scale == "block" else None
        optional = ("input_scale", "input_scale_ub", "activation_scale")
        return (
            TensorSpec("weight", (num_out, num_in)),
            TensorSpec(self.scheme.name, shape),
            *(TensorSpec(name, None, required=False) for name in optional),
        )

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        weight, scale = raw["weight"], raw[self.scheme.name].to(torch.float32)
        if weight.dtype != torch.float8_e4m3fn:
            raise WeightError(f"weights of type float8_e4m3fn expected, found {weight.dtype}.")
        codes = share.take_columns(share.take_rows(weight.view(torch.uint8)), 1).to(share.device)
        if self.scheme.scale == "block":
            outputs, inputs = self.scheme.block
            scales = share.take_rows(scale.repeat_interleave(outputs, dim=0)[: share.num_out])
            groups = share.take_columns(even_groups(share.num_in, inputs), 0)
        elif scale.numel() in (1, share.num_out):
            scales = share.take_rows(scale.reshape(-1, 1).expand(share.num_out, 1))
            groups = torch.zeros(codes.shape[1], dtype=torch.int64)
        else:
            raise WeightError(f"{self.scheme.name} has shape {list(scale.shape)}; one scale, or one for each of {share.num_out} outputs, is needed.")
        return QuantizedWeight("fp8", codes.contiguous(), scales.to(share.device).contiguous(), groups.to(share.device), inputs="fp8")
