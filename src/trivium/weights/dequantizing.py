"""A checkpoint of quantized weights, seen as one of plain weights: for layers that keep theirs plain, or for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.arch.quantization import GgmlScheme, OnTheFlyScheme, QuantizationSpec
from trivium.errors import WeightError
from trivium.weights.layouts import layout_of
from trivium.weights.layouts.base import Share, WeightLayout
from trivium.weights.source import WeightSource


@dataclass(frozen=True)
class _Module:
    name: str
    shape: tuple[int, int]
    layout: WeightLayout
    tensors: dict[str, str]
    """Suffix → full name, of those that are there."""


class DequantizingSource:
    """`WeightSource` in which the tensors of each quantized matrix that is wanted plain are one, `weight`."""

    def __init__(self, source: WeightSource, quantization: QuantizationSpec, wanted: Mapping[str, tuple[int, ...]]) -> None:
        """`wanted`: names and shapes of plain tensors that the model asks for."""
        self._source = source
        present = set(source.names())
        self._modules: dict[str, _Module] = {}
        replaced: dict[str, str] = {}
        for name, shape in wanted.items():
            module = _find(name, shape, quantization, present)
            if module is not None:
                self._modules[name] = module
                replaced |= dict.fromkeys(module.tensors.values(), name)
        # A matrix stands where the first of its tensors stood, so that files are still read in order.
        self._names = list(dict.fromkeys(replaced.get(name, name) for name in source.names()))

    @property
    def total_bytes(self) -> int:
        return self._source.total_bytes

    def names(self) -> list[str]:
        return list(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._modules[name].shape if name in self._modules else self._source.shape(name)

    def file_of(self, name: str) -> str:
        module = self._modules.get(name)
        return self._source.file_of(name if module is None else next(iter(module.tensors.values())))

    def load(self, name: str) -> Tensor:
        """float32 where it is dequantized."""
        module = self._modules.get(name)
        if module is None:
            return self._source.load(name)
        self._check_shapes(module)
        raw = {suffix: self._source.load(full) for suffix, full in module.tensors.items()}
        try:
            return module.layout.read(raw, Share.whole(*module.shape)).dequantize(torch.float32)
        except WeightError as error:
            raise WeightError(f"{module.name}: {error.message}") from None

    def _check_shapes(self, module: _Module) -> None:
        for spec in module.layout.tensors(*module.shape):
            full = module.tensors.get(spec.suffix)
            if full is not None and spec.shape is not None and tuple(self._source.shape(full)) != spec.shape:
                found = list(self._source.shape(full))
                raise WeightError(f"Tensor {full} in {self._source.file_of(full)} has shape {found}, the config calls for {list(spec.shape)}.")


def _find(name: str, shape: tuple[int, ...], quantization: QuantizationSpec, present: set[str]) -> _Module | None:
    """The quantized matrix that stands for the plain tensor `name`, if there is one."""
    module, _, leaf = name.rpartition(".")
    scheme = quantization.scheme(module) if leaf == "weight" and len(shape) == 2 else None
    if scheme is None or isinstance(scheme, OnTheFlyScheme | GgmlScheme):
        return None
    layout = layout_of(scheme)
    specs = layout.tensors(shape[0], shape[1])
    if not all(f"{module}.{spec.suffix}" in present for spec in specs if spec.required):
        return None
    tensors = {spec.suffix: f"{module}.{spec.suffix}" for spec in specs if f"{module}.{spec.suffix}" in present}
    return _Module(module, (shape[0], shape[1]), layout, tensors)
