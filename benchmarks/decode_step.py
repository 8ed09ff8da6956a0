"""A whole decode step of a decoder built from kernels alone: what an engine on top of them can reach, and what each fusion is worth.

    python benchmarks/decode_step.py --model 8b --rows 1,8,32,64,256 --length 640

Ways: `library` multiplies with cuBLAS, `chosen` with whichever kernel the table in `ops.triton.linear` names, `fused` folds norms,
activation and residual addition into the products where that is offered. Each is captured in a CUDA graph and replayed; the floor is the
bytes of weights and cache over the measured copy rate. Random weights; the ways' logits are compared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
from kernel_cases import MODELS, Shape, paged, randn

from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.attention.triton import TritonAttention
from trivium.ops.batch import ForwardBatch
from trivium.ops.triton import activation, launch, linear, norm, qkv
from trivium.ops.triton.inputs import prepare_decode_inputs

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Layer:
    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor
    norms: tuple[Tensor, Tensor]


class Network:
    """Weights of a model's shape, and its decode step in several ways."""

    def __init__(self, shape: Shape) -> None:
        sizes = shape.weights()

        def weight(name: str) -> Tensor:
            n, k, _ = sizes[name]
            return randn(n, k, scale=k**-0.5)

        def scale() -> Tensor:
            return randn(shape.hidden, scale=0.1) + 1

        self.args: AttentionArgs = shape.args
        self.layers = [Layer(weight("qkv"), weight("output"), weight("gate_up"), weight("down"), (scale(), scale())) for _ in range(shape.layers)]
        self.head, self.embedding, self.norm = weight("head"), randn(1024, shape.hidden), scale()
        angles = torch.arange(8192, device="cuda")[:, None] * 500000.0 ** -(torch.arange(0, shape.dim, 2, device="cuda") / shape.dim)
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
        self.attention = TritonAttention(torch.device("cuda"))

    def num_bytes(self) -> int:
        return self.head.nbytes + sum(w.nbytes for layer in self.layers for w in (layer.qkv, layer.output, layer.gate_up, layer.down))

    def attend(self, packed: Tensor, batch: ForwardBatch, cache: KVCache) -> Tensor:
        query = qkv.prepare_qkv(packed, self.cos_sin, batch.positions, batch.slots, cache, self.args, rotary_dim=self.args.head_dim)
        return self.attention.forward(query, cache, batch, self.args).flatten(1)

    def plain(self, batch: ForwardBatch, caches: list[KVCache], product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        residual = self.embedding[batch.input_ids]
        hidden: Tensor | None = None
        for layer, cache in zip(self.layers, caches, strict=True):
            if hidden is None:
                hidden = norm.rms_norm(residual, layer.norms[0], EPS)
            else:
                hidden, residual = norm.add_rms_norm(hidden, residual, layer.norms[0], EPS)
            hidden = product(self.attend(product(hidden, layer.qkv), batch, cache), layer.output)
            hidden, residual = norm.add_rms_norm(hidden, residual, layer.norms[1], EPS)
            hidden = product(activation.act_and_mul(product(hidden, layer.gate_up), "silu"), layer.down)
        assert hidden is not None
        return product(norm.add_rms_norm(hidden, residual, self.norm, EPS)[0], self.head)

    def fused(self, batch: ForwardBatch, caches: list[KVCache]) -> Tensor:
        residual = self.embedding[batch.input_ids]
        for layer, cache in zip(self.layers, caches, strict=True):
            attended = self.attend(self.normed(residual, layer.norms[0], layer.qkv), batch, cache)
            residual = self.added(attended, layer.output, residual)
            residual = self.added(self.normed(residual, layer.norms[1], layer.gate_up, "silu"), layer.down, residual)
        return self.normed(residual, self.norm, self.head)

    @staticmethod
    def normed(residual: Tensor, scale: Tensor, weight: Tensor, kind: str = "") -> Tensor:
        fused = linear.norm_linear(residual, scale, EPS, 0.0, weight, None, kind=kind)
        if fused is not None:
            return fused
        x = norm.rms_norm(residual, scale, EPS)
        if not kind:
            return linear.linear(x, weight)
        fused = linear.gated_linear(x, weight, None, kind)
        return fused if fused is not None else activation.act_and_mul(linear.linear(x, weight), kind)

    @staticmethod
    def added(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        fused = linear.linear_add(x, weight, None, residual)
        return fused if fused is not None else residual.add_(linear.linear(x, weight))


def replay_ms(step: Callable[[], Tensor]) -> tuple[float, Tensor]:
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    graph.replay()
    times: list[float] = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(3):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 3)
    return statistics.median(times), out.float()


def measure(network: Network, shape: Shape, rows: int, length: int, block_size: int, copy_rate: float) -> str:
    one, tables, _ = paged(shape, [length] * rows, block_size, 1)
    assert one[0].value is not None
    caches = one + [KVCache(one[0].key.clone(), one[0].value.clone()) for _ in range(shape.layers - 1)]
    row_ids = torch.arange(rows, device="cuda")
    positions = torch.full((rows,), length - 1, device="cuda")
    last_tokens = torch.randint(0, 1024, (rows,), dtype=torch.int32, device="cuda")

    def batch() -> ForwardBatch:
        inputs = prepare_decode_inputs(row_ids, positions, last_tokens, tables, block_size)
        made = ForwardBatch(
            input_ids=inputs.input_ids,
            positions=inputs.positions,
            slots=inputs.slots,
            block_tables=inputs.block_tables,
            query_starts=row_ids,
            seq_lens=inputs.seq_lens,
            logits_indices=row_ids,
            num_decodes=rows,
            max_query_len=1,
            max_seq_len=8192,
            block_size=block_size,
        )
        network.attention.plan(made)
        return made

    ways: dict[str, Callable[[], Tensor]] = {
        "library": lambda: network.plain(batch(), caches, functional.linear),
        "chosen": lambda: network.plain(batch(), caches, linear.linear),
        "fused": lambda: network.fused(batch(), caches),
    }
    times: dict[str, float] = {}
    logits: dict[str, Tensor] = {}
    for name, step in ways.items():
        times[name], logits[name] = replay_ms(step)
    has_pdl = launch._has_pdl
    launch._has_pdl = lambda index: False
    times["fused, no PDL"], _ = replay_ms(ways["fused"])
    launch._has_pdl = has_pdl
    errors = [((logits[name] - logits["library"]).norm() / logits["library"].norm()).item() for name in ("chosen", "fused")]
    floor = (network.num_bytes() + rows * length * shape.kv_heads * shape.dim * 4 * shape.layers) / copy_rate * 1e3
    figures = "  ".join(f"{name} {value:7.3f}" for name, value in times.items())
    return f"rows {rows:4d} len {length:5d} bs {block_size:3d}  ms: {figures}  floor {floor:6.3f}  errors {errors[0]:.1e} {errors[1]:.1e}"


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="8b")
    parser.add_argument("--rows", default="1,2,4,8,16,32,64,128,256")
    parser.add_argument("--length", type=int, default=640)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--copy-rate", type=float, default=4.3e12, help="bytes per second that the floor assumes")
    options = parser.parse_args()
    torch.manual_seed(0)
    shape = MODELS[options.model]
    network = Network(shape)
    lines = [measure(network, shape, int(rows), options.length, options.block_size, options.copy_rate) for rows in options.rows.split(",")]
    print(options.model, torch.cuda.get_device_name())
    print("\n".join(lines))


if __name__ == "__main__":
    main()
