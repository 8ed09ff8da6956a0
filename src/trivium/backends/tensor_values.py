"""Tensors made by the server itself: controls of sequences, initial states, warmup inputs."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from pathlib import Path

from trivium.errors import ModelLoadError
from trivium.infer import ITEM_SIZES, Buffer, DataType, Tensor

_FORMATS = {
    DataType.BOOL: "?",
    DataType.UINT8: "B",
    DataType.UINT16: "H",
    DataType.UINT32: "I",
    DataType.UINT64: "Q",
    DataType.INT8: "b",
    DataType.INT16: "h",
    DataType.INT32: "i",
    DataType.INT64: "q",
    DataType.FP16: "e",
    DataType.FP32: "f",
    DataType.FP64: "d",
}


def scalar_data(datatype: DataType, value: int | float | str | bool) -> bytes:
    """The wire form of one element. Raises `OverflowError` or `struct.error` for a number that its type can't hold."""
    if datatype is DataType.BYTES:
        text = str(value).encode()
        return struct.pack("<I", len(text)) + text
    if datatype is DataType.BF16:
        return struct.pack("<f", value)[2:]
    return struct.pack("<" + _FORMATS[datatype], value)


def zero_data(datatype: DataType, shape: Sequence[int]) -> bytes:
    """Zeros; empty strings for BYTES."""
    return bytes(math.prod(shape) * ITEM_SIZES.get(datatype, 4))


def random_data(datatype: DataType, shape: Sequence[int]) -> bytes:
    """The same each time: small numbers, so that what computes with them neither overflows nor looks up what isn't there."""
    generator = random.Random(0)
    num = math.prod(shape)
    if datatype in (DataType.FP16, DataType.FP32, DataType.FP64, DataType.BF16):
        return b"".join(scalar_data(datatype, generator.random()) for _ in range(num))
    if datatype is DataType.BYTES:
        return b"".join(scalar_data(datatype, str(generator.randrange(10))) for _ in range(num))
    return b"".join(scalar_data(datatype, generator.randrange(2)) for _ in range(num))


def zeros_like(tensor: Tensor) -> Tensor:
    return Tensor(tensor.name, tensor.datatype, tensor.shape, zero_data(tensor.datatype, tensor.shape))


def file_data(path: Path, datatype: DataType, shape: Sequence[int]) -> bytes:
    """Elements in wire form from a file, as Triton's `data_file` and `input_data_file` have them. Raises `ModelLoadError`."""
    expected = math.prod(shape) * ITEM_SIZES.get(datatype, 4)
    try:
        num_bytes = path.stat().st_size
        if (num_bytes < expected) if datatype is DataType.BYTES else (num_bytes != expected):
            raise ModelLoadError(f"{path.name} has {num_bytes} bytes; {list(shape)} elements of {datatype} need {expected}")
        data = path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"{path.name} can't be read: {error}") from error
    if datatype is DataType.BYTES and count_strings(data) != math.prod(shape):
        raise ModelLoadError(f"{path.name} does not hold {math.prod(shape)} strings, each behind its length in 4 bytes")
    return data


def count_strings(data: Buffer) -> int:
    """How many BYTES elements `data` holds; -1 if it isn't their wire form."""
    position = num = 0
    end = len(data)
    while position < end:
        if end - position < 4:
            return -1
        position += 4 + int.from_bytes(data[position : position + 4], "little")
        num += 1
    return num if position == end else -1
