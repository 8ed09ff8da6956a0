"""Where sampling defaults come from: `--generation-config auto|vllm|FOLDER`."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivium.backends.llm_params import sampling_defaults, suggested_config
from trivium.errors import ConfigError, ModelLoadError

OWN = {"temperature": 0.6, "top_p": 0.9}


def test_auto_takes_the_models_own_and_vllm_none() -> None:
    assert sampling_defaults(suggested_config("auto", OWN), {}) == OWN
    assert sampling_defaults(suggested_config("vllm", OWN), {}) == {}


def test_a_folder_brings_its_own(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"top_k": 7}')
    assert sampling_defaults(suggested_config(str(tmp_path), OWN), {"min_p": 0.1}) == {"top_k": 7, "min_p": 0.1}


def test_a_folder_without_the_file_and_a_broken_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        suggested_config(str(tmp_path), OWN)
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(ModelLoadError, match=r"generation_config\.json"):
        suggested_config(str(tmp_path), OWN)
