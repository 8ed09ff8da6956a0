"""Which quantized weight format a `config.json` declares: the one that is supported by a name of ours, the others by their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trivium.arch.reader import ConfigReader

W8A8_INT8: Final = "w8a8-int8"
"""compressed-tensors: int8 weights with a scale per output, inputs rounded to int8 token by token, output head left alone."""

_EIGHT_BITS: Final = {"num_bits": 8, "type": "int", "symmetric": True}
_WEIGHTS: Final = {**_EIGHT_BITS, "strategy": "channel", "dynamic": False}
_INPUTS: Final = {**_EIGHT_BITS, "strategy": "token", "dynamic": True}


def quantization_method(config: ConfigReader) -> str | None:
    """None for plain weights, `W8A8_INT8`, or the `quant_method` of a format that can't be loaded."""
    section = config.section("quantization_config")
    if not section.present_keys():
        return None
    method = section.text("quant_method", default="unknown")
    return W8A8_INT8 if method == "compressed-tensors" and _is_w8a8_int8(section) else method


def _is_w8a8_int8(section: ConfigReader) -> bool:
    groups = section.section("config_groups")
    names = groups.present_keys()
    if len(names) != 1 or section.values().get("ignore") != ["lm_head"] or section.values().get("kv_cache_scheme"):
        return False
    group = groups.section(names[0])
    return (
        group.values().get("targets") == ["Linear"]
        and _says(group.section("weights").values(), _WEIGHTS)
        and _says(group.section("input_activations").values(), _INPUTS)
        and not group.values().get("output_activations")
    )


def _says(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(given.get(key) == value for key, value in wanted.items())
