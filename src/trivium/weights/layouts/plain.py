"""Plain matrices that are quantized while they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from torch import Tensor

from trivium.arch.quantization import BitsAndBytesScheme, Fp8Scheme, GroupedScheme, Int8Scheme, OnTheFlyScheme, Scheme
from trivium.weights.layouts.base import Share, TensorSpec
from trivium.weights.quantize import quantize_fp8, quantize_int4, quantize_int8, quantize_table4
from trivium.weights.quantized import QuantizedWeight

Quantize = Callable[[Tensor], QuantizedWeight]

_METHODS: Final[Mapping[str, Quantize]] = {
    "int8": quantize_int8,
    "fp8": quantize_fp8,
    "nf4": lambda weight: quantize_table4(weight, "nf4"),
    "fp4": lambda weight: quantize_table4(weight, "fp4"),
}


class OnTheFlyLayout:
    """`weight` [out, in] of any float type. What is rounded is this rank's share, on its device."""

    def __init__(self, quantize: Quantize) -> None:
        self.quantize = quantize

    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        return (TensorSpec("weight", (num_out, num_in)),)

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        return self.quantize(share.take_columns(share.take_rows(raw["weight"]), 1).to(share.device))


def on_the_fly_layout(scheme: OnTheFlyScheme) -> OnTheFlyLayout:
    return OnTheFlyLayout(_METHODS[scheme.method])


def dummy_layout(scheme: Scheme) -> OnTheFlyLayout:
    """What gives plain random numbers the form, if not the layout on disk, that `scheme` has."""
    if isinstance(scheme, OnTheFlyScheme):
        return on_the_fly_layout(scheme)
    if isinstance(scheme, Fp8Scheme):
        return OnTheFlyLayout(quantize_fp8)
    if isinstance(scheme, Int8Scheme):
        return OnTheFlyLayout(lambda weight: quantize_int8(weight, rounds_inputs=True))
    if isinstance(scheme, BitsAndBytesScheme):
        return OnTheFlyLayout(_METHODS["int8" if scheme.bits == 8 else scheme.table])
    if isinstance(scheme, GroupedScheme) and scheme.bits <= 4:
        return OnTheFlyLayout(lambda weight: quantize_int4(weight, scheme.group_size))
    return OnTheFlyLayout(quantize_int8)
