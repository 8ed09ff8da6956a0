"""What quantized matrices look like in a checkpoint that transformers and vLLM read, and what its config.json says about them."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from trivium.quantization.rounding import Rounded
from trivium.weights.layouts.awq import pack_awq
from trivium.weights.layouts.gptq import pack_gptq
from trivium.weights.quantize import BLOCK, FP8_MAX, nearest
from trivium.weights.tables import code_table

IGNORED = ["lm_head"]


def awq_tensors(rounded: Rounded) -> dict[str, Tensor]:
    return pack_awq(rounded.codes, rounded.scales, rounded.zeros)


def awq_section(group_size: int) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm", "modules_to_not_convert": None}


def gptq_tensors(rounded: Rounded) -> dict[str, Tensor]:
    return pack_gptq(rounded.codes, rounded.scales, rounded.zeros, rounded.groups, 4)


def gptq_section(group_size: int, *, act_order: bool) -> dict[str, Any]:
    section = {"quant_method": "gptq", "bits": 4, "group_size": group_size, "desc_act": act_order, "sym": True}
    return {**section, "checkpoint_format": "gptq", "lm_head": False}


def nf4_tensors(weight: Tensor) -> dict[str, Tensor]:
    """Blocks of the flattened matrix, as bitsandbytes cuts them; scales not nested."""
    flat = weight.flatten().float()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    largest = blocks.abs().amax(dim=1)
    codes = nearest(blocks / largest.clamp(min=1e-30).unsqueeze(1), code_table("nf4").to(weight.device)).flatten()[: len(flat)]
    codes = torch.nn.functional.pad(codes, (0, len(codes) % 2))
    state = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": str(weight.dtype).removeprefix("torch."), "shape": list(weight.shape)}
    return {
        "weight": ((codes[0::2] << 4) | codes[1::2]).unsqueeze(1),
        "weight.absmax": largest,
        "weight.quant_map": code_table("nf4"),
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }


def nf4_section(dtype: str) -> dict[str, Any]:
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": False,
        "bnb_4bit_compute_dtype": dtype,
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_skip_modules": IGNORED,
    }


def fp8_tensors(weight: Tensor) -> dict[str, Tensor]:
    wide = weight.float()
    scales = wide.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / FP8_MAX
    return {"weight": (wide / scales).to(torch.float8_e4m3fn), "weight_scale": scales}


def fp8_section() -> dict[str, Any]:
    """compressed-tensors: a scale per output, inputs rounded token by token."""
    eight = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**eight, "strategy": "channel", "dynamic": False},
        "input_activations": {**eight, "strategy": "token", "dynamic": True},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": IGNORED,
        "kv_cache_scheme": None,
    }
