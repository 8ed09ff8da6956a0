"""`quantization_config` sections: what each says, and that a malformed one names its key."""

from __future__ import annotations

from typing import Any

import pytest

from trivium.arch.quantization import (
    GGUF,
    GGUF_PACKED,
    BitsAndBytesScheme,
    Fp8Scheme,
    GroupedScheme,
    Int8Scheme,
    OnTheFlyScheme,
    QuantizationSpec,
    Scheme,
    resolve_quantization,
)
from trivium.arch.quantization_config import read_quantization
from trivium.arch.reader import ConfigReader
from trivium.errors import ConfigError, ModelLoadError, UnsupportedWeightFormat

AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
NF4: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
WEIGHTS: dict[str, Any] = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
EIGHT: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True}
PACKED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
}


def read(section: dict[str, Any]) -> QuantizationSpec:
    found = read_quantization(ConfigReader({"quantization_config": section}))
    assert found is not None
    return found


def scheme(section: dict[str, Any], module: str = "model.layers.0.mlp.up_proj") -> Scheme | None:
    return read(section).scheme(module)


def group(**weights: Any) -> dict[str, Any]:
    return {**PACKED, "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**WEIGHTS, **weights}}}}


def w8a8(inputs: dict[str, Any] | None = None, **weights: Any) -> dict[str, Any]:
    own = {**EIGHT, "strategy": "channel", "dynamic": False, **weights}
    activations = {**EIGHT, "strategy": "token", "dynamic": True, **(inputs or {})}
    groups = {"group_0": {"targets": ["Linear"], "weights": own, "input_activations": activations}}
    return {**PACKED, "format": "int-quantized", "config_groups": groups}


def test_no_section_means_plain_weights() -> None:
    assert read_quantization(ConfigReader({})) is None
    assert read_quantization(ConfigReader({"quantization_config": None})) is None


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (AWQ, GroupedScheme(layout="awq", bits=4, group_size=128, symmetric=False)),
        ({**AWQ, "version": "GEMV", "zero_point": False}, GroupedScheme(layout="awq_gemv", bits=4, group_size=128, symmetric=True)),
        (GPTQ, GroupedScheme(layout="gptq", bits=4, group_size=128, symmetric=True, zero_offset=1)),
        (
            {**GPTQ, "checkpoint_format": "gptq_v2", "bits": 3, "group_size": -1, "desc_act": True, "sym": False},
            GroupedScheme(layout="gptq", bits=3, group_size=None, symmetric=False, act_order=True),
        ),
        ({**GPTQ, "checkpoint_format": "marlin"}, GroupedScheme(layout="marlin", bits=4, group_size=128, symmetric=True)),
        ({"quant_method": "marlin", "group_size": -1}, GroupedScheme(layout="marlin", bits=4, group_size=None, symmetric=True)),
        (NF4, BitsAndBytesScheme(bits=4, table="nf4")),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, BitsAndBytesScheme(bits=8)),
        (FP8, Fp8Scheme(scale="block", name="weight_scale_inv")),
        ({"quant_method": "fp8", "activation_scheme": "static"}, Fp8Scheme(scale="tensor")),
        ({"quant_method": "fbgemm_fp8"}, Fp8Scheme(scale="channel")),
        (PACKED, GroupedScheme(layout="packed", bits=4, group_size=128, symmetric=True)),
        (group(strategy="channel", num_bits=8, group_size=None), GroupedScheme(layout="packed", bits=8, group_size=None, symmetric=True)),
        (group(actorder="group"), GroupedScheme(layout="packed", bits=4, group_size=128, symmetric=True, act_order=True)),
        (group(actorder="static"), GroupedScheme(layout="packed", bits=4, group_size=128, symmetric=True)),
        (group(type="float", num_bits=8, strategy="tensor"), Fp8Scheme(scale="tensor")),
        (group(type="float", num_bits=8, strategy="channel"), Fp8Scheme(scale="channel")),
        (group(type="float", num_bits=8, strategy="block", block_structure=[128, 64]), Fp8Scheme(scale="block", block=(128, 64))),
        (w8a8(), Int8Scheme()),
    ],
)
def test_sections_are_understood(section: dict[str, Any], expected: Scheme) -> None:
    assert scheme(section) == expected


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"bits": 4}, "quant_method is missing"),
        ({**AWQ, "bits": None}, "bits is missing"),
        ({**AWQ, "bits": 3}, "bits = 3"),
        ({**AWQ, "bits": "4"}, "bits must be a whole number"),
        ({**AWQ, "group_size": None}, "group_size is missing"),
        ({**AWQ, "group_size": 0}, "group_size = 0"),
        ({**AWQ, "group_size": -2}, "group_size must be at least -1"),
        ({**AWQ, "zero_point": 1}, "zero_point must be true or false"),
        ({**AWQ, "modules_to_not_convert": "lm_head"}, "modules_to_not_convert must be a list"),
        ({**GPTQ, "bits": 5}, "bits = 5"),
        ({**GPTQ, "checkpoint_format": "bitblas"}, "checkpoint_format = 'bitblas'"),
        ({**GPTQ, "desc_act": "yes"}, "desc_act must be true or false"),
        ({**GPTQ, "dynamic": {"-:(": {}}}, "dynamic: -:( = "),
        ({**GPTQ, "dynamic": {"up": {"bits": 7}}}, "dynamic: up: bits = 7"),
        ({**GPTQ, "checkpoint_format": "marlin", "group_size": 64}, "group_size = 64"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit"),
        ({**NF4, "load_in_8bit": True}, "load_in_4bit"),
        ({**NF4, "bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type = 'int4'"),
        ({**FP8, "weight_block_size": [128]}, "weight_block_size"),
        ({**FP8, "activation_scheme": "none"}, "activation_scheme = 'none'"),
        ({**FP8, "fmt": "e5m2"}, "fmt = 'e5m2'"),
        ({**PACKED, "config_groups": {}}, "config_groups"),
        ({**PACKED, "config_groups": {"group_0": {"targets": ["Linear"]}}}, "weights"),
        ({**PACKED, "config_groups": {"group_0": {"weights": WEIGHTS}}}, "targets is missing"),
        ({**PACKED, "ignore": ["re:("]}, "ignore"),
        (group(type="complex"), "type = 'complex'"),
        (group(num_bits=None), "num_bits is missing"),
        (group(group_size=0), "group_size = 0"),
    ],
)
def test_a_malformed_section_names_its_key(section: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelLoadError) as error:
        read(section)
    assert key in str(error.value)


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"quant_method": "quip"}, "'quip'"),
        ({**AWQ, "version": "llm-awq"}, "'llm-awq'"),
        ({**GPTQ, "lm_head": True}, "lm_head"),
        ({**NF4, "bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage"),
        ({**PACKED, "kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        ({**PACKED, "format": "marlin-24"}, "'marlin-24'"),
        ({**PACKED, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        (group(num_bits=3), "3 bits"),
        (group(type="float", num_bits=4), "floats of 4 bits"),
        (group(strategy="block"), "'block'"),
        (w8a8(num_bits=4), "4 bits"),
        (w8a8({"dynamic": False}), "input_activations.dynamic"),
        (w8a8({"strategy": "tensor"}), "input_activations.strategy"),
        (w8a8(strategy="group"), "weights.strategy"),
    ],
)
def test_what_we_do_not_have_is_refused_when_weights_are_wanted(section: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedWeightFormat) as error:
        scheme(section)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("section", "module", "is_plain"),
    [
        ({**AWQ, "modules_to_not_convert": ["visual", "layers.0."]}, "model.layers.0.mlp.up_proj", True),
        ({**AWQ, "modules_to_not_convert": ["visual", "layers.0."]}, "model.layers.10.mlp.up_proj", False),
        ({**AWQ, "modules_to_not_convert": ["q.proj"]}, "model.layers.0.self_attn.q_proj", False),
        (NF4, "lm_head", True),
        ({**NF4, "llm_int8_skip_modules": ["down_proj"]}, "model.layers.0.mlp.down_proj", True),
        (PACKED, "lm_head", True),
        ({**PACKED, "ignore": ["re:.*down_proj"]}, "model.layers.3.mlp.down_proj", True),
        ({**PACKED, "ignore": ["model.layers.1.mlp.up_proj"]}, "model.layers.1.mlp.up_proj", True),
        ({**PACKED, "ignore": ["model.layers.1.mlp.up_proj"]}, "model.layers.1.mlp.up_proj_2", False),
        ({**GPTQ, "dynamic": {"-:.*layers\\.1\\.": {}}}, "model.layers.1.mlp.up_proj", True),
        ({**GPTQ, "dynamic": {"-:.*layers\\.1\\.": {}}}, "model.layers.2.mlp.up_proj", False),
    ],
)
def test_modules_left_plain(section: dict[str, Any], module: str, is_plain: bool) -> None:
    assert (scheme(section, module) is None) == is_plain


def test_modules_with_settings_of_their_own() -> None:
    section = {**GPTQ, "dynamic": {"+:.*down": {"bits": 8, "group_size": 32}}}
    found = scheme(section, "model.layers.0.mlp.down_proj")
    assert isinstance(found, GroupedScheme) and (found.bits, found.group_size) == (8, 32)
    groups = {"a": {"targets": ["re:.*down_proj$"], "weights": {**WEIGHTS, "num_bits": 8}}, "b": {"targets": ["Linear"], "weights": WEIGHTS}}
    two = {**PACKED, "config_groups": groups}
    bits = [found.bits for name in ("down_proj", "up_proj") if isinstance(found := scheme(two, f"model.layers.0.mlp.{name}"), GroupedScheme)]
    assert bits == [8, 4]


PLAIN_METHODS = {"bitsandbytes": "int8", "bitsandbytes-nf4": "nf4", "bitsandbytes-fp4": "fp4", "eetq": "int8", "fp8": "fp8"}


def test_the_setting_meets_the_checkpoint() -> None:
    awq = read(AWQ)
    assert resolve_quantization("auto", None, is_gguf=False) is None
    assert resolve_quantization("auto", awq, is_gguf=False) is awq
    assert resolve_quantization("auto", None, is_gguf=True) is GGUF
    assert resolve_quantization("gguf", None, is_gguf=True) is GGUF_PACKED
    assert resolve_quantization("awq", awq, is_gguf=False) is awq
    assert resolve_quantization("awq_marlin", awq, is_gguf=False) is awq
    assert resolve_quantization("none", awq, is_gguf=False) is None
    for setting, method in PLAIN_METHODS.items():
        found = resolve_quantization(setting, None, is_gguf=False)
        assert found is not None and found.scheme("x") == OnTheFlyScheme(method=method)  # type: ignore[arg-type]
    assert resolve_quantization("bitsandbytes-nf4", read(NF4), is_gguf=False) == read(NF4)


@pytest.mark.parametrize(
    ("setting", "section", "is_gguf", "holds"),
    [
        ("gptq", AWQ, False, "weights quantized with awq"),
        ("fp8", AWQ, False, "weights quantized with awq"),
        ("awq", None, False, "plain weights"),
        ("gguf", None, False, "plain weights"),
        ("fp8", None, True, "weights quantized with gguf"),
    ],
)
def test_a_setting_that_contradicts_the_checkpoint_is_an_error(setting: str, section: dict[str, Any] | None, is_gguf: bool, holds: str) -> None:
    with pytest.raises(ConfigError, match=holds) as error:
        resolve_quantization(setting, None if section is None else read(section), is_gguf=is_gguf)
    assert error.value.param == "quantization"
