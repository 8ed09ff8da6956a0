"""The CPU kernels beside torch's own ways, and beside what the machine allows.

    python benchmarks/cpu_kernels.py                     # SmolLM2-135M's shapes
    python benchmarks/cpu_kernels.py --hidden 2048 --intermediate 8192 --heads 32 --kv-heads 8 --layers 4

Every linear is measured with a set of weights larger than the caches, as a model's step meets it. Figures are the least and the median of many short
runs in turn; on a shared machine the least is the one to trust, and its distance to the median is the noise.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from trivium.arch.spec import ModelSpec
from trivium.models import build_model
from trivium.ops.attention import create_attention_backend
from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.batch import ForwardBatch
from trivium.ops.cpu import library
from trivium.ops.cpu.attention import paged_attention
from trivium.ops.cpu.linear import PackedLinear
from trivium.ops.dispatch import references_only

BLOCK_SIZE = 16
Attend = Callable[[Tensor, KVCache, ForwardBatch, AttentionArgs], Tensor]


@dataclass(frozen=True, slots=True)
class Timing:
    least_ms: float
    median_ms: float

    def __str__(self) -> str:
        return f"{self.least_ms:9.3f} {self.median_ms:9.3f}"


def in_turn(ways: dict[str, Callable[[], object]], seconds: float) -> dict[str, Timing]:
    """Each way once, then each again, until the time is up."""
    for run in ways.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 3:
        for name, run in ways.items():
            begin = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - begin) * 1e3)
    return {name: Timing(min(values), statistics.median(values)) for name, values in times.items()}


def show(title: str, timings: dict[str, Timing], note: str = "") -> None:
    first = next(iter(timings.values()))
    for index, (name, timing) in enumerate(timings.items()):
        ratio = "" if index == 0 else f"  {timing.least_ms / first.least_ms:5.2f}x"
        print(f"{title if index == 0 else '':28} {name:22} {timing}{ratio}{'  ' + note if index == 0 else ''}", flush=True)


def bandwidth_gb_s(seconds: float) -> float:
    """What summing up more than the caches hold reaches."""
    data = torch.ones(64 << 20)
    return data.nbytes / in_turn({"sum": data.sum}, seconds)["sum"].least_ms / 1e6


def shapes(args: argparse.Namespace) -> list[tuple[int, int]]:
    """(outputs, inputs) of a layer's products."""
    query, kv = args.heads * args.head_dim, args.kv_heads * args.head_dim
    return [(query + 2 * kv, args.hidden), (args.hidden, query), (2 * args.intermediate, args.hidden), (args.hidden, args.intermediate)]


def bench_linears(args: argparse.Namespace, floor_gb_s: float) -> None:
    weights = [torch.randn(shape).bfloat16() for _ in range(args.layers) for shape in shapes(args)]
    packed = [PackedLinear(weight) for weight in weights]
    scales = [weight.abs().amax(dim=1).float() / 127 for weight in weights]
    integers = [PackedLinear((weight.float() / scale[:, None]).round().to(torch.int8), scale) for weight, scale in zip(weights, scales, strict=True)]
    size = sum(weight.nbytes for weight in weights)
    for rows in args.rows:
        inputs = {k: torch.randn(rows, k).bfloat16() for k in {weight.shape[1] for weight in weights}}
        reordered = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]

        def ours(inputs: dict[int, Tensor] = inputs) -> None:
            for weight in packed:
                weight(inputs[weight.num_in])

        def int8(inputs: dict[int, Tensor] = inputs) -> None:
            for weight in integers:
                weight(inputs[weight.num_in])

        def plain(inputs: dict[int, Tensor] = inputs) -> None:
            for weight in weights:
                functional.linear(inputs[weight.shape[1]], weight)

        def onednn(inputs: dict[int, Tensor] = inputs, reordered: Sequence[Tensor] = reordered) -> None:
            for weight, again in zip(weights, reordered, strict=True):
                torch.ops.mkldnn._linear_pointwise(inputs[weight.shape[1]], again, None, "none", [], "")

        ways = {"ours bf16": ours, "ours int8": int8, "oneDNN, packed": onednn, "functional.linear": plain}
        products = rows * size / 2 / 1e9
        timings = in_turn(ways, args.seconds)
        best = timings["ours bf16"].least_ms
        note = f"{size / best / 1e6:.0f} GB/s of weights ({floor_gb_s:.0f} can be read), {products / best * 1e3:.0f} G products/s"
        show(f"linears, {rows} rows", timings, note)


def make_batch(rows: int, queries: int, length: int) -> tuple[ForwardBatch, int]:
    blocks = -(-length // BLOCK_SIZE)
    tables = (torch.randperm(rows * blocks) + 1).to(torch.int32).view(rows, blocks)
    positions = torch.arange(length - queries, length).repeat(rows)
    row_of = torch.arange(rows).repeat_interleave(queries)
    starts = torch.arange(rows + 1, dtype=torch.int32) * queries
    batch = ForwardBatch(
        input_ids=torch.randint(0, 1000, (rows * queries,), dtype=torch.int32),
        positions=positions,
        slots=tables[row_of, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
        block_tables=tables,
        query_starts=starts,
        seq_lens=torch.full((rows,), length, dtype=torch.int32),
        logits_indices=(starts[1:] - 1).long(),
        num_decodes=rows if queries == 1 else 0,
        max_query_len=queries,
        max_seq_len=length,
        block_size=BLOCK_SIZE,
        query_starts_cpu=starts.tolist(),
        seq_lens_cpu=[length] * rows,
    )
    return batch, rows * blocks + 1


def gather_and_sdpa(query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs) -> Tensor:
    """What one writes with torch alone: all rows have one length here, so that they fit in one call."""
    assert cache.value is not None
    rows = batch.num_rows
    key, value = (half[batch.block_tables.long()].transpose(1, 2).flatten(2, 3)[:, :, : batch.max_seq_len] for half in (cache.key, cache.value))
    grouped = query.view(rows, batch.max_query_len, args.num_heads, args.head_dim).transpose(1, 2)
    return functional.scaled_dot_product_attention(grouped, key, value, is_causal=batch.max_query_len > 1, enable_gqa=True)


def bench_attention(args: argparse.Namespace) -> None:
    attention = AttentionArgs(args.heads, args.kv_heads, args.head_dim, args.head_dim**-0.5)
    for rows, queries, length in [(1, 1, 160), (32, 1, 160), (32, 1, 1024), (1, 1, 4096), (1, 128, 128), (8, 128, 128), (1, 1024, 1024)]:
        batch, num_blocks = make_batch(rows, queries, length)
        shape = (num_blocks, args.kv_heads, BLOCK_SIZE, args.head_dim)
        caches = [KVCache(*(torch.randn(shape).bfloat16() for _ in range(2))) for _ in range(4)]  # in turn, as layers do
        query = torch.randn(rows * queries, args.heads, args.head_dim).bfloat16()

        def layers(attend: Attend, query: Tensor = query, caches: list[KVCache] = caches, batch: ForwardBatch = batch) -> None:
            for cache in caches:
                attend(query, cache, batch, attention)

        ways = {"ours": partial(layers, paged_attention), "gather and SDPA": partial(layers, gather_and_sdpa)}
        show(f"attention, {rows} x {queries} of {length}", in_turn(ways, args.seconds / 2), "4 layers")


def bench_steps(args: argparse.Namespace) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": args.hidden,
        "intermediate_size": args.intermediate,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.kv_heads,
        "head_dim": args.head_dim,
        "vocab_size": args.vocab,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e5,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
    }
    spec = ModelSpec.from_config(config)
    model = build_model(spec, dtype=torch.bfloat16, device="cpu", attention=create_attention_backend("cpu", "cpu"), source=None)
    fused = model.fused
    with references_only("cpu"):
        reference = build_model(spec, dtype=torch.bfloat16, device="cpu", attention=create_attention_backend("reference", "cpu"), source=None)
    for rows, queries, length in [(1, 1, 160), (8, 1, 160), (32, 1, 160), (32, 1, 1024), (1, 128, 128), (4, 128, 128)]:
        batch, num_blocks = make_batch(rows, queries, length)
        shape = (num_blocks, args.kv_heads, BLOCK_SIZE, args.head_dim)
        caches = [KVCache(*(torch.empty(shape, dtype=torch.bfloat16) for _ in range(2))) for _ in range(args.layers)]

        def one_call(batch: ForwardBatch = batch, caches: list[KVCache] = caches) -> None:
            model.fused = fused
            model.compute_logits(model.forward(batch, caches).index_select(0, batch.logits_indices))

        def layer_by_layer(batch: ForwardBatch = batch, caches: list[KVCache] = caches) -> None:
            model.fused = None
            model.compute_logits(model.forward(batch, caches).index_select(0, batch.logits_indices))

        def torch_alone(batch: ForwardBatch = batch, caches: list[KVCache] = caches) -> None:
            with references_only("cpu"):
                reference.compute_logits(reference.forward(batch, caches).index_select(0, batch.logits_indices))

        ways = {"one call": one_call, "layer by layer": layer_by_layer, "plain torch": torch_alone}
        show(f"step, {rows} x {queries} at {length}", in_turn(ways, args.seconds), "with logits")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"hidden": 576, "intermediate": 1536, "heads": 9, "kv-heads": 3, "head-dim": 64, "layers": 30, "vocab": 49152}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 32, 128])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=2.0, help="for each comparison")
    parser.add_argument("--only", choices=["linears", "attention", "steps"], help="one part alone")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = library.kernels()
    if found is None:
        raise SystemExit("The CPU kernels are not available here.")
    floor = bandwidth_gb_s(args.seconds / 4)
    print(f"{found.features}, {args.threads} threads, {floor:.0f} GB/s read; milliseconds: least, median, and how many times the first way's least")
    if args.only in (None, "linears"):
        bench_linears(args, floor)
    if args.only in (None, "attention"):
        bench_attention(args)
    if args.only in (None, "steps"):
        bench_steps(args)


if __name__ == "__main__":
    main()
