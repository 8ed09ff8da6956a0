"""Two and four ranks over gloo give one rank's logits: sharded and replicated heads, split experts, latents, an odd vocabulary."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from helpers_checkpoints import VOCAB, checkpoint
from helpers_rank_processes import run_ranks
from safetensors.torch import load_file, save_file

CASES = (
    "llama-mqa",
    "llama3",
    "llama-bias",
    "qwen2",
    "gemma3",
    "phi3-long",
    "mixtral",
    "qwen3-moe",
    "deepseek-v2-lite",
    "deepseek-v3",
    "deepseek-v3-halves",
)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_together_equal_transformers(size: int, tmp_path: Path) -> None:
    generator = random.Random(11)
    tokens = [generator.randrange(VOCAB) for _ in range(130)]
    cases = tmp_path / "cases"
    for name in CASES:
        folder = cases / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(checkpoint(name).config))
        save_file(checkpoint(name).tensors, folder / "model.safetensors")
    (cases / "tokens.json").write_text(json.dumps(tokens))
    run_ranks(size, tmp_path / "store", cases)
    for name in CASES:
        expected = checkpoint(name).logits(tokens)
        logits = [load_file(cases / name / f"logits-{size}-{rank}.safetensors")["logits"] for rank in range(size)]
        assert all(torch.equal(logits[0], other) for other in logits[1:]), name
        assert (logits[0] - expected).abs().max() <= 1e-4, name
