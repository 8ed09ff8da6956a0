"""bitsandbytes: int8 rows (LLM.int8(), https://arxiv.org/abs/2208.07339) and 4-bit blocks of a table (QLoRA, https://arxiv.org/abs/2305.14314)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trivium.arch.quantization import BitsAndBytesScheme
from trivium.arch.reader import ConfigReader
from trivium.errors import WeightError
from trivium.weights.layouts.base import Share, TensorSpec
from trivium.weights.layouts.compressed import int8_codes
from trivium.weights.quantized import QuantizedWeight


class BnbInt8Layout:
    """`weight` int8 [out, in] and `SCB` [out], the largest magnitude of each row."""

    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        return TensorSpec("weight", (num_out, num_in)), TensorSpec("SCB", (num_out,)), TensorSpec("weight_format", None, required=False)

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        if "weight_format" in raw and int(raw["weight_format"].flatten()[0]) != 0:
            raise WeightError("weight_format: only rows in order (0) are supported.")
        codes = int8_codes(share.take_columns(share.take_rows(raw["weight"]), 1).to(share.device))
        scales = share.take_rows(raw["SCB"]).to(share.device, torch.float32).div(127).unsqueeze(1)
        return QuantizedWeight("int8", codes, scales, torch.zeros(codes.shape[1], dtype=torch.int64, device=share.device))


@dataclass(frozen=True)
class _State:
    """What `weight.quant_state.bitsandbytes__*` says."""

    blocksize: int
    shape: tuple[int, ...]
    nested_blocksize: int
    nested_offset: float


class Bnb4Layout:
    """`weight` uint8 [out * in / 2, 1], the first of two codes in the high half; scales by block of the flattened matrix, maybe nested."""

    def __init__(self, scheme: BitsAndBytesScheme) -> None:
        self.state_name = f"weight.quant_state.bitsandbytes__{scheme.table}"

    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec("weight", (-(-num_out * num_in // 2), 1)),
            TensorSpec(self.state_name, None),
            TensorSpec("weight.absmax", None),
            TensorSpec("weight.quant_map", (16,)),
            TensorSpec("weight.nested_absmax", None, required=False),
            TensorSpec("weight.nested_quant_map", (256,), required=False),
        )

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        state = _parse_state(raw[self.state_name])
        if state.shape != (share.num_out, share.num_in):
            raise WeightError(f"quant_state: shape {list(state.shape)}, where the config calls for {[share.num_out, share.num_in]}.")
        count = share.num_out * share.num_in
        absmax = _absmax(raw, state)
        if absmax.numel() != -(-count // state.blocksize):
            raise WeightError(
                f"weight.absmax holds {absmax.numel()} scales; {-(-count // state.blocksize)} blocks of {state.blocksize} need one each."
            )
        packed = raw["weight"].flatten()
        codes = torch.stack((packed >> 4, packed & 15), dim=-1).flatten()[:count].view(share.num_out, share.num_in)
        # A block may reach from one row into the next: parts of this length lie in one block each.
        part = math.gcd(share.num_in, state.blocksize)
        flat = torch.arange(share.num_out * (share.num_in // part)) * part // state.blocksize
        groups = torch.arange(share.num_in) // part
        return QuantizedWeight(
            "table4",
            share.take_columns(share.take_rows(codes), 1).to(share.device).contiguous(),
            share.take_rows(absmax[flat].view(share.num_out, -1)).to(share.device).contiguous(),
            share.take_columns(groups, 0).to(share.device),
            table=raw["weight.quant_map"].to(share.device, torch.float32),
        )


def _absmax(raw: Mapping[str, Tensor], state: _State) -> Tensor:
    absmax = raw["weight.absmax"].flatten()
    if "weight.nested_absmax" not in raw:
        return absmax.to(torch.float32)
    if "weight.nested_quant_map" not in raw or absmax.dtype != torch.uint8:
        raise WeightError("nested scales need weight.nested_quant_map, and weight.absmax of type uint8.")
    outer = raw["weight.nested_absmax"].to(torch.float32).repeat_interleave(state.nested_blocksize)
    if outer.numel() < absmax.numel():
        raise WeightError(f"weight.nested_absmax holds too few scales for {absmax.numel()} blocks.")
    return raw["weight.nested_quant_map"].to(torch.float32)[absmax.to(torch.int64)] * outer[: absmax.numel()] + state.nested_offset


def _parse_state(raw: Tensor) -> _State:
    try:
        value: Any = json.loads(bytes(raw.flatten().tolist()))
    except (ValueError, RecursionError) as error:
        raise WeightError(f"quant_state is no valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise WeightError("quant_state must be a JSON object.")
    reader = ConfigReader(value, where="quant_state")
    return _State(
        blocksize=reader.integer("blocksize"),
        shape=reader.integers("shape"),
        nested_blocksize=reader.integer("nested_blocksize", default=256),
        nested_offset=reader.number("nested_offset", default=0.0),
    )
