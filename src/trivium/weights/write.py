"""Writer of safetensors checkpoints, in files of a few gigabytes with an index. Format: https://github.com/huggingface/safetensors#format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from trivium.sources.wanted import INDEX_FILE
from trivium.weights.safetensors import DTYPES

MAX_FILE_BYTES: Final = 4 << 30
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


class CheckpointWriter:
    """Takes tensors in any order; a file is written whenever enough have come together. `finish` names the files and writes the index."""

    def __init__(self, folder: Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        self.folder = folder
        self.max_file_bytes = max_file_bytes
        self.num_bytes = 0
        self._waiting: dict[str, Tensor] = {}
        self._waiting_bytes = 0
        self._parts: list[list[str]] = []

    def add(self, name: str, tensor: Tensor) -> None:
        if self._waiting and self._waiting_bytes + tensor.nbytes > self.max_file_bytes:
            self._write()
        self._waiting[name] = tensor.detach().to("cpu").contiguous()
        self._waiting_bytes += tensor.nbytes
        self.num_bytes += tensor.nbytes

    def finish(self) -> None:
        if self._waiting:
            self._write()
        count = len(self._parts)
        names = ["model.safetensors"] if count == 1 else [f"model-{index + 1:05d}-of-{count:05d}.safetensors" for index in range(count)]
        for index, name in enumerate(names):
            self._part(index).rename(self.folder / name)
        if count > 1:
            places = {tensor: name for name, part in zip(names, self._parts, strict=True) for tensor in part}
            index = {"metadata": {"total_size": self.num_bytes}, "weight_map": places}
            (self.folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")

    def _part(self, index: int) -> Path:
        return self.folder / f"part-{index}.unfinished"

    def _write(self) -> None:
        path = self._part(len(self._parts))
        write_safetensors(path, self._waiting)
        self._parts.append(list(self._waiting))
        self._waiting, self._waiting_bytes = {}, 0


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """CPU tensors to one file. The header is padded so that data starts at a multiple of eight bytes."""
    # Larger items first: every tensor then starts at a multiple of its item's size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, tensor in ordered:
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [position, position + tensor.nbytes]}
        position += tensor.nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little"))
        file.write(raw)
        for _, tensor in ordered:
            tensor.contiguous().flatten().view(torch.uint8).numpy().tofile(file)
