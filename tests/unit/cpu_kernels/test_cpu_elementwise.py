"""Norms, the gated activation, rotation and cache writes against the torch references."""

from __future__ import annotations

import pytest
import torch

from trivium.ops.activation import act_and_mul_reference
from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.cpu import elementwise, library
from trivium.ops.norm import rms_norm_reference
from trivium.ops.qkv import prepare_qkv_reference

pytestmark = pytest.mark.skipif(library.kernels() is None, reason="no C++ compiler")
DTYPES = [torch.float32, torch.bfloat16]


def near(ours: torch.Tensor, reference: torch.Tensor) -> None:
    tolerance = 3e-6 if ours.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(ours, reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 576), (3, 17), (0, 8), (5, 1), (2, 3, 64), (40, 2048)])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(dtype, shape, offset):
    torch.manual_seed(0)
    x, weight = torch.randn(shape).mul_(3).to(dtype), torch.randn(shape[-1]).to(dtype)
    near(elementwise.rms_norm(x, weight, 1e-5, offset=offset), rms_norm_reference(x, weight, 1e-5, offset=offset))


def test_rms_norm_of_rows_with_gaps_and_of_other_types():
    x, weight = torch.randn(4, 40), torch.randn(16)
    near(elementwise.rms_norm(x[:, :16], weight, 1e-5), rms_norm_reference(x[:, :16], weight, 1e-5))
    near(elementwise.rms_norm(x.view(4, 2, 20)[:, :, :16], weight, 1e-5), rms_norm_reference(x.view(4, 2, 20)[:, :, :16], weight, 1e-5))
    half = x[:, :16].to(torch.float16)
    assert torch.equal(elementwise.rms_norm(half, weight.half(), 1e-5), rms_norm_reference(half, weight.half(), 1e-5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 576), (7, 33), (0, 8)])
def test_add_rms_norm(dtype, shape):
    torch.manual_seed(0)
    x, residual = (torch.randn(shape).to(dtype) for _ in range(2))
    weight = torch.randn(shape[-1]).to(dtype)
    added = x + residual
    ours, new_residual = elementwise.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(new_residual, added)
    near(ours, rms_norm_reference(added, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("shape", [(1, 32), (5, 50), (3, 3072), (0, 4)])
def test_act_and_mul(dtype, kind, shape):
    torch.manual_seed(0)
    x = torch.randn(shape).mul_(4).to(dtype)
    near(elementwise.act_and_mul(x, kind), act_and_mul_reference(x.float(), kind).to(dtype))


def test_activations_at_their_ends():
    gate = torch.tensor([0.0, -0.0, 1e-8, -1e-8, 1e-3, 0.2, 0.3, 88.0, 100.0, -88.0, -100.0, -700.0, 1e30, -1e30, 1e37, -5.0])
    x = torch.cat((gate, torch.ones(16)))[None]
    for kind in ("silu", "gelu_tanh", "gelu"):
        torch.testing.assert_close(
            elementwise.act_and_mul(x, kind), act_and_mul_reference(x, kind), rtol=3e-6, atol=1e-30 if kind == "silu" else 1e-6
        )
    x[0, 3] = float("nan")
    assert elementwise.act_and_mul(x, "silu")[0, 3].isnan()


def rope_table(positions: int, rotary_dim: int) -> torch.Tensor:
    angles = torch.arange(positions)[:, None] / 50.0 ** (torch.arange(rotary_dim // 2) / max(rotary_dim // 2, 1))
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "rotary_dim", "interleaved", "norms", "offset"),
    [
        (9, 3, 64, 64, False, False, 0.0),
        (4, 1, 20, 10, False, False, 0.0),
        (4, 2, 32, 16, True, True, 0.0),
        (2, 2, 256, 256, False, True, 1.0),
        (3, 1, 7, 0, False, False, 0.0),
    ],
)
@pytest.mark.parametrize("block_size", [8, 64])
def test_prepare_qkv(dtype, heads, kv_heads, dim, rotary_dim, interleaved, norms, offset, block_size):
    torch.manual_seed(3)
    tokens, args = 13, AttentionArgs(heads, kv_heads, dim, 1.0)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim + 5).to(dtype)[:, :-5]  # rows with gaps
    positions = torch.randint(0, 40, (tokens,))
    slots = torch.randperm(4 * block_size - block_size)[:tokens] + block_size
    slots[2] = slots[7] = -1
    norm = {"q_norm": torch.randn(dim).to(dtype), "k_norm": torch.randn(dim).to(dtype), "norm_offset": offset} if norms else {}
    cos_sin = rope_table(40, rotary_dim) if rotary_dim else None
    results = []
    for function in (elementwise.prepare_qkv, prepare_qkv_reference):
        cache = KVCache(*(torch.zeros(4, kv_heads, block_size, dim, dtype=dtype) for _ in range(2)))
        query = function(qkv, cos_sin, positions, slots, cache, args, rotary_dim=rotary_dim, interleaved=interleaved, **norm)
        results.append((query, cache))
    (ours, our_cache), (reference, reference_cache) = results
    near(ours, reference)
    near(our_cache.key[1:], reference_cache.key[1:])  # block 0 belongs to nobody
    assert torch.equal(our_cache.value[1:], reference_cache.value[1:])
    assert not our_cache.key[0].any()


def test_prepare_qkv_refuses_slots_and_positions_outside():
    args = AttentionArgs(1, 1, 8, 1.0)
    cache = KVCache(torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8))
    qkv, table = torch.randn(1, 24), rope_table(4, 8)
    for position, slot in [(0, 16), (0, -2), (4, 3), (-1, 3)]:
        with pytest.raises(AssertionError):
            elementwise.prepare_qkv(qkv, table, torch.tensor([position]), torch.tensor([slot]), cache, args, rotary_dim=8)
    assert not cache.key.any()


def test_a_cache_of_another_type_goes_to_the_reference():
    args = AttentionArgs(1, 1, 8, 1.0)
    cache = KVCache(*(torch.zeros(2, 1, 8, 8, dtype=torch.bfloat16) for _ in range(2)))
    elementwise.prepare_qkv(torch.ones(1, 24), None, torch.tensor([0]), torch.tensor([9]), cache, args, rotary_dim=0)
    assert cache.key[1, 0, 1].eq(1).all() and cache.value[1, 0, 1].eq(1).all()
