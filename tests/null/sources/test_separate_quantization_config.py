"""Files beside config.json in which old checkpoints say how they are quantized."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trivium.sources import resolve

GPTQ = {"bits": 4, "group_size": 128, "desc_act": True}


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("quantize_config.json", GPTQ, {"quant_method": "gptq", **GPTQ}),
        (
            "quantize_config.json",
            {"bits": 4, "group_size": 128, "version": "GEMM"},
            {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM"},
        ),
        (
            "quant_config.json",
            {"w_bit": 4, "q_group_size": 64, "zero_point": True},
            {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True},
        ),
    ],
)
def test_the_section_is_made_of_the_file(tmp_path: Path, file: str, content: dict[str, Any], expected: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    assert "quantization_config" not in resolve(str(tmp_path)).config
    (tmp_path / file).write_text(json.dumps(content))
    assert resolve(str(tmp_path)).config["quantization_config"] == expected
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    assert resolve(str(tmp_path)).config["quantization_config"] == {"quant_method": "fp8"}
