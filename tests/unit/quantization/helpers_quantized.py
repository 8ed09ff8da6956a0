"""Tiny checkpoints in every quantized layout, each with the plain tensors it stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from helpers_checkpoints import checkpoint
from torch import Tensor

from trivium.arch import ModelSpec
from trivium.weights.bits import pack
from trivium.weights.layouts.awq import pack_awq
from trivium.weights.layouts.gptq import pack_gptq
from trivium.weights.quantize import nearest
from trivium.weights.quantized import even_groups
from trivium.weights.tables import code_table

Made = tuple[dict[str, Tensor], Tensor]
"""The tensors of a matrix by suffix, and the float64 matrix they stand for."""


@dataclass(frozen=True)
class Format:
    section: dict[str, Any]
    make: Callable[[Tensor], Made]


def affine(weight: Tensor, bits: int, groups: Tensor, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """codes and zeros uint8, scales float16 as they are stored, and what they stand for."""
    count, top = int(groups.max()) + 1, (1 << bits) - 1
    low = torch.stack([weight[:, groups == group].amin(dim=1) for group in range(count)], dim=1).clamp(max=-0.01)
    high = torch.stack([weight[:, groups == group].amax(dim=1) for group in range(count)], dim=1).clamp(min=0.01)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    scales = ((high - low) / top).half()
    zeros = torch.full_like(low, 1 << (bits - 1)) if symmetric else (-low / scales.float()).round().clamp(1, top)
    codes = ((weight / scales.float()[:, groups]).round() + zeros[:, groups]).clamp(0, top)
    dense = (codes.double() - zeros.double()[:, groups]) * scales.double()[:, groups]
    return codes.to(torch.uint8), scales, zeros.to(torch.uint8), dense


def shuffled(groups: Tensor) -> Tensor:
    """The same order for every matrix of a width, as matrices of the same inputs have in practice."""
    return groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(len(groups)))]


def gptq(bits: int, group_size: int, *, act_order: bool = False, symmetric: bool = True, version: int = 1) -> Format:
    def make(weight: Tensor) -> Made:
        groups = even_groups(weight.shape[1], None if group_size == -1 else group_size)
        groups = shuffled(groups) if act_order else groups
        codes, scales, zeros, dense = affine(weight, bits, groups, symmetric=symmetric)
        return pack_gptq(codes, scales, zeros, groups, bits, version=version), dense

    section = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "desc_act": act_order, "sym": symmetric}
    return Format(section | ({"checkpoint_format": "gptq_v2"} if version == 2 else {}), make)


def awq(group_size: int) -> Format:
    def make(weight: Tensor) -> Made:
        codes, scales, zeros, dense = affine(weight, 4, even_groups(weight.shape[1], group_size), symmetric=False)
        return pack_awq(codes, scales, zeros), dense

    return Format({"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}, make)


def bitsandbytes(table_name: str) -> Format:
    """Blocks of 64 of the flattened matrix, not nested."""
    table = code_table(table_name)

    def make(weight: Tensor) -> Made:
        blocks = weight.reshape(-1, 64)
        absmax = blocks.abs().amax(dim=1)
        codes = nearest(blocks / absmax[:, None], table).flatten()
        dense = (table.double()[codes.long()].view_as(blocks) * absmax.double()[:, None]).view_as(weight)
        state = {"quant_type": table_name, "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
        raw = {"weight": ((codes[0::2] << 4) | codes[1::2]).unsqueeze(1), "weight.absmax": absmax, "weight.quant_map": table.clone()}
        return raw | {f"weight.quant_state.bitsandbytes__{table_name}": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)}, dense

    return Format({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": table_name}, make)


def _bnb_int8(weight: Tensor) -> Made:
    largest = weight.abs().amax(dim=1)
    codes = (weight * 127 / largest[:, None]).round().to(torch.int8)
    return {"weight": codes, "SCB": largest}, codes.double() * largest.double()[:, None] / 127


def _fp8_block(weight: Tensor) -> Made:
    n, k = weight.shape
    rows, columns = torch.arange(n) // 32, torch.arange(k) // 32
    blocks = [[weight[rows == r][:, columns == c].abs().amax() for c in range(-(-k // 32))] for r in range(-(-n // 32))]
    scales = torch.tensor(blocks) / 448
    codes = (weight / scales[rows][:, columns]).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scales}, codes.double() * scales.double()[rows][:, columns]


def _fp8_channel(weight: Tensor) -> Made:
    scales = weight.abs().amax(dim=1, keepdim=True) / 448
    codes = (weight / scales).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scales}, codes.double() * scales.double()


def _compressed(scheme: dict[str, Any], form: str) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": scheme}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": groups,
    }


def packed(bits: int, *, symmetric: bool) -> Format:
    def make(weight: Tensor) -> Made:
        codes, scales, zeros, _ = affine(weight, bits, even_groups(weight.shape[1], 32), symmetric=symmetric)
        scales = scales.float()
        dense = (codes.double() - zeros.double().repeat_interleave(32, 1)) * scales.double().repeat_interleave(32, 1)
        raw = {"weight_packed": pack(codes, bits), "weight_scale": scales, "weight_shape": torch.tensor(weight.shape)}
        if not symmetric:
            raw["weight_zero_point"] = pack(zeros.T.contiguous(), bits).T.contiguous()
        return raw, dense

    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 32, "dynamic": False}
    return Format(_compressed(weights, "pack-quantized"), make)


FORMATS: dict[str, Format] = {
    "awq": awq(32),
    "gptq": gptq(4, 32),
    "gptq2": gptq(2, 32),
    "gptq3-v2-asymmetric": gptq(3, 32, symmetric=False, version=2),
    "gptq8": gptq(8, -1),
    "gptq-act-order": gptq(4, 32, act_order=True, symmetric=False),
    "nf4": bitsandbytes("nf4"),
    "fp4": bitsandbytes("fp4"),
    "bnb-int8": Format({"quant_method": "bitsandbytes", "load_in_8bit": True}, _bnb_int8),
    "fp8-block": Format({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]}, _fp8_block),
    "fp8-channel": Format({"quant_method": "fbgemm_fp8"}, _fp8_channel),
    "packed": packed(4, symmetric=True),
    "packed8-asymmetric": packed(8, symmetric=False),
}


@dataclass
class QuantizedCheckpoint:
    config: dict[str, Any]
    plain_config: dict[str, Any]
    tensors: dict[str, Tensor]
    plain: dict[str, Tensor]

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec.from_config(self.config)

    @property
    def plain_spec(self) -> ModelSpec:
        return ModelSpec.from_config(self.plain_config)


def quantized_checkpoint(name: str, form: Format) -> QuantizedCheckpoint:
    """A case of `helpers_checkpoints` with every projection quantized, and the same with what those stand for."""
    found = checkpoint(name)
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for key, tensor in found.tensors.items():
        if "_proj" not in key or not key.endswith(".weight") or tensor.dim() != 2:
            tensors[key] = plain[key] = tensor
            continue
        module = key.removesuffix(".weight")
        raw, dense = form.make(tensor)
        tensors |= {f"{module}.{suffix}": value for suffix, value in raw.items()}
        plain[key] = dense.float()
    return QuantizedCheckpoint({**found.config, "quantization_config": form.section}, found.config, tensors, plain)
