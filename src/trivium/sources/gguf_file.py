"""Reader of the GGUF container (version 2 and 3, little-endian): metadata and where each tensor lies. No tensor data is read here.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every count is checked against the bytes that are left
before anything is allocated for it.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np

from trivium.errors import ModelLoadError, WeightError

T = TypeVar("T")

MAGIC: Final = b"GGUF"
MAX_DIMS: Final = 4
MAX_NAME_BYTES: Final = 1024
_MIN_KV_BYTES: Final = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES: Final = 8 + 1 + 4 + 8 + 4 + 8

_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final[dict[int, struct.Struct]] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}

BLOCK_LAYOUT: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
"""ggml type number: name, weights per block, bytes per block."""


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor. `shape` is in torch's order (rows first); `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    num_bytes: int

    @property
    def type_name(self) -> str:
        return BLOCK_LAYOUT[self.type_id][0]


@dataclass(frozen=True)
class GGUFFile:
    path: Path
    metadata: dict[str, Any] = field(repr=False)
    tensors: dict[str, GGUFTensor] = field(repr=False)

    def text(self, key: str, default: str | None = None) -> str | None:
        return self._value(key, (str,), default)

    def integer(self, key: str, default: int | None = None) -> int | None:
        value = self._value(key, (int,), default)
        return int(value) if isinstance(value, bool) else value

    def number(self, key: str, default: float | None = None) -> float | None:
        value = self._value(key, (int, float), default)
        return None if value is None else float(value)

    def flag(self, key: str, default: bool | None = None) -> bool | None:
        return self._value(key, (bool,), default)

    def array(self, key: str) -> list[Any] | None:
        return self._value(key, (list,), None)

    def require_integer(self, key: str) -> int:
        return self._required(key, self.integer(key))

    def require_array(self, key: str) -> list[Any]:
        return self._required(key, self.array(key))

    def require_text(self, key: str) -> str:
        return self._required(key, self.text(key))

    def _required(self, key: str, value: T | None) -> T:
        if value is None:
            raise ModelLoadError(f"{self.path} has no metadata {key!r}.")
        return value

    def _value(self, key: str, types: tuple[type, ...], default: Any) -> Any:
        value = self.metadata.get(key)
        if value is None:
            return default
        if not isinstance(value, types):
            raise ModelLoadError(f"{self.path}: metadata {key!r} is a {type(value).__name__}, expected {types[0].__name__}.")
        return value


def read_gguf(path: Path) -> GGUFFile:
    """Parses the header. Raises `ModelLoadError` for what is no GGUF, `WeightError` for a truncated or contradictory one."""
    with path.open("rb") as file:
        if path.stat().st_size < len(MAGIC) + 20:
            raise ModelLoadError(f"{path} is too short to be a GGUF file.")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Parser(path, data).parse()


class _Parser:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.pos = 0

    def parse(self) -> GGUFFile:
        num_tensors, num_values = self._preamble()
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._name()
            if key in metadata:
                raise ModelLoadError(f"{self.path}: metadata {key!r} appears twice.")
            metadata[key] = self._typed_value(self._number(_SCALARS[4]))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise ModelLoadError(f"{self.path}: general.alignment is {alignment!r}.")
        found = [self._tensor_info() for _ in range(num_tensors)]
        start = -(-self.pos // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, type_id, offset in found:
            if name in tensors:
                raise WeightError(f"{self.path}: tensor {name!r} appears twice.")
            tensors[name] = self._placed(name, shape, type_id, start + offset)
        return GGUFFile(self.path, metadata, tensors)

    def _preamble(self) -> tuple[int, int]:
        if self._bytes(4) != MAGIC:
            raise ModelLoadError(f"{self.path} is not a GGUF file.")
        version = self._number(_SCALARS[4])
        if version not in (2, 3):
            raise ModelLoadError(f"{self.path}: GGUF version {version} is not supported, only little-endian 2 and 3.")
        num_tensors = self._number(_SCALARS[10])
        num_values = self._number(_SCALARS[10])
        self._check_count("tensors", num_tensors, _MIN_TENSOR_BYTES)
        self._check_count("metadata values", num_values, _MIN_KV_BYTES)
        return num_tensors, num_values

    def _check_count(self, what: str, count: int, min_bytes: int) -> None:
        if count * min_bytes > self.size - self.pos:
            raise WeightError(f"{self.path} claims {count} {what}, more than its {self.size} bytes can hold.")

    def _bytes(self, length: int) -> bytes:
        end = self.pos + length
        if end > self.size:
            raise WeightError(f"{self.path} is truncated: its header goes on beyond its {self.size} bytes.")
        chunk = self.data[self.pos : end]
        self.pos = end
        return chunk

    def _number(self, layout: struct.Struct) -> Any:
        return layout.unpack(self._bytes(layout.size))[0]

    def _name(self) -> str:
        length = self._number(_SCALARS[10])
        if length > MAX_NAME_BYTES:
            raise ModelLoadError(f"{self.path}: a name of {length} bytes at byte {self.pos}; at most {MAX_NAME_BYTES} are allowed.")
        return self._decode(self._bytes(length))

    def _decode(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise ModelLoadError(f"{self.path}: text before byte {self.pos} is not valid UTF-8.") from None

    def _typed_value(self, type_id: int) -> Any:
        if type_id == _STRING:
            return self._decode(self._bytes(self._number(_SCALARS[10])))
        if type_id == _ARRAY:
            return self._array()
        return self._number(self._scalar(type_id))

    def _scalar(self, type_id: int) -> struct.Struct:
        layout = _SCALARS.get(type_id)
        if layout is None:
            raise ModelLoadError(f"{self.path}: unknown metadata type {type_id} before byte {self.pos}.")
        return layout

    def _array(self) -> list[Any]:
        item_type = self._number(_SCALARS[4])
        count = self._number(_SCALARS[10])
        if item_type == _STRING:
            self._check_count("strings", count, 8)
            return self._string_array(count)
        if item_type == _ARRAY:
            raise ModelLoadError(f"{self.path}: nested metadata arrays are not supported.")
        layout = self._scalar(item_type)
        self._check_count("array items", count, layout.size)
        raw = self._bytes(count * layout.size)
        return cast(list[Any], np.frombuffer(raw, dtype=np.dtype(layout.format)).tolist())

    def _string_array(self, count: int) -> list[str]:
        """A vocabulary has hundreds of thousands of strings: this loop is what opening a file costs."""
        data, pos, size = self.data, self.pos, self.size
        unpack = _SCALARS[10].unpack_from
        chunks: list[bytes] = []
        for _ in range(count):
            start = pos + 8
            if start > size or (pos := start + unpack(data, start - 8)[0]) > size:
                raise WeightError(f"{self.path} is truncated: its header goes on beyond its {size} bytes.")
            chunks.append(data[start:pos])
        self.pos = pos
        return [self._decode(chunk) for chunk in chunks]

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._name()
        num_dims = self._number(_SCALARS[4])
        if num_dims > MAX_DIMS:
            raise WeightError(f"{self.path}: tensor {name!r} has {num_dims} dimensions; at most {MAX_DIMS} are allowed.")
        dims = tuple(self._number(_SCALARS[10]) for _ in range(num_dims))
        return name, dims[::-1], self._number(_SCALARS[4]), self._number(_SCALARS[10])

    def _placed(self, name: str, shape: tuple[int, ...], type_id: int, offset: int) -> GGUFTensor:
        if type_id not in BLOCK_LAYOUT:
            raise WeightError(f"{self.path}: tensor {name!r} has the unknown type number {type_id}.")
        type_name, block, block_bytes = BLOCK_LAYOUT[type_id]
        count = 1
        for dim in shape:
            count *= dim
        if (shape[-1] if shape else 1) % block:
            raise WeightError(f"{self.path}: rows of tensor {name!r} {list(shape)} are no whole blocks of {block} ({type_name}).")
        num_bytes = count // block * block_bytes
        if offset + num_bytes > self.size:
            raise WeightError(f"{self.path} is truncated: tensor {name!r} {list(shape)} ends at byte {offset + num_bytes}, the file has {self.size}.")
        return GGUFTensor(name, shape, type_id, offset, num_bytes)
