"""The shapes at which kernels are measured, and for each the inputs, the variants and the reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from kernel_timing import Case
from torch import Tensor
from torch.nn import functional

from trivium.ops.activation import act_and_mul_reference
from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.moe import fused_moe_reference
from trivium.ops.norm import add_rms_norm_reference
from trivium.ops.qkv import prepare_qkv_reference
from trivium.ops.triton import activation, bulk, decode, matvec, mla, moe, norm, prefill, qkv, skinny

BF16 = torch.bfloat16
L2_BYTES = 200e6
"""Inputs are repeated until they take this much, so that none is found in the cache."""


@dataclass(frozen=True, slots=True)
class Shape:
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    ff: int
    vocab: int
    layers: int

    @property
    def args(self) -> AttentionArgs:
        return AttentionArgs(self.heads, self.kv_heads, self.dim, self.dim**-0.5)

    def weights(self) -> dict[str, tuple[int, int, str]]:
        """Name → (N, K, activation)."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.dim, self.hidden, ""),
            "output": (self.hidden, self.heads * self.dim, ""),
            "gate_up": (2 * self.ff, self.hidden, "silu"),
            "down": (self.hidden, self.ff, ""),
            "head": (self.vocab, self.hidden, ""),
        }


MODELS = {"8b": Shape(4096, 32, 8, 128, 14336, 128256, 32), "0.5b": Shape(896, 14, 2, 64, 4864, 151936, 24)}
ARRIVALS: list[Tensor] = []


def randn(*shape: int, scale: float = 1.0, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="cuda").normal_(0.0, scale)


def rotation(num_bytes: float) -> int:
    return max(1, min(24, int(L2_BYTES // num_bytes) + 1))


def arrivals() -> Tensor:
    if not ARRIVALS:
        ARRIVALS.append(torch.zeros(1 << 17, dtype=torch.int32, device="cuda"))
    return ARRIVALS[0]


# --- sections: each yields cases ------------------------------------------------------------------------------------------------------


def elementwise_cases(name: str, shape: Shape, *, quick: bool) -> Iterator[Case]:
    for tokens in (1, 32, 256, 8192):
        count = rotation(tokens * shape.hidden * 8)
        x, residual = [randn(tokens, shape.hidden) for _ in range(count)], [randn(tokens, shape.hidden) for _ in range(count)]
        weight = randn(shape.hidden)
        yield Case(
            f"{name} add_rms_norm T={tokens}",
            {"default": lambda i, x=x, r=residual, w=weight: norm.add_rms_norm(x[i], r[i], w, 1e-5)[0]},
            lambda x=x, r=residual, w=weight: add_rms_norm_reference(x[0].float(), r[0].float(), w.float(), 1e-5)[0],
            lambda i, x=x, r=residual, w=weight: functional.rms_norm(x[i] + r[i], (w.shape[0],), w, 1e-5),
            bytes=tokens * shape.hidden * 2 * 4,
            rotations=count,
        )
        count = rotation(tokens * shape.ff * 6)
        gate_up = [randn(tokens, 2 * shape.ff) for _ in range(count)]
        yield Case(
            f"{name} silu_and_mul T={tokens}",
            {"default": lambda i, x=gate_up: activation.act_and_mul(x[i], "silu")},
            lambda x=gate_up: act_and_mul_reference(x[0].float(), "silu"),
            lambda i, x=gate_up: act_and_mul_reference(x[i], "silu"),
            bytes=tokens * shape.ff * 6,
            rotations=count,
        )
        yield qkv_case(name, shape, tokens)


def qkv_case(name: str, shape: Shape, tokens: int) -> Case:
    args, width = shape.args, (shape.heads + 2 * shape.kv_heads) * shape.dim
    count = rotation(tokens * width * 4)
    packed = [randn(tokens, width) for _ in range(count)]
    cache = KVCache(
        randn(tokens * count // 16 + 2, args.num_kv_heads, 16, args.head_dim), randn(tokens * count // 16 + 2, args.num_kv_heads, 16, args.head_dim)
    )
    angles = torch.rand(8192, shape.dim // 2, device="cuda") * 6.28
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    positions = torch.arange(tokens, device="cuda") % 8192
    slots = [torch.arange(tokens, device="cuda") + i * tokens + 16 for i in range(count)]

    def ours(i: int) -> Tensor:
        return qkv.prepare_qkv(packed[i], cos_sin, positions, slots[i], cache, args, rotary_dim=shape.dim)

    def plain(i: int) -> Tensor:
        return prepare_qkv_reference(packed[i], cos_sin, positions, slots[i], cache, args, rotary_dim=shape.dim)

    return Case(f"{name} prepare_qkv T={tokens}", {"default": ours}, lambda: plain(0), plain, bytes=tokens * width * 4, rotations=count)


def paged(shape: Shape, lens: list[int], block_size: int, layers: int) -> tuple[list[KVCache], Tensor, Tensor]:
    per_row = [-(-n // block_size) for n in lens]
    total = sum(per_row) + 1
    order = (torch.randperm(total - 1, device="cuda") + 1).to(torch.int32)
    tables = torch.zeros(len(lens), max(per_row), dtype=torch.int32, device="cuda")
    at = 0
    for row, n in enumerate(per_row):
        tables[row, :n] = order[at : at + n]
        at += n
    size = (total, shape.kv_heads, block_size, shape.dim)
    return [KVCache(randn(*size), randn(*size)) for _ in range(layers)], tables, torch.tensor(lens, dtype=torch.int32, device="cuda")


def gathered(cache: Tensor, table: Tensor, length: int) -> Tensor:
    return cache[table.long()].transpose(0, 1).flatten(1, 2)[None, :, :length].float()


def decode_cases(name: str, shape: Shape, *, quick: bool) -> Iterator[Case]:
    batches = [
        ("1x512", [512]),
        ("1x8192", [8192]),
        ("32x640", [640] * 32),
        ("64x640", [640] * 64),
        ("256x640", [640] * 256),
        ("256 ragged", [64 + 5 * i for i in range(256)]),
    ]
    batches += [("1000x576", [576] * 1000), ("128x2112", [2112] * 128)] if name == "8b" else [("1000x192", [192] * 1000)]
    for (label, lens), block_size in itertools.product(batches, (16, 64)):
        if block_size == 64 and label in ("1x512", "256 ragged"):
            continue
        num_bytes = sum(lens) * shape.kv_heads * shape.dim * 4
        count = rotation(num_bytes)
        caches, tables, seq_lens = paged(shape, lens, block_size, count)
        query = randn(len(lens), shape.heads, shape.dim)

        def expected(query: Tensor = query, cache: KVCache = caches[0], tables: Tensor = tables, lens: list[int] = lens) -> Tensor:
            assert cache.value is not None
            rows = [
                functional.scaled_dot_product_attention(
                    query[r][None, :, None].float(), gathered(cache.key, tables[r], n), gathered(cache.value, tables[r], n), enable_gqa=True
                )[0, :, 0]
                for r, n in enumerate(lens)
            ]
            return torch.stack(rows)

        variants: dict[str, Callable[[int], Tensor]] = {}
        default = decode.config_for(shape.args, 2)
        configs = [default]
        if not quick:
            sweep = [(64, 4, 2, 3), (64, 4, 2, 6), (64, 4, 3, 2), (64, 4, 3, 3), (64, 4, 3, 4), (64, 4, 4, 2), (64, 4, 4, 4)]
            sweep += [(32, 4, 3, 6), (32, 4, 4, 4), (32, 2, 4, 8), (128, 4, 2, 2), (128, 4, 2, 3), (128, 8, 2, 2), (128, 8, 3, 2)]
            configs += [decode.DecodeConfig(tile=t, num_warps=w, num_stages=s, items_per_sm=i) for t, w, s, i in sweep]
        for config in configs:
            plan = decode.schedule(seq_lens, shape.args, config)

            def run(i: int, config=config, plan=plan, query=query, caches=caches, tables=tables, seq_lens=seq_lens) -> Tensor:
                return decode.paged_decode(query, caches[i], tables, seq_lens, shape.args, plan, arrivals(), config)

            variants[
                ("default " if config is default else "") + f"tile={config.tile} w={config.num_warps} s={config.num_stages} i={config.items_per_sm}"
            ] = run
        yield Case(f"{name} decode {label} bs={block_size}", variants, expected, bytes=num_bytes, rotations=count)


def prefill_cases(name: str, shape: Shape, *, quick: bool) -> Iterator[Case]:
    for (label, query_lens, prefix), block_size in itertools.product(
        [("16x512", [512] * 16, 0), ("4x2048", [2048] * 4, 0), ("1x8192", [8192], 0), ("1x128+4096", [128], 4096), ("64x8+500", [8] * 64, 500)],
        (16, 64),
    ):
        lens = [n + prefix for n in query_lens]
        caches, tables, seq_lens = paged(shape, lens, block_size, 1)
        starts = torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32, device="cuda")
        tokens = sum(query_lens)
        query = randn(tokens, shape.heads, shape.dim)
        pairs = sum(q * (s - q) + q * (q + 1) / 2 for q, s in zip(query_lens, lens, strict=True))

        def dense(cache=caches[0], tables=tables, lens=lens) -> list[tuple[Tensor, Tensor]]:
            return [(gathered(cache.key, tables[r], n), gathered(cache.value, tables[r], n)) for r, n in enumerate(lens)]

        def expected(query=query, query_lens=query_lens, lens=lens, dense=dense) -> Tensor:
            parts, at = [], 0
            for (k, v), q_len, n in zip(dense(), query_lens, lens, strict=True):
                q = query[at : at + q_len].transpose(0, 1)[None].float()
                group = shape.heads // shape.kv_heads
                mask = torch.ones(q_len, n, dtype=torch.bool, device="cuda").tril(n - q_len)
                heads = [  # one at a time: the scores of all of them would not fit
                    functional.scaled_dot_product_attention(q[:, h : h + 1], k[:, h // group, None], v[:, h // group, None], attn_mask=mask)
                    for h in range(shape.heads)
                ]
                parts.append(torch.cat(heads, 1)[0].transpose(0, 1))
                at += q_len
            return torch.cat(parts)

        reference = None
        if prefix == 0:
            rows = len(query_lens)
            dense_query = query.view(rows, -1, shape.heads, shape.dim).transpose(1, 2)
            k, v = (randn(rows, shape.kv_heads, query_lens[0], shape.dim) for _ in range(2))

            def reference(i: int, q=dense_query, k=k, v=v) -> Tensor:
                return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        variants: dict[str, Callable[[int], Tensor]] = {}
        default = prefill.config_for(shape.args, tokens, len(query_lens), max(query_lens), 2)
        configs = [default]
        if not quick:
            sweep = [
                (128, 64, 8, 3),
                (128, 64, 8, 2),
                (128, 128, 8, 2),
                (128, 64, 4, 3),
                (128, 64, 4, 2),
                (64, 64, 4, 3),
                (64, 64, 4, 2),
                (64, 128, 4, 2),
            ]
            configs += [prefill.PrefillConfig(*values) for values in sweep]
        for config in configs:

            def run(i: int, config=config, query=query, cache=caches[0], tables=tables, starts=starts, seq_lens=seq_lens) -> Tensor:
                return prefill.paged_prefill(query, cache, tables, starts, seq_lens, shape.args, config)

            variants[("default " if config is default else "") + f"m={config.block_m} n={config.tile} w={config.num_warps} s={config.num_stages}"] = (
                run
            )
        yield Case(f"{name} prefill {label} bs={block_size}", variants, expected, reference, flops=4 * shape.heads * shape.dim * pairs)


def product_inputs(shape: Shape, op: str, m: int) -> tuple[list[Tensor], Tensor, str, Callable[[int], Tensor], Callable[[], Tensor]]:
    n, k, kind = shape.weights()[op]
    weights = [randn(n, k, scale=k**-0.5) for _ in range(rotation(n * k * 2))]
    x = functional.rms_norm(randn(m, k), (k,))  # so that a norm in front changes nothing

    def reference(i: int) -> Tensor:
        y = functional.linear(x, weights[i])
        return activation.act_and_mul(y, kind) if kind else y

    def expected() -> Tensor:
        y = x.float() @ weights[0].float().T
        return act_and_mul_reference(y, kind) if kind else y

    return weights, x, kind, reference, expected


def matvec_cases(name: str, shape: Shape, *, quick: bool) -> Iterator[Case]:
    for op, m in itertools.product(shape.weights(), (1, 2, 4)):
        weights, x, kind, reference, expected = product_inputs(shape, op, m)
        default = matvec.config_for(m, x.shape[1], is_gated=bool(kind))
        configs = [default]
        if not quick:
            configs += [matvec.MatvecConfig(*values) for values in [(1, 4), (1, 8), (2, 4), (2, 8), (4, 8), (4, 4), (1, 16)]]
        variants: dict[str, Callable[[int], Tensor]] = {}
        for config in configs:

            def run(i: int, x=x, weights=weights, kind=kind, config=config) -> Tensor:
                return matvec.matvec(x, weights[i], kind=kind, config=config)

            variants[("default " if config is default else "") + f"rows={config.rows} w={config.num_warps}"] = run
        if op in ("qkv", "gate_up"):
            scale = torch.ones(x.shape[1], dtype=BF16, device="cuda")

            def run_normed(i: int, x=x, weights=weights, kind=kind, scale=scale) -> Tensor:
                return matvec.matvec(x, weights[i], kind=kind, norm=scale)

            variants["default with norm"] = run_normed
        yield Case(f"{name} matvec {op} M={m}", variants, expected, reference, bytes=weights[0].nbytes, rotations=len(weights), tolerance=2e-2)


def skinny_cases(name: str, shape: Shape, *, quick: bool) -> Iterator[Case]:
    sweep = [
        (64, 64, 4, 6, 2),
        (64, 128, 4, 4, 2),
        (64, 128, 4, 6, 1),
        (64, 64, 4, 4, 3),
        (128, 64, 4, 4, 2),
        (128, 64, 8, 4, 2),
        (128, 128, 8, 4, 1),
        (256, 64, 8, 4, 1),
    ]
    for op, m in itertools.product(shape.weights(), (4, 16, 32, 64, 128)):
        weights, x, kind, reference, expected = product_inputs(shape, op, m)
        default = skinny.config_for(m, weights[0].shape[0], x.shape[1], is_gated=bool(kind))
        configs = [default]
        if not quick:
            configs += [skinny.SkinnyConfig(*values) for values in sweep]
            configs += [skinny.SkinnyConfig(64, 128, 4, 4, 2, prefetch) for prefetch in (0, 8)]
        variants: dict[str, Callable[[int], Tensor]] = {}
        for config in configs:

            def run(i: int, x=x, weights=weights, kind=kind, config=config) -> Tensor:
                return skinny.skinny(x, weights[i], None, arrivals(), kind=kind, config=config)

            label = f"n={config.block_n} k={config.block_k} w={config.num_warps} s={config.num_stages} p={config.programs_per_sm} f={config.prefetch}"
            variants[("default " if config is default else "") + label] = run
        yield Case(f"{name} skinny {op} M={m}", variants, expected, reference, bytes=weights[0].nbytes, rotations=len(weights))


def bulk_cases(name: str, shape: Shape, *, quick: bool) -> Iterator[Case]:
    sweep = [  # rows of W, step along K, ring, warps, programs a multiprocessor
        (64, 64, 200 << 10, 4, 1),
        (64, 64, 200 << 10, 4, 2),
        (64, 128, 105 << 10, 4, 1),
        (64, 128, 160 << 10, 4, 1),
        (64, 128, 200 << 10, 4, 1),
        (128, 64, 200 << 10, 4, 1),
        (128, 128, 200 << 10, 8, 1),
    ]
    for op, m in itertools.product(shape.weights(), (16, 32, 64, 128)):
        weights, x, kind, reference, expected = product_inputs(shape, op, m)
        default = bulk.config_for(m)
        configs = [default]
        if not quick:
            configs += [config for values in sweep if (config := bulk.BulkConfig(*values)) != default]
        variants: dict[str, Callable[[int], Tensor]] = {}
        for config in configs:
            if bool(kind) and config.block_n * max(m, 16) > 128 * 128:
                continue  # too many registers

            def run(i: int, x=x, weights=weights, kind=kind, config=config) -> Tensor:
                return bulk.bulk(x, weights[i], None, arrivals(), kind=kind, config=config)

            label = f"n={config.block_n} k={config.block_k} r={config.ring_bytes >> 10} w={config.num_warps} p={config.programs_per_sm}"
            variants[("default " if config is default else "") + label] = run
        yield Case(f"{name} bulk {op} M={m}", variants, expected, reference, bytes=weights[0].nbytes, rotations=len(weights))


def moe_cases(name: str, shape: Shape, *, quick: bool) -> Iterator[Case]:
    """Qwen3-30B-A3B's experts beside the small model, Mixtral-8x7B's beside the large one."""
    hidden, width, experts, top_k = (4096, 14336, 8, 2) if name == "8b" else (2048, 768, 128, 8)
    gate_up, down = randn(experts, 2 * width, hidden, scale=hidden**-0.5), randn(experts, hidden, width, scale=width**-0.5)
    for tokens in (1, 32, 256, 4096):
        x = randn(tokens, hidden)
        weights, chosen = torch.rand(tokens, experts, device="cuda").topk(top_k, dim=-1)
        ids = chosen.int()
        used = ids.unique().numel()
        variants: dict[str, Callable[[int], Tensor]] = {}
        default = moe.config_for(tokens * top_k, experts)
        sweep = (
            []
            if quick
            else [(16, 64, 128, 4, 4), (16, 128, 64, 4, 4), (64, 128, 64, 4, 3), (128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 256, 64, 8, 3)]
        )
        for config in [default, *(moe.MoeConfig(*values) for values in sweep)]:
            if config.block_m > 16 and tokens * top_k // experts < config.block_m // 4:
                continue

            def run(i: int, x=x, weights=weights, ids=ids, config=config) -> Tensor:
                return moe.fused_moe(x, gate_up, down, weights, ids, "silu", config=config)

            label = f"m={config.block_m} n={config.block_n} k={config.block_k} w={config.num_warps} s={config.num_stages}"
            variants[("default " if config is default else "") + label] = run

        def expected(x=x, weights=weights, ids=ids) -> Tensor:
            return fused_moe_reference(x.float(), gate_up.float(), down.float(), weights, ids, "silu")

        work = {"bytes": used * 6.0 * width * hidden} if tokens <= 256 else {"flops": 6.0 * tokens * top_k * width * hidden}
        yield Case(f"{name} moe {experts}x{width} T={tokens}", variants, expected, **work)


def mla_cases(name: str, shape: Shape, *, quick: bool) -> Iterator[Case]:
    """DeepSeek-V2-Lite's 16 heads beside the small model, V3's 128 beside the large one."""
    heads, latent, rope, block_size = (128 if name == "8b" else 16), 512, 64, 64
    args = AttentionArgs(heads, 1, latent + rope, 0.1)
    for batch, length in ((1, 4096), (32, 2048), (256, 1024)):
        per_row = length // block_size
        tables = (torch.randperm(batch * per_row, device="cuda").to(torch.int32) + 1).view(batch, per_row)
        caches = [randn(batch * per_row + 1, block_size, latent + rope) for _ in range(rotation(batch * length * 1152))]
        query, rows = randn(batch, heads, latent + rope), torch.arange(batch, dtype=torch.int32, device="cuda")
        lens = torch.full((batch,), length, dtype=torch.int32, device="cuda")
        default = mla.config_for(heads, latent)
        sweep = [] if quick else [(32, 16, 4, 3), (64, 16, 4, 2), (32, 64, 8, 2), (64, 64, 8, 2), (32, 32, 4, 2)]
        variants: dict[str, Callable[[int], Tensor]] = {}
        for config in [default, *(mla.MlaConfig(*values) for values in sweep)]:
            lanes = -(-heads // config.block_h)
            plan = decode.schedule(lens, args, config.decode, lanes=lanes)

            def run(i: int, config=config, plan=plan, query=query, caches=caches, tables=tables, rows=rows, lens=lens) -> Tensor:
                return mla.paged_mla(query, caches[i], tables, rows, lens, args, latent, plan, arrivals(), config)

            label = f"n={config.tile} h={config.block_h} w={config.num_warps} s={config.num_stages}"
            variants[("default " if config is default else "") + label] = run

        def expected(query=query, cache=caches[0], tables=tables, length=length) -> Tensor:
            out = []
            for row in range(tables.shape[0]):
                kv = cache[tables[row].long()].flatten(0, 1)[:length].float()
                out.append(((query[row].float() @ kv.T) * args.scale).softmax(-1) @ kv[:, :latent])
            return torch.stack(out)

        yield Case(f"{name} mla {heads} heads {batch}x{length}", variants, expected, bytes=batch * length * 1152.0, rotations=len(caches))


SECTIONS: dict[str, Callable[..., Iterator[Case]]] = {
    "elementwise": elementwise_cases,
    "decode": decode_cases,
    "prefill": prefill_cases,
    "matvec": matvec_cases,
    "skinny": skinny_cases,
    "bulk": bulk_cases,
    "moe": moe_cases,
    "mla": mla_cases,
}
