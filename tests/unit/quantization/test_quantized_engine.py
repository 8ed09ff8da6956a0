"""The engine with quantized weights: output in a batch of ten is output alone to the bit, and the `quantization` setting is what happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers_engine import InProcessEngine
from helpers_quantized import FORMATS, quantized_checkpoint
from safetensors.torch import save_file

from trivium.errors import ConfigError, ModelLoadError
from trivium.ops.dispatch import load_fast_paths
from trivium.types import SamplingParams

pytestmark = pytest.mark.skipif("pack_quantized" not in load_fast_paths("cpu"), reason="the CPU kernels are not built")
PROMPTS = [[(11 * index + 5 * at * at) % 211 for at in range(3 + 7 * index)] for index in range(10)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)


def folder_of(form: str, parent: Path) -> str:
    made = quantized_checkpoint("llama", FORMATS[form])
    folder = parent / form
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(made.config))
    save_file({name: tensor.contiguous() for name, tensor in made.tensors.items()}, folder / "model.safetensors")
    return str(folder)


def outputs(engine: InProcessEngine, prompts: list[list[int]]) -> list[Any]:
    found = engine.outputs(prompts, PARAMS)
    return [[(output.token_ids, [entry.logprob for entry in output.logprobs or ()]) for output in own] for own in found]


def check_in_company(model: str, **arguments: Any) -> InProcessEngine:
    engine = InProcessEngine(model, batch_invariant=True, enable_prefix_caching=False, max_num_seqs=10, **arguments)
    together = outputs(engine, PROMPTS)
    assert together == [outputs(engine, [prompt])[0] for prompt in PROMPTS]
    engine.close()
    return engine


@pytest.mark.parametrize("form", ["awq", "gptq-act-order", "gptq8", "nf4", "bnb-int8", "fp8-block", "packed"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_ten_requests_together_are_those_alone(form: str, dtype: str, tmp_path: Path) -> None:
    check_in_company(folder_of(form, tmp_path), dtype=dtype)


@pytest.mark.parametrize("setting", ["bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4", "eetq", "fp8"])
def test_plain_weights_are_quantized_while_they_are_loaded(setting: str) -> None:
    plain, quantized = InProcessEngine("llama", dtype="bfloat16"), check_in_company("llama", dtype="bfloat16", quantization=setting)
    assert f"quantization {setting}: made on load" in quantized.engine.ready.notes
    assert quantized.engine.ready.memory["weights"] < 0.85 * plain.engine.ready.memory["weights"]
    dummy = InProcessEngine("llama", dtype="bfloat16", quantization=setting, load_format="dummy")
    assert dummy.engine.ready.memory["weights"] == quantized.engine.ready.memory["weights"]
    assert len(dummy.run(PROMPTS[:2], PARAMS)) == 2


@pytest.mark.parametrize("form", ["awq", "gptq-act-order", "nf4", "fp8-channel", "packed"])
def test_dummy_weights_have_the_form_of_the_checkpoint(form: str, tmp_path: Path) -> None:
    folder = folder_of(form, tmp_path)
    real, dummy = InProcessEngine(folder, dtype="bfloat16"), InProcessEngine(folder, dtype="bfloat16", load_format="dummy")
    assert dummy.engine.ready.memory["weights"] == pytest.approx(real.engine.ready.memory["weights"], rel=0.2)
    assert len(dummy.run(PROMPTS[:2], PARAMS)) == 2


def test_a_quantized_checkpoint_can_be_dequantized(tmp_path: Path) -> None:
    folder = folder_of("awq", tmp_path)
    packed, plain = InProcessEngine(folder), InProcessEngine(folder, quantization="none")
    assert packed.engine.ready.memory["weights"] < plain.engine.ready.memory["weights"]
    assert packed.run(PROMPTS[:3], PARAMS) == plain.run(PROMPTS[:3], PARAMS)
    assert "quantization awq: as the checkpoint has it" in packed.engine.ready.notes
    assert "quantization none: the checkpoint's awq weights are dequantized" in plain.engine.ready.notes


def test_what_contradicts_the_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quantization gptq was asked for, but the model has weights quantized with awq"):
        InProcessEngine(folder_of("awq", tmp_path), quantization="gptq")
    with pytest.raises(ConfigError, match="plain weights"):
        InProcessEngine("llama", quantization="awq")
    with pytest.raises(ConfigError, match="quantization"):
        InProcessEngine("llama", quantization="int3")


def test_a_malformed_section_is_an_error_not_a_default(tmp_path: Path) -> None:
    folder = Path(folder_of("awq", tmp_path))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["group_size"] = "32"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="group_size must be a whole number"):
        InProcessEngine(str(folder))
