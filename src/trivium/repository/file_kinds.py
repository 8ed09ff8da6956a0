"""Whether a model's file is of the kind that its name says, told from its outline: nothing of it is run and no framework is needed."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

_ONNX_FIELDS: Final = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26})
"""Of `ModelProto` (github.com/onnx/onnx, onnx.proto)."""
_GRAPH: Final = 7
_VARINT, _BYTES = 0, 2
_START_BYTES: Final = 64


def wrong_kind(path: Path, name: str = "") -> str:
    """What is wrong with a file for its name in a repository (default: the one it has), or `""`. A folder holds the file under that name."""
    name = name or path.name
    file = path / name if path.is_dir() else path
    known = _KINDS.get(Path(name).suffix)
    if known is None or name == "model.json":
        return ""
    what, check = known
    try:
        return "" if check(file) else f"is no {what}"
    except FileNotFoundError:
        return f"holds no {name}" if path.is_dir() else ""
    except OSError as error:
        return f"can't be read: {error.strerror}"


def is_onnx(path: Path) -> bool:
    """Fields of the outermost protobuf message only, one of them a graph; what is in them is skipped, however large."""
    size = path.stat().st_size
    has_graph = False
    with path.open("rb") as file:
        while file.tell() < size:
            tag = _varint(file)
            length = _varint(file)
            if tag is None or length is None or tag >> 3 not in _ONNX_FIELDS or tag & 7 not in (_VARINT, _BYTES):
                return False
            if tag & 7 == _BYTES:
                if file.tell() + length > size:
                    return False
                file.seek(length, 1)
            has_graph = has_graph or tag >> 3 == _GRAPH
    return has_graph


def _varint(file: BinaryIO) -> int | None:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except ValueError:
        return False


def _starts_with(*starts: bytes) -> Callable[[Path], bool]:
    def check(path: Path) -> bool:
        with path.open("rb") as file:
            return file.read(_START_BYTES).lstrip().startswith(starts)

    return check


_KINDS: Final[dict[str, tuple[str, Callable[[Path], bool]]]] = {
    ".onnx": ("ONNX model", is_onnx),
    ".pt": ("TorchScript model (torch.jit.save)", zipfile.is_zipfile),
    ".pt2": ("exported program (torch.export.save)", zipfile.is_zipfile),
    ".ubj": ("XGBoost model in UBJSON", _starts_with(b"{")),
    ".json": ("JSON object", _is_json),
    ".txt": ("LightGBM model", _starts_with(b"tree")),
}
