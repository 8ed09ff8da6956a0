"""Blocks of .gguf files kept packed stand for the numbers that dequantizing gives, whole and in shares."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from trivium.arch.quantization import GGUF, GGUF_PACKED, GgmlScheme
from trivium.weights.dequantize import DEQUANTIZERS, dequantize
from trivium.weights.gguf import GGUFSource
from trivium.weights.layouts.base import Share
from trivium.weights.layouts.ggml import BLOCK_BYTES, BLOCK_WEIGHTS, GgmlLayout, row_bytes
from trivium.weights.quantized import arrange

ALL_TYPES = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
SHARES = [
    Share.whole(6, 512),
    Share(6, 512, ((1, 3), (4, 6)), (0, 512), torch.device("cpu")),
    Share(6, 512, ((0, 6),), (256, 512), torch.device("cpu")),
    Share(6, 512, ((0, 6),), (100, 230), torch.device("cpu")),
]


def blocks(type_name: str, num_out: int, num_in: int) -> torch.Tensor:
    """Random bytes with scales that are numbers; some of them 0."""
    torch.manual_seed(1)
    raw = torch.randint(0, 256, (num_out * num_in // BLOCK_WEIGHTS[type_name], BLOCK_BYTES[type_name]), dtype=torch.uint8)
    halves = {"Q4_0": (0,), "Q8_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[type_name]
    for at in halves:
        scales = (torch.rand(len(raw)) * 0.1 + 0.01).half()
        scales[::5] = 0
        raw[:, at : at + 2] = scales.view(torch.uint8).view(-1, 2)
    return raw.view(num_out, -1)


@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_every_type_is_read_exactly(type_name: str) -> None:
    assert type_name in DEQUANTIZERS
    raw = blocks(type_name, 6, 512)
    expected = dequantize(raw.flatten(), type_name).view(6, 512)
    layout = GgmlLayout(type_name)
    assert layout.tensors(6, 512)[0].shape == tuple(raw.shape) == (6, row_bytes(type_name, 512))
    for share in SHARES:
        rows = torch.cat([torch.arange(start, end) for start, end in share.rows])
        found = layout.read({"weight": raw}, share)
        torch.testing.assert_close(found.dequantize(), expected[rows][:, share.columns[0] : share.columns[1]], rtol=1e-5, atol=1e-6)
        assert arrange(found).group % 16 == 0


def test_a_source_gives_blocks_of_what_it_was_told_to_keep(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    weight = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    for name, kind in (("blk.0.attn_q", "Q8_0"), ("blk.0.attn_v", "Q4_1"), ("blk.0.ffn_up", "Q4_0")):
        quantized = gguf.quants.quantize(weight, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(f"{name}.weight", quantized, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plain, packed = GGUFSource([tmp_path / "m.gguf"]), GGUFSource([tmp_path / "m.gguf"])
    for part in ("self_attn.q_proj", "mlp.up_proj"):  # rows of q are permuted
        name = f"model.layers.0.{part}.weight"
        layout = packed.keep_packed(name, GgmlScheme().packed)
        assert layout is not None and packed.shape(name) == layout.tensors(64, 256)[0].shape
        found = layout.read({"weight": packed.load(name)}, Share.whole(64, 256))
        torch.testing.assert_close(found.dequantize(), plain.load(name))
    name = "model.layers.0.self_attn.v_proj.weight"
    assert packed.keep_packed(name, GgmlScheme().packed) is None
    assert torch.equal(packed.load(name), plain.load(name))
    assert packed.keep_packed(name, ALL_TYPES) is not None


def test_which_types_stay_packed() -> None:
    """Q4_1 only where the setting says gguf."""
    kept = [scheme.packed for spec in (GGUF, GGUF_PACKED) if isinstance(scheme := spec.scheme("x"), GgmlScheme)]
    assert {*kept[0], "Q4_1"} == {*kept[1]} == {*ALL_TYPES} and "Q4_1" not in kept[0]
