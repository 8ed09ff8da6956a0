"""Every family against transformers on tiny, widely initialized float32 checkpoints: logits, greedy tokens, every way to batch."""

from __future__ import annotations

import random

import pytest
import torch
from helpers_checkpoints import BY_NAME, CASES, VOCAB, checkpoint
from helpers_harness import PagedHarness

from trivium.arch import ModelSpec

NAMES = [case.name for case in CASES]
LENGTHS = (1, 2, 7, 40, 130, 300)
TOLERANCE = 1e-4


def spec_of(name: str) -> ModelSpec:
    return ModelSpec.from_config(checkpoint(name).config, max_model_len=BY_NAME[name].max_model_len)


def harness_of(name: str, **options: object) -> PagedHarness:
    return PagedHarness(spec_of(name), checkpoint(name).tensors, **options)  # type: ignore[arg-type]


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(VOCAB) for _ in range(length)]


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(name: str) -> None:
    harness = harness_of(name)
    for length in LENGTHS:
        tokens = prompt(length, seed=length)
        expected = checkpoint(name).logits(tokens)
        assert_close(harness.logits(tokens), expected)
    assert expected.std() >= 1.0
    assert harness.model.compute_logits(torch.zeros(1, harness.model.spec.hidden_size)).dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
def test_logits_in_chunks_of_five_equal_transformers(name: str) -> None:
    tokens = prompt(300, seed=5)
    assert_close(harness_of(name, block_size=8).logits(tokens, chunk=5), checkpoint(name).logits(tokens))


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_equal_transformers(name: str) -> None:
    tokens = prompt(45, seed=3)
    expected = checkpoint(name).greedy(tokens, 32)
    assert harness_of(name, block_size=16).greedy([tokens], 32) == [expected]
    assert harness_of(name, block_size=64).greedy([tokens], 32, chunk=5) == [expected]


@pytest.mark.parametrize("name", NAMES)
def test_batch_of_seven_equals_each_alone(name: str) -> None:
    """Seven prompts of different lengths, prefilled in chunks while the earlier ones already decode."""
    prompts = [prompt(length, seed=length) for length in (1, 3, 8, 16, 31, 64, 90)]
    expected = [harness_of(name).greedy([tokens], 32)[0] for tokens in prompts]
    for block_size in (8, 16, 64):
        assert harness_of(name, block_size=block_size).greedy(prompts, 32, chunk=5) == expected


@pytest.mark.parametrize("name", NAMES)
def test_shared_prefix_blocks_serve_another_sequence(name: str) -> None:
    """A prefix hit: the second sequence starts on the first one's blocks with nothing of it computed again."""
    harness = harness_of(name, block_size=8)
    shared = prompt(48, seed=1)
    first = harness.add(shared + prompt(5, seed=2))
    harness.step([(first, len(first.tokens))])
    second = harness.add(shared + prompt(30, seed=4))
    second.blocks, second.num_computed = first.blocks[:6], 48
    logits = harness.step([(second, 30)])[0]
    assert_close(logits, checkpoint(name).logits(second.tokens)[48:])


@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral", "deepseek-v3"])
def test_padding_rows_change_nothing(name: str) -> None:
    tokens, logits = prompt(40), []
    for padding in (0, 5):
        harness = harness_of(name)
        sequence = harness.add(tokens)
        harness.step([(sequence, 39)])
        logits.append(harness.step([(sequence, 1)], padding=padding)[0])
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_fast_paths_and_best_attention_equal_transformers(name: str) -> None:
    """What "auto" chooses on this machine; where it has no compiled kernels, the reference again."""
    harness = harness_of(name, backend="auto")
    for length in (1, 40, 300):
        tokens = prompt(length, seed=length)
        assert_close(harness.logits(tokens), checkpoint(name).logits(tokens))
        assert_close(harness.logits(tokens, chunk=7), checkpoint(name).logits(tokens))
