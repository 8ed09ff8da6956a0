"""`quantization_config` of a `config.json` → `QuantizationSpec`.

Formats: AutoAWQ, GPTQModel (v1 and v2 zero points), Marlin, bitsandbytes, FP8 (DeepSeek's blocks, fbgemm, one scale), compressed-tensors.
A key that is missing or wrong is an error that names it, never a default; a format we don't have is refused when weights are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Literal

from trivium.arch.compressed_tensors import read_compressed_tensors
from trivium.arch.quantization import BitsAndBytesScheme, Fp8Scheme, GroupedScheme, QuantizationSpec, Rule
from trivium.arch.reader import ConfigReader


def read_quantization(config: ConfigReader) -> QuantizationSpec | None:
    """None for plain weights. Raises `ModelLoadError`, naming the key, for a section that is malformed."""
    for key in ("quantization_config", "compression_config"):
        section = config.section(key)
        if section.present_keys():
            method = section.text("quant_method", default="compressed-tensors" if key == "compression_config" else None)
            read = _READERS.get(method)
            if read is None:
                known = ", ".join(sorted(_READERS))
                return QuantizationSpec(method=method, obstacle=f"Weights quantized with {method!r} are not supported. Supported: {known}.")
            return read(section)
    return None


def _ignored(names: tuple[str, ...]) -> tuple[str, ...]:
    """Parts of names, as `modules_to_not_convert` has them."""
    return tuple(re.escape(name) for name in names)


def _texts(config: ConfigReader, key: str) -> tuple[str, ...]:
    return config.texts(key) if config.has(key) else ()


def _group_size(config: ConfigReader, key: str = "group_size") -> int | None:
    size = config.integer(key, minimum=-1)
    if size == 0:
        raise config.error(key, "must be -1 (one group) or at least 1.")
    return None if size == -1 else size


def _bits(config: ConfigReader, key: str, allowed: tuple[int, ...]) -> int:
    bits = config.integer(key)
    if bits not in allowed:
        raise config.error(key, f"must be one of {', '.join(map(str, allowed))}.")
    return bits


def _read_gptq(config: ConfigReader) -> QuantizationSpec:
    bits = _bits(config, "bits", (2, 3, 4, 8))
    form = config.text("checkpoint_format", default="gptq")
    if config.has("is_marlin_format") and config.flag("is_marlin_format", default=False):
        form = "marlin"
    if form not in ("gptq", "gptq_v2", "marlin"):
        raise config.error("checkpoint_format", "must be gptq, gptq_v2 or marlin.")
    if config.has("lm_head") and config.flag("lm_head", default=False):
        return QuantizationSpec(method="gptq", obstacle="GPTQ with a quantized output head (lm_head = true) is not supported.")
    scheme = GroupedScheme(
        layout="marlin" if form == "marlin" else "gptq",
        bits=bits,
        group_size=_group_size(config),
        symmetric=config.flag("sym", default=True) if config.has("sym") else form == "marlin",
        act_order=config.flag("desc_act", default=False),
        zero_offset=1 if form == "gptq" else 0,
    )
    if form == "marlin":
        _check_marlin(config, scheme)
    rules, skipped = _dynamic(config, scheme)
    ignored = _ignored(_texts(config, "modules_to_not_convert"))
    return QuantizationSpec(method="gptq", rules=(*rules, Rule(scheme=scheme)), ignored=(*skipped, *ignored))


def _dynamic(config: ConfigReader, base: GroupedScheme) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """GPTQModel's exceptions: `-:pattern` leaves modules plain, `+:pattern` or a bare one changes their settings."""
    section, rules, skipped = config.section("dynamic"), list[Rule](), list[str]()
    for key in section.values():
        pattern = key[2:] if key[:2] in ("+:", "-:") else key
        _check_pattern(section, key, pattern)
        if key.startswith("-:"):
            skipped.append(f"^(?:{pattern})")
            continue
        changes = section.section(key)
        scheme = replace(
            base,
            bits=_bits(changes, "bits", (2, 3, 4, 8)) if changes.has("bits") else base.bits,
            group_size=_group_size(changes) if changes.has("group_size") else base.group_size,
            symmetric=changes.flag("sym", default=base.symmetric),
            act_order=changes.flag("desc_act", default=base.act_order),
        )
        rules.append(Rule(pattern=pattern, scheme=scheme))
    return tuple(rules), tuple(skipped)


def _check_pattern(config: ConfigReader, key: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise config.error(key, f"no regular expression: {error}") from None


def _check_marlin(config: ConfigReader, scheme: GroupedScheme) -> None:
    if scheme.bits != 4:
        raise config.error("bits", "Marlin's own format has 4 bits.")
    if scheme.group_size not in (None, 128):
        raise config.error("group_size", "Marlin's own format has groups of 128, or one.")
    if not scheme.symmetric:
        raise config.error("sym", "Marlin's own format is symmetric.")


def _read_marlin(config: ConfigReader) -> QuantizationSpec:
    size = _group_size(config)
    scheme = GroupedScheme(layout="marlin", bits=4, group_size=size, symmetric=True)
    if config.has("bits"):
        _bits(config, "bits", (4,))
    _check_marlin(config, scheme)
    return QuantizationSpec(method="marlin", rules=(Rule(scheme=scheme),))


def _read_awq(config: ConfigReader) -> QuantizationSpec:
    version = config.text("version", default="gemm").lower()
    layouts: dict[str, Literal["awq", "awq_gemv"]] = {"gemm": "awq", "gemv": "awq_gemv"}
    if version not in layouts:
        return QuantizationSpec(method="awq", obstacle=f"AWQ weights of version {version!r} are not supported, only gemm and gemv.")
    scheme = GroupedScheme(
        layout=layouts[version],
        bits=_bits(config, "bits", (4,)),
        group_size=_group_size(config),
        symmetric=not config.flag("zero_point", default=True),
    )
    return QuantizationSpec(method="awq", rules=(Rule(scheme=scheme),), ignored=_ignored(_texts(config, "modules_to_not_convert")))


def _read_bitsandbytes(config: ConfigReader) -> QuantizationSpec:
    is_four, is_eight = config.flag("load_in_4bit", default=False), config.flag("load_in_8bit", default=False)
    if is_four == is_eight:
        raise config.error("load_in_4bit", "exactly one of load_in_4bit and load_in_8bit must be true.")
    table = config.text("bnb_4bit_quant_type", default="fp4")
    if table not in ("nf4", "fp4"):
        raise config.error("bnb_4bit_quant_type", "must be nf4 or fp4.")
    storage = config.text("bnb_4bit_quant_storage", default="uint8")
    if storage != "uint8":
        return QuantizationSpec(method="bitsandbytes", obstacle=f"bitsandbytes with bnb_4bit_quant_storage {storage!r} is not supported, only uint8.")
    scheme = BitsAndBytesScheme(bits=4, table="nf4" if table == "nf4" else "fp4") if is_four else BitsAndBytesScheme(bits=8)
    ignored = _ignored(_texts(config, "llm_int8_skip_modules")) or ("^lm_head$",)
    return QuantizationSpec(method="bitsandbytes", rules=(Rule(scheme=scheme),), ignored=ignored)


def _read_fp8(config: ConfigReader) -> QuantizationSpec:
    config.refuse("fmt", "e4m3")
    activations = config.text("activation_scheme", default="dynamic")
    if activations not in ("dynamic", "static"):
        raise config.error("activation_scheme", "must be dynamic or static.")
    block = config.integers("weight_block_size") if config.has("weight_block_size") else None
    if block is None:
        scheme = Fp8Scheme(scale="tensor")
    else:
        if len(block) != 2 or min(block) < 1:
            raise config.error("weight_block_size", "two whole numbers of at least 1 expected.")
        scheme = Fp8Scheme(scale="block", block=(block[0], block[1]), name="weight_scale_inv")
    ignored = _ignored(_texts(config, "modules_to_not_convert") + _texts(config, "ignored_layers"))
    return QuantizationSpec(method="fp8", rules=(Rule(scheme=scheme),), ignored=ignored)


def _read_fbgemm_fp8(config: ConfigReader) -> QuantizationSpec:
    ignored = _ignored(_texts(config, "modules_to_not_convert"))
    return QuantizationSpec(method="fp8", rules=(Rule(scheme=Fp8Scheme(scale="channel")),), ignored=ignored)


_READERS: Final[Mapping[str, Callable[[ConfigReader], QuantizationSpec]]] = {
    "awq": _read_awq,
    "bitsandbytes": _read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "fbgemm_fp8": _read_fbgemm_fp8,
    "fp8": _read_fp8,
    "gptq": _read_gptq,
    "marlin": _read_marlin,
}
