"""Layouts of quantized checkpoints, one module each. `layout_of` finds the one that a scheme names."""

from __future__ import annotations

from trivium.arch.quantization import BitsAndBytesScheme, Fp8Scheme, GroupedScheme, Int8Scheme, OnTheFlyScheme, Scheme
from trivium.weights.layouts.awq import AwqGemvLayout, AwqLayout
from trivium.weights.layouts.base import Share, TensorSpec, WeightLayout
from trivium.weights.layouts.bitsandbytes import Bnb4Layout, BnbInt8Layout
from trivium.weights.layouts.compressed import Int8Layout, PackedLayout, W8A8Layout
from trivium.weights.layouts.fp8 import Fp8Layout
from trivium.weights.layouts.gptq import GptqLayout
from trivium.weights.layouts.marlin import MarlinLayout
from trivium.weights.layouts.plain import on_the_fly_layout

__all__ = ["Share", "TensorSpec", "WeightLayout", "layout_of"]

_GROUPED = {
    "gptq": GptqLayout,
    "awq": AwqLayout,
    "awq_gemv": AwqGemvLayout,
    "marlin": MarlinLayout,
    "packed": PackedLayout,
    "int8": Int8Layout,
}


def layout_of(scheme: Scheme) -> WeightLayout:
    """Of every scheme that a safetensors checkpoint can have."""
    if isinstance(scheme, GroupedScheme):
        return _GROUPED[scheme.layout](scheme)
    if isinstance(scheme, OnTheFlyScheme):
        return on_the_fly_layout(scheme)
    if isinstance(scheme, Fp8Scheme):
        return Fp8Layout(scheme)
    if isinstance(scheme, BitsAndBytesScheme):
        return BnbInt8Layout() if scheme.bits == 8 else Bnb4Layout(scheme)
    assert isinstance(scheme, Int8Scheme), scheme
    return W8A8Layout()
