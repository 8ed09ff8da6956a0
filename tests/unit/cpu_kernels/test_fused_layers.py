"""A decoder's layers as one call against the same layers one op at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers_cpu_kernels import make_batch

from trivium.arch.spec import ModelSpec
from trivium.models import build_model
from trivium.models.decoder import Decoder
from trivium.ops.attention import create_attention_backend
from trivium.ops.attention.base import KVCache
from trivium.ops.batch import ForwardBatch
from trivium.ops.cpu import library

pytestmark = pytest.mark.skipif(library.kernels() is None, reason="no C++ compiler")

COMMON = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 50,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
GEMMA = {**COMMON, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16, "sliding_window": 20}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "qwen2, biases": {**COMMON, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3, QK norm": {**COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "mistral, window": {**COMMON, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 17},
    "gemma2": {
        **GEMMA,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 30.0,
    },
}
BATCHES = {
    "one": [(1, 40)],
    "decodes": [(1, 5), (1, 33), (1, 64), (1, 100), (1, 1), (1, 17), (1, 18)],
    "prefill": [(90, 90)],
    "mixed": [(1, 70), (1, 2), (30, 30), (9, 150)],
    "long": [(1, 1200)],
    "many decodes": [(1, 20 + row) for row in range(40)],
}


class RandomSource:
    """Every tensor that is asked for, wide enough that all of a layer matters. Checked by nobody: `slots` says the shapes."""

    def __init__(self, model: Decoder) -> None:
        torch.manual_seed(5)
        for _, layer in model.walk():
            for slot in layer.slots():
                slot.load(torch.randn(slot.shape) * (0.3 if len(slot.shape) == 2 else 1.0))


def make_model(config: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    monkeypatch.setattr("trivium.models.build.fill_dummy", lambda model: (RandomSource(model), [layer.finish() for _, layer in model.walk()]))
    backend = create_attention_backend("cpu", "cpu")
    return build_model(ModelSpec.from_config(config, max_model_len=2048), dtype=dtype, device="cpu", attention=backend, source=None)


def make_step(rows: list[tuple[int, int]], block_size: int = 16) -> tuple[ForwardBatch, int]:
    batch, num_blocks = make_batch(rows, block_size)
    positions = [torch.arange(seq_len - queries, seq_len) for queries, seq_len in rows]
    slots = [batch.block_tables[row][at // block_size].long() * block_size + at % block_size for row, at in enumerate(positions)]
    batch.positions, batch.slots = torch.cat(positions), torch.cat(slots)
    batch.input_ids = torch.randint(0, 50, batch.positions.shape, dtype=torch.int32)
    return batch, num_blocks


def run(model: Decoder, batch: ForwardBatch, num_blocks: int, dtype: torch.dtype) -> tuple[torch.Tensor, list[KVCache]]:
    generator = torch.Generator().manual_seed(9)
    shape = (num_blocks, 2, batch.block_size, 16)
    caches = [KVCache(*(torch.randn(shape, generator=generator).to(dtype) for _ in range(2))) for _ in range(3)]
    model.layers[0].attention.backend.plan(batch)
    return model.forward(batch, caches), caches


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_fused_layers_equal_the_layers(config, rows, dtype, threads, monkeypatch):
    model = make_model(config, dtype, monkeypatch)
    batch, num_blocks = make_step(rows)
    assert model.fused is not None
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        fused, fused_caches = run(model, batch, num_blocks, dtype)
        model.fused = None
        plain, plain_caches = run(model, batch, num_blocks, dtype)
    finally:
        torch.set_num_threads(before)
    if dtype == torch.float32:
        assert torch.equal(fused, plain)
        for one, other in zip(fused_caches, plain_caches, strict=True):
            assert torch.equal(one.key, other.key) and torch.equal(one.value, other.value)
    else:
        assert (fused - plain).float().pow(2).mean().sqrt() < 0.03 * plain.float().pow(2).mean().sqrt()
        assert torch.equal(fused_caches[0].key, plain_caches[0].key)


def test_a_row_gets_the_same_bits_alone_and_in_a_batch(monkeypatch):
    model = make_model(CONFIGS["llama"], torch.bfloat16, monkeypatch)
    batch, num_blocks = make_step([(1, 5), (1, 33), (30, 64), (1, 100)])
    together, caches = run(model, batch, num_blocks, torch.bfloat16)
    for row in range(4):
        first, last = batch.query_starts_cpu[row], batch.query_starts_cpu[row + 1]
        alone = ForwardBatch(
            input_ids=batch.input_ids[first:last],
            positions=batch.positions[first:last],
            slots=batch.slots[first:last],
            block_tables=batch.block_tables[row : row + 1],
            query_starts=torch.tensor([0, last - first], dtype=torch.int32),
            seq_lens=batch.seq_lens[row : row + 1],
            logits_indices=batch.logits_indices,
            num_decodes=0,
            max_query_len=last - first,
            max_seq_len=100,
            block_size=16,
        )
        assert torch.equal(model.forward(alone, caches), together[first:last])


def test_indices_outside_their_tables_are_refused(monkeypatch):
    model = make_model(CONFIGS["llama"], torch.float32, monkeypatch)
    for spoil in (
        lambda batch: batch.block_tables.fill_(9999),
        lambda batch: batch.slots.fill_(99999),
        lambda batch: batch.positions.fill_(2048),
        lambda batch: batch.seq_lens.fill_(1 << 20),
    ):
        batch, num_blocks = make_step([(1, 5), (3, 9)])
        spoil(batch)
        with pytest.raises(AssertionError):
            run(model, batch, num_blocks, torch.float32)


def test_what_the_call_does_not_do_is_left_to_the_layers(monkeypatch):
    odd = {**CONFIGS["llama"], "intermediate_size": 40}
    model = make_model(odd, torch.float32, monkeypatch)
    assert model.fused is None
    batch, num_blocks = make_step([(1, 5)])
    assert run(model, batch, num_blocks, torch.float32)[0].isfinite().all()
    reference = build_model(
        ModelSpec.from_config(CONFIGS["llama"], max_model_len=64),
        dtype=torch.float32,
        device="cpu",
        attention=create_attention_backend("reference", "cpu"),
        source=None,
    )
    assert reference.fused is None
