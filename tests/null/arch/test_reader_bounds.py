"""Sizes that would become loops or tuples are bounded before anything is made of them."""

from __future__ import annotations

import pytest

from trivium.arch import ModelSpec
from trivium.errors import ModelLoadError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}


@pytest.mark.parametrize(("key", "value"), [("num_hidden_layers", 2**31), ("num_hidden_layers", 10_001), ("vocab_size", 2**40)])
def test_a_size_out_of_bounds_is_an_error_that_names_its_key(key: str, value: int) -> None:
    assert ModelSpec.from_config(LLAMA).num_layers == 2
    with pytest.raises(ModelLoadError, match=key):
        ModelSpec.from_config({**LLAMA, key: value})
