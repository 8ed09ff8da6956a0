"""Packed experts and latent attention on the CPU against the torch references, each token alone and in company."""

from __future__ import annotations

import pytest
import torch
from helpers_cpu_kernels import make_batch
from torch import Tensor

from trivium.arch.spec import RoutingSpec
from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.attention.cpu import CPUAttention
from trivium.ops.attention.reference import ReferenceAttention
from trivium.ops.cpu import library
from trivium.ops.cpu.moe import try_pack_experts
from trivium.ops.moe import fused_moe_reference, select_experts_reference

pytestmark = pytest.mark.skipif(library.kernels() is None, reason="no C++ compiler")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def make_experts(dtype: torch.dtype, width: int, tokens: int) -> tuple[Tensor, ...]:
    """x, gate_up, down, weights, ids: seven experts of which one is never chosen."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, 48, generator=generator).to(dtype)
    gate_up = (torch.randn(7, 2 * width, 48, generator=generator) * 48**-0.5).to(dtype)
    down = (torch.randn(7, 48, width, generator=generator) * width**-0.5).to(dtype)
    scores = torch.rand(tokens, 7, generator=generator)
    scores[:, 3] = -1.0
    weights, ids = scores.topk(3)
    return x, gate_up, down, weights, ids.to(torch.int32)


@DTYPES
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", [32, 40, 64])
@pytest.mark.parametrize("tokens", [1, 2, 50])
def test_experts_equal_the_reference(dtype: torch.dtype, kind: str, width: int, tokens: int) -> None:
    x, gate_up, down, weights, ids = make_experts(dtype, width, tokens)
    packed = try_pack_experts(gate_up, down)
    assert packed is not None
    expected = fused_moe_reference(x.float(), gate_up.float(), down.float(), weights, ids, kind)
    assert (packed(x, weights, ids, kind).float() - expected).abs().max() <= TOLERANCE[dtype]
    assert packed.nbytes >= gate_up.nbytes + down.nbytes


@DTYPES
def test_a_token_gets_the_same_from_its_experts_in_any_company(dtype: torch.dtype) -> None:
    x, gate_up, down, weights, ids = make_experts(dtype, 40, 50)
    packed = try_pack_experts(gate_up, down)
    assert packed is not None
    assert packed.keeps_rows_apart
    whole = packed(x, weights, ids, "silu")
    for first, last in [(0, 1), (49, 50), (3, 10), (10, 47)]:
        part = slice(first, last)
        assert torch.equal(packed(x[part], weights[part], ids[part], "silu"), whole[part])


def test_types_the_kernels_do_not_take_are_not_packed() -> None:
    _, gate_up, down, _, _ = make_experts(torch.float16, 32, 1)
    assert try_pack_experts(gate_up, down) is None


@pytest.mark.parametrize("num_experts", [6, 13, 60])
def test_a_token_is_sent_to_the_same_experts_in_any_company(num_experts: int) -> None:
    """torch's sigmoid differs in the last bit between the middle and the end of a tensor."""
    spec = RoutingSpec(top_k=3, scoring="sigmoid", normalize=True)
    logits = torch.randn(100, num_experts, generator=torch.Generator().manual_seed(0))
    whole = select_experts_reference(logits, spec)
    for row in range(100):
        alone = select_experts_reference(logits[row : row + 1], spec)
        assert torch.equal(alone[0][0], whole[0][row])
        assert torch.equal(alone[1][0], whole[1][row])


ROWS = {
    "decodes": [(1, 5), (1, 17), (1, 100), (1, 64)],
    "mixed": [(1, 130), (40, 40), (7, 90)],
    "long": [(1, 700)],
}


@DTYPES
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize(("heads", "latent", "rope", "block_size"), [(4, 24, 8, 8), (16, 512, 64, 16), (128, 512, 64, 64), (3, 5, 2, 16)])
def test_latent_attention_equals_the_reference(
    dtype: torch.dtype, rows: list[tuple[int, int]], heads: int, latent: int, rope: int, block_size: int
) -> None:
    batch, num_blocks = make_batch(rows, block_size)
    generator, dim = torch.Generator().manual_seed(1), latent + rope
    query = torch.randn(sum(queries for queries, _ in rows), heads, dim, generator=generator).mul_(2).to(dtype)
    cache = KVCache(torch.randn(num_blocks, block_size, dim, generator=generator).to(dtype), None)
    args = AttentionArgs(num_heads=heads, num_kv_heads=1, head_dim=dim, scale=dim**-0.5)
    found = CPUAttention().forward_mla(query, cache, batch, args, latent)
    expected = ReferenceAttention().forward_mla(query.float(), KVCache(cache.key.float(), None), batch, args, latent)
    assert found.shape == (len(query), heads, latent)
    assert found.dtype == dtype
    assert (found.float() - expected).abs().max() <= TOLERANCE[dtype]


@DTYPES
def test_a_query_sees_the_same_in_any_company(dtype: torch.dtype) -> None:
    rows = [(1, 130), (40, 40), (7, 90)]
    batch, num_blocks = make_batch(rows, 16)
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(48, 4, 32, generator=generator).to(dtype)
    cache = KVCache(torch.randn(num_blocks, 16, 32, generator=generator).to(dtype), None)
    args = AttentionArgs(num_heads=4, num_kv_heads=1, head_dim=32, scale=0.2)
    whole = CPUAttention().forward_mla(query, cache, batch, args, 24)
    single, _ = make_batch([(1, 90)], 16)
    single.block_tables = batch.block_tables[2:3]
    assert torch.equal(CPUAttention().forward_mla(query[47:], cache, single, args, 24), whole[47:])
