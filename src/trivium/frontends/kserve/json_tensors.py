"""Tensors as JSON: numbers, booleans and strings to wire bytes and back.

Numbers that JSON has no word for (NaN, the infinities) are written as the strings "NaN", "Infinity" and "-Infinity", as in protobuf's JSON
mapping: what we send is always valid JSON, and numpy reads these strings as numbers. The same strings are read where a float is expected.
"""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, cast

import msgspec

from trivium.errors import InvalidRequest
from trivium.frontends.kserve.tensor_bytes import join_strings, split_strings
from trivium.infer import Buffer, DataType

MAX_DEPTH: Final = 64
_CODES: Final = {
    DataType.UINT8: "B",
    DataType.UINT16: "H",
    DataType.UINT32: "I",
    DataType.UINT64: "Q",
    DataType.INT8: "b",
    DataType.INT16: "h",
    DataType.INT32: "i",
    DataType.INT64: "q",
    DataType.FP32: "f",
    DataType.FP64: "d",
}
"""Type codes of `array`; the rest is converted by hand."""
_FLOATS: Final = frozenset({DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64})
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_KINDS: Final[dict[DataType, Any]] = {
    **{datatype: int for datatype in _CODES if datatype not in _FLOATS},
    **dict.fromkeys(_FLOATS, float),
    DataType.BOOL: bool,
    DataType.BYTES: str,
}
_LISTS: Final[dict[Any, Any]] = {int: list[int], float: list[float], bool: list[bool], str: list[str]}
_DECODERS: Final[dict[DataType, msgspec.json.Decoder[list[Any]]]] = {
    datatype: msgspec.json.Decoder(_LISTS[kind]) for datatype, kind in _KINDS.items()
}


# -- reading ----------------------------------------------------------------------------------------------------------------------


def read_values(raw: bytes | memoryview, datatype: DataType, name: str) -> list[Any]:
    """The elements of a `data` field, flat or nested, in order. Raises `InvalidRequest`."""
    try:
        return _DECODERS[datatype].decode(raw)
    except msgspec.ValidationError:
        return _read_loosely(raw, datatype, name)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(f"'data' of input '{name}' is not valid JSON or nested too deeply.") from None


def _read_loosely(raw: bytes | memoryview, datatype: DataType, name: str) -> list[Any]:
    try:
        return flatten(msgspec.json.decode(raw), datatype, name)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(f"'data' of input '{name}' is not valid JSON or nested too deeply.") from None


def flatten(value: Any, datatype: DataType, name: str) -> list[Any]:
    """The elements of a decoded array, flat or nested. Raises `InvalidRequest`."""
    if not isinstance(value, list):
        raise InvalidRequest(f"'data' of input '{name}' must be an array.")
    rows = cast("list[Any]", value)
    depth = 1
    while rows and isinstance(rows[0], list):
        depth += 1
        if depth > MAX_DEPTH or not all(isinstance(row, list) for row in rows):
            raise InvalidRequest(f"'data' of input '{name}' is nested unevenly or too deeply.")
        rows = list(chain.from_iterable(rows))
    kind = _KINDS[datatype]
    return [_element(element, kind, datatype, name) for element in rows]


def _element(value: Any, kind: type, datatype: DataType, name: str) -> Any:
    if type(value) is kind:
        return value
    if kind is float:
        if type(value) is int:
            return value
        if isinstance(value, str) and value in _SPECIAL:
            return _SPECIAL[value]
    raise InvalidRequest(f"'data' of input '{name}': {_describe(value)} can't be an element of {datatype}.")


def _describe(value: Any) -> str:
    return "an array" if isinstance(value, list) else "an object" if isinstance(value, dict) else json.dumps(value)[:40]


def pack(values: Sequence[Any], datatype: DataType, name: str) -> bytes:
    """Wire form of elements of the right kind. Raises `InvalidRequest` for numbers that don't fit."""
    code = _CODES.get(datatype)
    try:
        if code is not None:
            return array(code, values).tobytes()
        return _PACKERS[datatype](values)
    except (OverflowError, struct.error):
        raise InvalidRequest(f"'data' of input '{name}': a number doesn't fit into {datatype}.") from None
    except UnicodeEncodeError:
        raise InvalidRequest(f"'data' of input '{name}' has a lone surrogate.") from None


def _pack_bf16(values: Sequence[float]) -> bytes:
    """Round to nearest, ties to even."""
    words = array("I", array("f", values).tobytes())
    rounded = (word >> 16 | 0x40 if word & 0x7FFFFFFF > 0x7F800000 else (word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in words)
    return array("H", rounded).tobytes()


_PACKERS: Final[dict[DataType, Callable[[Sequence[Any]], bytes]]] = {
    DataType.BOOL: bytes,
    DataType.BYTES: lambda values: join_strings(value.encode() for value in values),
    DataType.FP16: lambda values: struct.pack(f"<{len(values)}e", *values),
    DataType.BF16: _pack_bf16,
}


# -- writing ----------------------------------------------------------------------------------------------------------------------


def unpack(data: Buffer, datatype: DataType, name: str) -> list[Any]:
    """The elements as JSON has them. Raises `InvalidRequest` for strings that aren't UTF-8: only binary data can carry them."""
    if datatype is DataType.BYTES:
        return _unpack_text(data, name)
    if datatype is DataType.BOOL:
        return [byte != 0 for byte in data]
    elements = unpack_numbers(data, datatype)
    if datatype in _FLOATS and not all(map(math.isfinite, elements)):
        return [element if math.isfinite(element) else _spell(element) for element in elements]
    return elements


def unpack_numbers(data: Buffer, datatype: DataType) -> list[Any]:
    """Elements of a numeric type, whatever JSON thinks of them."""
    code = _CODES.get(datatype)
    if code is not None:
        values: array[Any] = array(code)
        values.frombytes(data)
        return values.tolist()
    if datatype is DataType.FP16:
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    assert datatype is DataType.BF16
    return _unpack_bf16(data)


def _unpack_bf16(data: Buffer) -> list[float]:
    halves = array("H")
    halves.frombytes(data)
    values = array("f")
    values.frombytes(array("I", (half << 16 for half in halves)).tobytes())
    return values.tolist()


def _unpack_text(data: Buffer, name: str) -> list[str]:
    try:
        return [value.decode() for value in split_strings(data)]
    except UnicodeDecodeError:
        raise InvalidRequest(f"output '{name}' holds bytes that are not UTF-8; ask for it as binary data.") from None


def _spell(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
