"""Wire-neutral vocabulary of tensor requests: what the KServe frontends parse into and every tensor model answers with.

A tensor travels as the bytes of its wire form (little endian, row major, without padding; BYTES elements each behind a 32-bit length, as in
KServe v2's binary extension): a request is batched by joining bytes, and only the process that computes turns them into arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

Buffer = bytes | bytearray | memoryview
ParameterValue = bool | int | float | str
Parameters = Mapping[str, ParameterValue]
CorrelationId = int | str
"""0 and "" mean: no sequence."""


class DataType(StrEnum):
    """KServe v2's names. Triton's configuration says the same with `TYPE_` before it, and STRING for BYTES."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"
    BF16 = "BF16"


ITEM_SIZES: Final[Mapping[DataType, int]] = {
    DataType.BOOL: 1,
    DataType.UINT8: 1,
    DataType.UINT16: 2,
    DataType.UINT32: 4,
    DataType.UINT64: 8,
    DataType.INT8: 1,
    DataType.INT16: 2,
    DataType.INT32: 4,
    DataType.INT64: 8,
    DataType.FP16: 2,
    DataType.FP32: 4,
    DataType.FP64: 8,
    DataType.BF16: 2,
}
"""Bytes of one element; BYTES has no fixed size and is missing."""


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One input or output of a model as clients see it: `shape` has the batch dimension if the model batches, -1 where any size goes."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    is_optional: bool = False
    allows_ragged: bool = False
    is_shape_tensor: bool = False
    """Its values are a shape (TensorRT): it has no batch dimension, and a batch has one for all of its requests."""
    labels: tuple[str, ...] = ()
    """Class names of an output, for the classification extension."""


class Tensor(msgspec.Struct):
    """`data` holds exactly the elements that `shape` says, in wire form; who makes one from the wire has checked that."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    data: Buffer


class RequestedOutput(msgspec.Struct, kw_only=True):
    """An output by name; `class_count` > 0 asks for its largest values as "value:index[:label]" text."""

    name: str
    class_count: int = 0


class InferRequest(msgspec.Struct, kw_only=True):
    """One tensor request. `outputs` empty: all of them. `version` empty: the model's default (highest ready) version."""

    model: str
    version: str = ""
    id: str = ""
    inputs: list[Tensor]
    outputs: list[RequestedOutput] = msgspec.field(default_factory=list[RequestedOutput])
    parameters: dict[str, ParameterValue] = msgspec.field(default_factory=dict[str, ParameterValue])
    """Custom parameters; the reserved ones have fields of their own."""
    correlation_id: CorrelationId = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    """1 is the highest; 0: the model's default level."""
    timeout_us: int = 0
    """Longest wait in the queue in microseconds; 0: the model's default."""
    client: str = ""
    """Who asks, where language models share their queue fairly between clients."""


class InferResponse(msgspec.Struct, kw_only=True):
    """One answer. A decoupled model gives any number of them; its last may be empty and says only `is_final`."""

    model: str
    version: str
    id: str = ""
    outputs: list[Tensor]
    parameters: dict[str, ParameterValue] = msgspec.field(default_factory=dict[str, ParameterValue])
    is_final: bool = True
    is_null: bool = False
    """It carries nothing but `is_final`: the decoupled model had ended without another response."""
