"""JSON of an inference request. Fields we don't know are passed over, as Triton and the protocol have it; parameters go to the model."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType


class InputParameters(msgspec.Struct):
    binary_data_size: int | UnsetType = UNSET
    shared_memory_region: str | UnsetType = UNSET
    shared_memory_offset: int = 0
    shared_memory_byte_size: int | UnsetType = UNSET


class InputBody(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: InputParameters | None = None
    data: Raw | UnsetType = UNSET


class OutputParameters(msgspec.Struct):
    binary_data: bool | UnsetType = UNSET
    classification: int = 0
    shared_memory_region: str | UnsetType = UNSET
    shared_memory_offset: int = 0
    shared_memory_byte_size: int | UnsetType = UNSET


class OutputBody(msgspec.Struct):
    name: str
    parameters: OutputParameters | None = None


class InferBody(msgspec.Struct):
    inputs: list[InputBody]
    outputs: list[OutputBody] | None = None
    id: str = ""
    parameters: dict[str, Any] | None = None


INFER_DECODER: Final = msgspec.json.Decoder(InferBody)
