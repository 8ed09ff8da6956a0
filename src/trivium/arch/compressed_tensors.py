"""`quantization_config` of compressed-tensors: groups of modules, each with a scheme of its own.

https://github.com/vllm-project/compressed-tensors: `QuantizationScheme` and `QuantizationArgs`.
"""

from __future__ import annotations

import re
from typing import Final

from trivium.arch.quantization import Fp8Scheme, GroupedScheme, Int8Scheme, QuantizationSpec, Rule, Scheme
from trivium.arch.reader import ConfigReader

_METHOD: Final = "compressed-tensors"


class _UnsupportedError(Exception):
    """Well-formed, but nothing we have."""


def read_compressed_tensors(config: ConfigReader) -> QuantizationSpec:
    """Raises `ModelLoadError`, naming the key, for a malformed section."""
    try:
        return _read(config)
    except _UnsupportedError as error:
        return QuantizationSpec(method=_METHOD, obstacle=f"compressed-tensors weights are not supported where {error}.")


def _read(config: ConfigReader) -> QuantizationSpec:
    if config.has("kv_cache_scheme"):
        raise _UnsupportedError("there is a kv_cache_scheme")
    sparsity = config.section("sparsity_config")
    if sparsity.present_keys() and sparsity.text("format", default="dense") != "dense":
        raise _UnsupportedError(f"sparsity_config.format is {sparsity.text('format')!r}")
    groups = config.section("config_groups")
    names = groups.present_keys()
    if not names:
        raise config.error("config_groups", "at least one group expected.")
    rules: list[Rule] = []
    for name in names:
        group = groups.section(name)
        form = group.text("format", default=config.text("format", default="dense"))
        scheme = _scheme(group, form)
        rules += [Rule(pattern=_pattern(group, "targets", target), scheme=scheme) for target in group.texts("targets")]
    ignored = tuple(f"^(?:{_pattern(config, 'ignore', name)})" for name in config.texts("ignore")) if config.has("ignore") else ()
    return QuantizationSpec(method=_METHOD, rules=tuple(rules), ignored=ignored)


def _pattern(config: ConfigReader, key: str, target: str) -> str:
    """A target is a class of modules, `re:` and a regular expression, or a module's name."""
    if target == "Linear":
        return ""
    if not target.startswith("re:"):
        return re.escape(target) + "$"
    try:
        re.compile(target[3:])
    except re.error as error:
        raise config.error(key, f"{target!r} is no regular expression: {error}") from None
    return target[3:]


def _scheme(group: ConfigReader, form: str) -> Scheme:
    weights, inputs = group.section("weights"), group.section("input_activations")
    if group.section("output_activations").present_keys():
        raise _UnsupportedError("output_activations are quantized")
    if not weights.present_keys():
        raise group.error("weights", "an object expected.")
    bits, kind = weights.integer("num_bits"), weights.text("type")
    if kind not in ("int", "float"):
        raise weights.error("type", "must be int or float.")
    if kind == "float":
        if bits != 8:
            raise _UnsupportedError(f"weights are floats of {bits} bits")
        return _fp8(weights)
    if inputs.present_keys():
        return _w8a8(weights, inputs, bits)
    if form not in ("pack-quantized", "int-quantized", "naive-quantized"):
        raise _UnsupportedError(f"format is {form!r}")
    return GroupedScheme(
        layout="packed" if form == "pack-quantized" else "int8",
        bits=_bits(weights, bits, form),
        group_size=_group_size(weights),
        symmetric=weights.flag("symmetric", default=True),
        act_order=weights.values().get("actorder") in ("group", True),
    )


def _bits(weights: ConfigReader, bits: int, form: str) -> int:
    if bits not in ((4, 8) if form == "pack-quantized" else (8,)):
        raise _UnsupportedError(f"weights have {bits} bits in format {form!r}")
    return bits


def _group_size(weights: ConfigReader) -> int | None:
    strategy = weights.text("strategy", default="channel" if not weights.has("group_size") else "group")
    if strategy == "channel":
        return None
    if strategy != "group":
        raise _UnsupportedError(f"weights.strategy is {strategy!r}")
    size = weights.integer("group_size", minimum=-1)
    if size == 0:
        raise weights.error("group_size", "must be -1 (one group) or at least 1.")
    return None if size == -1 else size


def _fp8(weights: ConfigReader) -> Fp8Scheme:
    strategy = weights.text("strategy", default="tensor")
    if strategy == "tensor":
        return Fp8Scheme(scale="tensor")
    if strategy == "channel":
        return Fp8Scheme(scale="channel")
    if strategy != "block":
        raise _UnsupportedError(f"weights.strategy is {strategy!r} for floats")
    block = weights.integers("block_structure")
    if len(block) != 2 or min(block) < 1:
        raise weights.error("block_structure", "two whole numbers of at least 1 expected.")
    return Fp8Scheme(scale="block", block=(block[0], block[1]))


def _w8a8(weights: ConfigReader, inputs: ConfigReader, bits: int) -> Int8Scheme:
    expected = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    for key, value in expected.items():
        if inputs.values().get(key) != value:
            raise _UnsupportedError(f"input_activations.{key} is {inputs.values().get(key)!r}, not {value!r}")
    for key, value in {"symmetric": True, "strategy": "channel", "dynamic": False}.items():
        if weights.values().get(key) != value:
            raise _UnsupportedError(f"inputs are quantized and weights.{key} is {weights.values().get(key)!r}, not {value!r}")
    if bits != 8:
        raise _UnsupportedError(f"inputs are quantized and weights have {bits} bits")
    return Int8Scheme()
