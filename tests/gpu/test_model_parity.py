"""Every family on a GPU against transformers on the CPU, with the references and with the kernels that "auto" chooses."""

from __future__ import annotations

import random

import pytest
import torch
from helpers_checkpoints import BY_NAME, CASES, VOCAB, checkpoint
from helpers_harness import PagedHarness

from trivium.arch import MlaSpec, ModelSpec
from trivium.ops.dispatch import references_only

NAMES = [case.name for case in CASES]


def spec_of(name: str) -> ModelSpec:
    return ModelSpec.from_config(checkpoint(name).config, max_model_len=BY_NAME[name].max_model_len)


def prompt(length: int) -> list[int]:
    generator = random.Random(length)
    return [generator.randrange(VOCAB) for _ in range(length)]


def is_mla(spec: ModelSpec) -> bool:
    return isinstance(spec.layers[0].attention, MlaSpec)


@pytest.mark.parametrize("name", NAMES)
def test_references_in_float32(name: str) -> None:
    with references_only("cuda"):
        harness = PagedHarness(spec_of(name), checkpoint(name).tensors, backend="reference", device="cuda")
        for length in (1, 40, 300):
            tokens = prompt(length)
            delta = (harness.logits(tokens, chunk=50).cpu() - checkpoint(name).logits(tokens)).abs().max()
            assert delta <= 1e-4


# In bfloat16 one router decision that falls the other way outweighs all rounding, so experts are compared in float32 alone.
ROUTED = ("mixtral", "qwen3-moe", "deepseek")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in NAMES for dtype in (torch.float32, torch.bfloat16) if dtype == torch.float32 or not name.startswith(ROUTED)],
)
def test_kernels_are_as_close_as_the_references(name: str, dtype: torch.dtype) -> None:
    """Against float32 logits of transformers; chunks, then one token at a time."""
    spec = spec_of(name)
    backend = "reference" if is_mla(spec) else "auto"
    tokens = prompt(300)
    expected = checkpoint(name).logits(tokens)
    errors = []
    for chunk in (300, 64):
        fast = PagedHarness(spec, checkpoint(name).tensors, backend=backend, device="cuda", dtype=dtype)
        errors.append((fast.logits(tokens, chunk=chunk).cpu() - expected).abs())
    sequence, parts = fast.add(tokens), []
    fast.step([(sequence, 250)])
    while sequence.num_computed < len(tokens):
        parts += fast.step([(sequence, 1)])
    errors.append((torch.cat(parts).cpu() - expected[250:]).abs())
    with references_only("cuda"):
        plain = PagedHarness(spec, checkpoint(name).tensors, backend="reference", device="cuda", dtype=dtype)
        reference = (plain.logits(tokens).cpu() - expected).abs()
    for error in errors:
        if dtype == torch.float32:
            assert error.max() <= 1e-3
        else:
            assert error.mean() <= 1.25 * reference.mean()
