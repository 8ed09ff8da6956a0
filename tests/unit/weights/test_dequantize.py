"""ggml's block formats against the gguf package's own numpy code, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trivium.sources.gguf_file import BLOCK_LAYOUT
from trivium.weights.dequantize import CHUNK_BLOCKS, DEQUANTIZERS, dequantize

gguf = pytest.importorskip("gguf")
LAYOUT = {name: (block, size) for name, block, size in BLOCK_LAYOUT.values()}


def random_blocks(name: str, count: int, seed: int = 0) -> np.ndarray:
    """Random bytes, with scales that are neither NaN nor infinite."""
    _, size = LAYOUT[name]
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for start in {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}[name]:
        scales = rng.normal(0, 1, count).astype(np.float16)
        raw[:, start : start + 2] = scales.view(np.uint8).reshape(count, 2)
    return raw


@pytest.mark.parametrize("name", sorted(DEQUANTIZERS))
@pytest.mark.parametrize("count", [1, 7, CHUNK_BLOCKS + 3])
def test_any_blocks_decode_as_in_the_gguf_package(name, count):
    raw = random_blocks(name, count)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]).reshape(-1)
    found = dequantize(torch.from_numpy(raw.reshape(-1)), name)
    assert found.dtype is torch.float32
    assert found.shape == (count * LAYOUT[name][0],)
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_quantized_values_come_back_close(name):
    values = np.random.default_rng(1).normal(0, 1, (4, 256)).astype(np.float32)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    found = dequantize(torch.from_numpy(raw.reshape(-1)), name).view(4, 256)
    assert (found - torch.from_numpy(values)).abs().max() < (0.05 if name == "Q8_0" else 0.5)


def test_no_blocks_are_no_weights():
    assert dequantize(torch.empty(0, dtype=torch.uint8), "Q4_1").shape == (0,)
