"""Weights of a GGUF model, under HF names and in HF layout: dequantized, or as blocks where a layer asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from trivium.errors import UnsupportedWeightFormat, WeightError
from trivium.sources.gguf_file import GGUFFile, GGUFTensor, read_gguf
from trivium.weights.dequantize import DEQUANTIZERS, PLAIN_DTYPES, dequantize
from trivium.weights.layouts.base import WeightLayout
from trivium.weights.layouts.ggml import GgmlLayout, row_bytes
from trivium.weights.mapped_file import MappedFile
from trivium.weights.names import Origin, hf_names, known_tensor


class GGUFSource:
    """`WeightSource` over the file, or the parts, of one GGUF model."""

    def __init__(self, paths: Sequence[Path]) -> None:
        files = [read_gguf(path) for path in paths]
        self._files = {file.path: MappedFile(file.path) for file in files}
        self._tensors = _merge(files)
        first = files[0]
        arch = first.require_text("general.architecture")
        num_heads = first.require_integer(f"{arch}.attention.head_count")
        num_kv_heads = first.integer(f"{arch}.attention.head_count_kv", num_heads) or num_heads
        shapes = {name: tensor.shape for name, (_, tensor) in self._tensors.items()}
        self._origins = hf_names(arch, shapes, num_heads, num_kv_heads)
        self._where = ", ".join(str(path) for path in paths)
        self._packed: set[str] = set()
        for path, tensor in self._tensors.values():
            _check_type(path, tensor)

    @property
    def total_bytes(self) -> int:
        return sum(tensor.num_bytes for _, tensor in self._tensors.values())

    def names(self) -> list[str]:
        return list(self._origins)

    def keep_packed(self, name: str, types: Sequence[str]) -> WeightLayout | None:
        """From now on `name` is its blocks, uint8 [rows, bytes], in the layout returned; None where its type is none of `types`."""
        known_tensor(self._origins, name, self._where)
        type_name = self._tensors[self._origins[name].gguf_name][1].type_name
        if type_name not in types:
            return None
        self._packed.add(name)
        return GgmlLayout(type_name)

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self._shape(name)
        if name not in self._packed:
            return shape
        return (shape[0], row_bytes(self._tensors[self._origins[name].gguf_name][1].type_name, shape[1]))

    def _shape(self, name: str) -> tuple[int, ...]:
        origin = self._origin(name)
        shape = self._tensors[origin.gguf_name][1].shape
        return shape if origin.expert is None else shape[1:]

    def file_of(self, name: str) -> str:
        return str(self._tensors[self._origin(name).gguf_name][0])

    def load(self, name: str) -> Tensor:
        """float32 for quantized types that are not kept packed, else the stored type."""
        origin = self._origin(name)
        path, tensor = self._tensors[origin.gguf_name]
        shape = self._shape(name)
        offset, num_bytes = tensor.offset, tensor.num_bytes
        if origin.expert is not None:
            num_bytes //= tensor.shape[0]
            offset += origin.expert * num_bytes
        raw = self._files[path].tensor(offset, num_bytes)
        if origin.permuted_heads is not None:
            raw = _halves_from_pairs(raw, shape[0], origin.permuted_heads, f"{path}: tensor {origin.gguf_name!r} {list(shape)}")
        if name in self._packed:
            return raw.view(self.shape(name))
        value = _decode(raw, tensor.type_name).reshape(shape)
        return value + origin.offset if origin.offset else value

    def _origin(self, name: str) -> Origin:
        known_tensor(self._origins, name, self._where)
        return self._origins[name]


def _merge(files: list[GGUFFile]) -> dict[str, tuple[Path, GGUFTensor]]:
    merged: dict[str, tuple[Path, GGUFTensor]] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if name in merged:
                raise WeightError(f"Tensor {name!r} is in {merged[name][0]} and again in {file.path}.")
            merged[name] = (file.path, tensor)
    return merged


def _check_type(path: Path, tensor: GGUFTensor) -> None:
    if tensor.type_name not in DEQUANTIZERS and tensor.type_name not in PLAIN_DTYPES:
        supported = ", ".join([*PLAIN_DTYPES, *DEQUANTIZERS])
        raise UnsupportedWeightFormat(f"{path}: tensor {tensor.name!r} is of type {tensor.type_name}. Supported: {supported}.")


def _halves_from_pairs(raw: Tensor, rows: int, heads: int, what: str) -> Tensor:
    """Undoes llama.cpp's row order for RoPE, on the packed rows: pair (i, i + half) of each head lies side by side."""
    if heads < 1 or rows % (2 * heads):
        raise WeightError(f"{what} can't be split into {heads} heads of even width.")
    return raw.view(heads, rows // heads // 2, 2, -1).transpose(1, 2).reshape(-1)


def _decode(raw: Tensor, type_name: str) -> Tensor:
    return raw.view(PLAIN_DTYPES[type_name]) if type_name in PLAIN_DTYPES else dequantize(raw, type_name)
