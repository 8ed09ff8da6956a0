"""Reader of safetensors files, single or sharded by an index. Format: https://github.com/huggingface/safetensors#format.

It is stricter than the library: a header with duplicate keys is refused. Tensors are views of the mapped file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor

from trivium.errors import UnsupportedWeightFormat, WeightError
from trivium.sources.paths import read_json_child
from trivium.sources.wanted import INDEX_FILE, weight_map
from trivium.weights.mapped_file import MappedFile
from trivium.weights.names import known_tensor

MAX_HEADER_BYTES: Final = 100_000_000
DTYPES: Final[dict[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class _Entry:
    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    """From the start of the file."""
    num_bytes: int


class SafetensorsSource:
    """`WeightSource` over one or several safetensors files whose tensor names are disjoint."""

    def __init__(self, paths: Sequence[Path], *, index: dict[str, str] | None = None) -> None:
        """`index` (tensor → file name) decides which tensors there are and in which file each one must be."""
        self._files: dict[Path, MappedFile] = {}
        self._entries: dict[str, _Entry] = {}
        for path in paths:
            header = _read_header(path)
            self._files[path] = MappedFile(path)
            for name, entry in header.items():
                if index is not None and index.get(name) != path.name:
                    continue
                if name in self._entries:
                    raise WeightError(f"Tensor {name!r} is in {self._entries[name].path} and again in {path}.")
                self._entries[name] = entry
        self._where = ", ".join(str(path) for path in paths)
        for name, file_name in (index or {}).items():
            if name not in self._entries:
                raise WeightError(f"Tensor {name!r} is missing in {file_name}, where {INDEX_FILE} says it is.")

    @classmethod
    def from_folder(cls, folder: Path, paths: Sequence[Path]) -> SafetensorsSource:
        index = read_json_child(folder, INDEX_FILE)
        return cls(paths, index=None if index is None else weight_map(folder / INDEX_FILE, index))

    @property
    def total_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self._entries.values())

    def names(self) -> list[str]:
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def file_of(self, name: str) -> str:
        return str(self._entry(name).path)

    def load(self, name: str) -> Tensor:
        entry = self._entry(name)
        return self._files[entry.path].tensor(entry.offset, entry.num_bytes).view(entry.dtype).reshape(entry.shape)

    def _entry(self, name: str) -> _Entry:
        known_tensor(self._entries, name, self._where)
        return self._entries[name]


def _read_header(path: Path) -> dict[str, _Entry]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise WeightError(f"{path} is truncated: its header has {length} bytes, the file {size}.")
        if length > MAX_HEADER_BYTES:
            raise WeightError(f"{path}: a header of {length} bytes; at most {MAX_HEADER_BYTES} are allowed.")
        raw = file.read(length)
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise WeightError(f"{path} has no valid safetensors header: {error}") from None
    if not isinstance(header, dict):
        raise WeightError(f"{path} has no valid safetensors header: it is no JSON object.")
    fields = {name: value for name, value in cast("dict[str, Any]", header).items() if name != "__metadata__"}
    entries = {name: _entry(path, name, value, 8 + length) for name, value in fields.items()}
    _check_layout(path, entries, 8 + length, size)
    return dict(sorted(entries.items(), key=lambda item: item[1].offset))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} appears twice")
    return result


def _is_sizes(value: Any, count: int | None) -> bool:
    return isinstance(value, list) and (count is None or len(value) == count) and all(type(item) is int and item >= 0 for item in value)


def _entry(path: Path, name: str, value: Any, data_start: int) -> _Entry:
    if not isinstance(value, dict) or not _is_sizes(value.get("shape"), None) or not _is_sizes(value.get("data_offsets"), 2):
        raise WeightError(f"{path}: tensor {name!r} has no valid shape and data_offsets in the header.")
    dtype = DTYPES.get(str(value.get("dtype")))
    if dtype is None:
        raise UnsupportedWeightFormat(f"{path}: tensor {name!r} is of type {value.get('dtype')}. Supported: {', '.join(DTYPES)}.")
    shape = tuple(cast("list[int]", value["shape"]))
    begin, end = cast("list[int]", value["data_offsets"])
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise WeightError(f"{path}: tensor {name!r} {list(shape)} of type {value['dtype']} can't take {end - begin} bytes.")
    return _Entry(path, dtype, shape, data_start + begin, end - begin)


def _check_layout(path: Path, entries: dict[str, _Entry], data_start: int, size: int) -> None:
    """Tensors must fill the rest of the file, with neither gap nor overlap."""
    position = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        end = entry.offset + entry.num_bytes
        if end > size:
            raise WeightError(f"{path} is truncated: tensor {name!r} {list(entry.shape)} ends at byte {end}, the file has {size}.")
        if entry.offset != position:
            raise WeightError(f"{path}: tensor {name!r} starts at byte {entry.offset}, expected {position}.")
        position = end
    if position != size:
        raise WeightError(f"{path} has {size - position} bytes after its last tensor.")
