"""Sizes of tensors in wire form, checked against the bytes that arrived before anybody computes with a shape."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from trivium.errors import InvalidRequest
from trivium.infer import ITEM_SIZES, Buffer, DataType

MAX_RANK: Final = 64
MAX_ELEMENTS: Final = 2**48
"""Far above what fits into any request; products of dimensions stop growing here."""
_LENGTH: Final = struct.Struct("<I")


def num_elements(shape: Sequence[int], name: str) -> int:
    """Raises `InvalidRequest` for negative dimensions and for shapes no request can fill."""
    if len(shape) > MAX_RANK:
        raise InvalidRequest(f"input '{name}' has {len(shape)} dimensions; at most {MAX_RANK} are accepted")
    count = 1
    is_empty = False
    for size in shape:
        if size < 0:
            raise InvalidRequest(f"input '{name}' has a negative dimension: {list(shape)}")
        if size == 0:
            is_empty = True
        elif count * size > MAX_ELEMENTS:
            raise InvalidRequest(f"the shape {list(shape)} of input '{name}' has too many elements")
        else:
            count *= size
    return 0 if is_empty else count


def has_size(datatype: DataType, count: int, data: Buffer) -> bool:
    """Whether `data` holds exactly `count` elements."""
    size = ITEM_SIZES.get(datatype)
    if size is not None:
        return len(data) == size * count
    return count_strings(data, at_most=count) == count


def count_strings(data: Buffer, *, at_most: int) -> int:
    """Elements of a BYTES tensor; -1 if their lengths don't add up to the data, or there are more than `at_most`."""
    size = len(data)
    position = count = 0
    unpack = _LENGTH.unpack_from
    while position < size:
        if position + 4 > size or count == at_most:
            return -1
        position += 4 + unpack(data, position)[0]
        count += 1
    return count if position == size else -1


def split_strings(data: Buffer) -> list[bytes]:
    """The elements of a BYTES tensor that was checked."""
    view = memoryview(data)
    found: list[bytes] = []
    position, size = 0, len(view)
    while position < size:
        start = position + 4
        position = start + _LENGTH.unpack_from(view, position)[0]
        found.append(bytes(view[start:position]))
    return found


def join_strings(values: Iterable[bytes]) -> bytes:
    """Wire form of a BYTES tensor."""
    return b"".join([part for value in values for part in (_LENGTH.pack(len(value)), value)])
