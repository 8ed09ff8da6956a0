"""In bfloat16 our logits are no further from float32's than transformers' own bfloat16."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from helpers_checkpoints import BY_NAME, VOCAB, Checkpoint, checkpoint
from helpers_harness import PagedHarness
from torch import Tensor

from trivium.arch import ModelSpec

# Experts are left out: one router decision that falls the other way outweighs all rounding, in either implementation.
NAMES = ["llama", "llama3", "llama-bias", "llama-yarn", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3-long"]


def bfloat16_logits_of_transformers(point: Checkpoint, tokens: list[int]) -> Tensor:
    model = copy.deepcopy(point.reference).to(torch.bfloat16)
    for buffer, original in zip(model.model.rotary_emb.buffers(), point.reference.model.rotary_emb.buffers(), strict=True):
        buffer.data = original.data.clone()  # as from_pretrained has it: frequencies stay float32
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["reference", "auto-fast"])
def test_bfloat16_is_as_close_to_float32_as_transformers(name: str, backend: str) -> None:
    point, generator = checkpoint(name), random.Random(2)
    tokens = [generator.randrange(VOCAB) for _ in range(200)]
    expected = point.logits(tokens)
    spec = ModelSpec.from_config(point.config, max_model_len=BY_NAME[name].max_model_len)
    harness = PagedHarness(spec, point.tensors, backend=backend.removesuffix("-fast"), dtype=torch.bfloat16)
    ours = (harness.logits(tokens) - expected).abs().mean()
    theirs = (bfloat16_logits_of_transformers(point, tokens) - expected).abs().mean()
    assert ours <= theirs
