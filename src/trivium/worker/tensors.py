"""Tensors between their wire form (little endian, row major; BYTES elements behind 32-bit lengths) and numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trivium.errors import InvalidRequest
from trivium.infer import Buffer, DataType

Array = npt.NDArray[Any]

NUMPY_TYPES: Final[Mapping[DataType, np.dtype[Any]]] = MappingProxyType(
    {
        DataType.BOOL: np.dtype(np.bool_),
        DataType.UINT8: np.dtype(np.uint8),
        DataType.UINT16: np.dtype(np.uint16),
        DataType.UINT32: np.dtype(np.uint32),
        DataType.UINT64: np.dtype(np.uint64),
        DataType.INT8: np.dtype(np.int8),
        DataType.INT16: np.dtype(np.int16),
        DataType.INT32: np.dtype(np.int32),
        DataType.INT64: np.dtype(np.int64),
        DataType.FP16: np.dtype(np.float16),
        DataType.FP32: np.dtype(np.float32),
        DataType.FP64: np.dtype(np.float64),
        DataType.BYTES: np.dtype(np.object_),
    }
)
"""BF16 is missing: numpy has no such type."""

_DATATYPES: Final = MappingProxyType({dtype: datatype for datatype, dtype in NUMPY_TYPES.items()})


def datatype_of(dtype: np.dtype[Any]) -> DataType:
    """Raises `InvalidRequest` for a type that no tensor has."""
    found = _DATATYPES.get(dtype)
    if found is None:
        if dtype.kind in "SU":
            return DataType.BYTES
        found = _DATATYPES.get(dtype.newbyteorder("="))
        if found is None:
            raise InvalidRequest(f"arrays of type {dtype} can't be tensors")
    return found


def to_array(datatype: DataType, shape: tuple[int, ...], data: Buffer) -> Array:
    """A view of `data`, but for BYTES, whose elements are made. Raises `InvalidRequest` for BF16 and where `data` isn't what `shape` says."""
    if datatype is DataType.BYTES:
        return split_bytes(data, shape)
    dtype = NUMPY_TYPES.get(datatype)
    if dtype is None:
        raise InvalidRequest("BF16 tensors can't be numpy arrays; use to_dlpack()")
    try:
        return np.frombuffer(data, dtype).reshape(shape)
    except ValueError:
        raise InvalidRequest(f"{memoryview(data).nbytes} bytes don't make a {datatype} tensor of shape {list(shape)}") from None


def split_bytes(data: Buffer, shape: tuple[int, ...]) -> Array:
    """The elements of a BYTES tensor as an array of `bytes` objects. Raises `InvalidRequest` if they are not exactly as many as `shape` says."""
    view = memoryview(data)
    elements: list[bytes] = []
    position, end = 0, len(view)
    while position + 4 <= end:
        start = position + 4
        position = start + int.from_bytes(view[position:start], "little")
        if position > end:
            break
        elements.append(bytes(view[start:position]))
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    if position != end or array.size != np.prod(shape, dtype=np.int64):
        raise InvalidRequest(f"{len(view)} bytes don't make a BYTES tensor of shape {list(shape)}")
    return array.reshape(shape)


_COPY_BELOW: Final = 4096
"""Bytes under which a copy costs less than a view."""


def to_data(array: Array) -> Buffer:
    """The wire form; a view of `array` where it is large and laid out in that way."""
    dtype = array.dtype
    if dtype.kind in "OSU":
        return join_bytes(array)
    if dtype.byteorder == ">":
        array = array.astype(dtype.newbyteorder("<"))
    if array.nbytes < _COPY_BELOW:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def join_bytes(array: Array) -> bytes:
    """Strings are UTF-8, what is neither string nor bytes is its `str`, as in Triton."""
    parts: list[bytes] = []
    for element in array.reshape(-1).tolist():
        data = element if isinstance(element, bytes) else str(element).encode()
        parts.append(len(data).to_bytes(4, "little"))
        parts.append(data)
    return b"".join(parts)
