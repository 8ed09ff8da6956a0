"""How a model's weights are quantized, as data; and what the `quantization` setting makes of what the checkpoint holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from trivium.errors import ConfigError, UnsupportedWeightFormat


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupedScheme:
    """Whole numbers of a few bits; each group of inputs has a scale, and perhaps a zero point, per output: `(code - zero) * scale`."""

    layout: Literal["gptq", "awq", "awq_gemv", "marlin", "packed", "int8"]
    bits: int
    group_size: int | None
    """Inputs that share a scale; None: all of them."""
    symmetric: bool
    """The zero point is half the range."""
    act_order: bool = False
    """Groups hold inputs in an order of their own, given by `g_idx`."""
    zero_offset: int = 0
    """Added to stored zero points (GPTQ's first format stores them less one)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BitsAndBytesScheme:
    """int8 with a scale per output, or blocks of a table's 4-bit codes; block size, table and nested scales are in the weights' own state."""

    bits: Literal[4, 8]
    table: Literal["nf4", "fp4"] = "nf4"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fp8Scheme:
    """float8_e4m3fn; inputs are rounded to it as they come, where the device multiplies it."""

    scale: Literal["tensor", "channel", "block"]
    block: tuple[int, int] = (128, 128)
    """Outputs and inputs that share a scale."""
    name: str = "weight_scale"
    """Of the scales' tensor: what the weight is multiplied by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Int8Scheme:
    """int8 with a scale per output, inputs rounded to int8 row by row (W8A8)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OnTheFlyScheme:
    """Plain weights, quantized while they are loaded."""

    method: Literal["int8", "nf4", "fp4", "fp8"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GgmlScheme:
    """Blocks of a .gguf file; each tensor says its own type."""

    packed: tuple[str, ...] = ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
    """Types that stay packed; others are dequantized."""


Scheme = GroupedScheme | BitsAndBytesScheme | Fp8Scheme | Int8Scheme | OnTheFlyScheme | GgmlScheme


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Modules and their scheme. A pattern is a regular expression that a name begins with; an empty one fits every name."""

    pattern: str = ""
    scheme: Scheme


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationSpec:
    """`method`: the format's name, for people and for the `quantization` setting. The first rule that fits a module counts."""

    method: str
    rules: tuple[Rule, ...] = ()
    ignored: tuple[str, ...] = ()
    """Patterns of modules that are plain: regular expressions, found anywhere in the name."""
    obstacle: str = ""
    """Why such weights can't be loaded; empty if they can."""

    def scheme(self, module: str) -> Scheme | None:
        """Of a linear layer by its checkpoint name, without `.weight`; None: plain. Raises `UnsupportedWeightFormat`."""
        if self.obstacle:
            raise UnsupportedWeightFormat(self.obstacle)
        if any(re.search(pattern, module) for pattern in self.ignored):
            return None
        return next((rule.scheme for rule in self.rules if re.match(rule.pattern, module)), None)


_ON_THE_FLY: Final[Mapping[str, OnTheFlyScheme]] = {
    "bitsandbytes": OnTheFlyScheme(method="int8"),
    "bitsandbytes-nf4": OnTheFlyScheme(method="nf4"),
    "bitsandbytes-fp4": OnTheFlyScheme(method="fp4"),
    "eetq": OnTheFlyScheme(method="int8"),
    "fp8": OnTheFlyScheme(method="fp8"),
}
_ALIASES: Final[Mapping[str, str]] = {
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "bitsandbytes-nf4": "bitsandbytes",
    "bitsandbytes-fp4": "bitsandbytes",
}


def quantization_note(checkpoint: QuantizationSpec | None, resolved: QuantizationSpec | None) -> list[str]:
    """What happens to the weights, as a line for people; nothing where they are plain throughout."""
    if resolved is None:
        return [] if checkpoint is None else [f"quantization none: the checkpoint's {checkpoint.method} weights are dequantized"]
    is_made = any(isinstance(rule.scheme, OnTheFlyScheme) for rule in resolved.rules)
    return [f"quantization {resolved.method}: {'made on load' if is_made else 'as the checkpoint has it'}"]


GGUF: Final = QuantizationSpec(method="gguf", rules=(Rule(scheme=GgmlScheme()),))
GGUF_PACKED: Final = QuantizationSpec(method="gguf", rules=(Rule(scheme=GgmlScheme(packed=(*GgmlScheme().packed, "Q4_1"))),))
"""Q4_1 as well: asked for by name, since many rows at a time are multiplied faster by its dequantized weights on a CPU."""


def resolve_quantization(setting: str, checkpoint: QuantizationSpec | None, *, is_gguf: bool) -> QuantizationSpec | None:
    """What loading does with the weights: what the `quantization` setting asks for, given what the checkpoint holds.

    None: every weight plain; a quantized checkpoint is then dequantized. Raises `ConfigError` where the two contradict each other.
    """
    found = GGUF if is_gguf else checkpoint
    if setting == "auto":
        return found
    if setting == "gguf" and is_gguf:
        return GGUF_PACKED
    if setting == "none":
        return None
    if found is not None and _ALIASES.get(setting, setting) == found.method:
        return found
    if found is None and setting in _ON_THE_FLY:
        return QuantizationSpec(method=setting, rules=(Rule(scheme=_ON_THE_FLY[setting]),))
    holds = "plain weights" if found is None else f"weights quantized with {found.method}"
    if found is None:
        advice = f"; plain weights can be quantized while they are loaded with {', '.join(_ON_THE_FLY)}"
    else:
        command = f"trivium quantize MODEL OUT --method {_method(setting)}"
        advice = f". Only plain weights are quantized on load: serve it as it is, or make a checkpoint with {command}"
    raise ConfigError(f"quantization {setting} was asked for, but the model has {holds}{advice}.", param="quantization")


def _method(setting: str) -> str:
    """The method of `trivium quantize` that comes closest to a setting."""
    for name in ("awq", "gptq", "fp8"):
        if name in setting:
            return name
    return "nf4"
