"""One rank of an engine: its weights, its share of the KV cache and the runner over both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch

from trivium.arch import ModelSpec
from trivium.arch.quantization import quantization_note, resolve_quantization
from trivium.config import EngineConfig
from trivium.engine.device import available_host_memory, detect_device
from trivium.engine.grammar_compiler import GrammarCompiler
from trivium.engine.graphs import graph_buckets
from trivium.engine.invariance import attention_name, batch_invariance_note, check_batch_invariance, keep_rows_apart
from trivium.engine.memory import allocate_caches, block_bytes, choose_num_blocks, measure_workspace
from trivium.engine.mixed import LARGEST, mixed_shapes
from trivium.engine.resolve import ResolvedConfig, resolve
from trivium.engine.rows import RowTable
from trivium.engine.runner import Runner
from trivium.engine.sampler import Sampler
from trivium.engine.warmup import compile_kernels, make_graphs, make_mixed_graphs, warm_prompts
from trivium.models import build_model
from trivium.ops.attention import create_attention_backend
from trivium.ops.collective import ParallelContext
from trivium.ops.dispatch import load_fast_paths
from trivium.protocol.messages import Progress
from trivium.sources import ModelFiles, resolve_for
from trivium.text import load_tokenizer
from trivium.weights import open_source

CPU_SHARE: Final = 4
"""A CPU's KV cache takes one part in this many of the memory that is free."""

Report = Callable[[Progress], None]


@dataclass(slots=True)
class RankRunner:
    """A rank that can run, and what it turned out to be."""

    runner: Runner
    spec: ModelSpec
    resolved: ResolvedConfig
    device: torch.device
    device_name: str
    num_blocks: int
    memory: dict[str, int]
    notes: list[str]
    grammars: GrammarCompiler | None = None


def build_rank(config: EngineConfig, parallel: ParallelContext, report: Report) -> RankRunner:
    """Raises `ConfigError`, `ModelLoadError`. All ranks must call it together: they agree on the number of blocks."""
    files = resolve_for(config.model)
    spec = ModelSpec.from_config(files.config, max_model_len=config.model.max_model_len)
    quantization = resolve_quantization(config.model.quantization, spec.quantization, is_gguf=files.kind == "gguf")
    notes = quantization_note(spec.quantization, quantization)
    spec = replace(spec, quantization=quantization or spec.quantization)
    device, info = detect_device(config, parallel.rank)
    resolved = resolve(config, spec, info, is_gguf=files.kind == "gguf")
    if device.type == "cpu":
        torch.set_num_threads(max(1, resolved.num_threads // parallel.size))
    dtype: torch.dtype = getattr(torch, resolved.dtype)
    attention = create_attention_backend(attention_name(config.attention_backend, wanted=config.batch_invariant, device_type=device.type), device)
    check_batch_invariance(wanted=config.batch_invariant, attention=attention, parallel=parallel)
    model = build_model(
        spec,
        dtype=dtype,
        device=device,
        parallel=parallel,
        attention=attention,
        source=None if config.model.load_format == "dummy" else open_source(files),
        progress=_throttled(report),
        dequantize=quantization is None,
    )
    if config.batch_invariant and device.type == "cuda":
        keep_rows_apart(model)
    invariance = batch_invariance_note(wanted=config.batch_invariant, device_type=device.type, attention=attention, parallel=parallel, model=model)
    memory = {"weights": model.memory_bytes()}
    grammars = _grammar_compiler(config, files, spec)
    sampler = Sampler(spec.vocab_size, resolved.max_num_seqs, device, config.model.seed, grammars, is_leader=parallel.rank == 0)
    rows = RowTable(resolved.max_num_seqs, resolved.max_blocks_per_seq, resolved.block_size, device)
    layers = [layer.shard(parallel.size) for layer in spec.kv_layers]
    cache_dtype: torch.dtype = getattr(torch, resolved.cache_dtype)
    runner = Runner(
        model=model,
        caches=allocate_caches(layers, 1, resolved.block_size, cache_dtype, device),
        attention=attention,
        sampler=sampler,
        rows=rows,
        device=device,
    )
    if device.type == "cuda":
        budget = _cache_budget(config, resolved, runner, memory, report)
    else:
        budget = available_host_memory() // CPU_SHARE // parallel.size
    num_blocks = parallel.minimum(choose_num_blocks(layers, config.cache, resolved, cache_dtype, budget))
    runner.caches = allocate_caches(layers, num_blocks, resolved.block_size, cache_dtype, device)
    memory["kv_cache"] = num_blocks * block_bytes(layers, resolved.block_size, cache_dtype)
    if device.type == "cuda" and _has_graphs(config, runner):
        _capture_graphs(runner, resolved, memory, report)
    return RankRunner(runner, spec, resolved, device, info.name, num_blocks, memory, [*resolved.notes, *notes, invariance], grammars)


def _grammar_compiler(config: EngineConfig, files: ModelFiles, spec: ModelSpec) -> GrammarCompiler | None:
    """None without a tokenizer."""
    settings = config.model
    if settings.skip_tokenizer_init:
        return None
    return GrammarCompiler(lambda: load_tokenizer(files, settings.tokenizer, hub=settings.hub), spec.vocab_size)


def _throttled(report: Report) -> Callable[[str, int, int], None]:
    """Loaders report every tensor; a person is served by one report in fifty."""
    shown = -1

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal shown
        step = 50 * done // total if total else done
        if step != shown:
            shown = step
            report(Progress(stage, done, total, "bytes"))

    return progress


def _cache_budget(config: EngineConfig, resolved: ResolvedConfig, runner: Runner, memory: dict[str, int], report: Report) -> int:
    with_graphs = _has_graphs(config, runner)
    report(Progress("compiling kernels", 0, 0))
    if load_fast_paths("cuda"):
        compile_kernels(runner, resolved, with_graphs=with_graphs)
    warm_prompts(runner, resolved)
    memory["workspace"] = measure_workspace(runner, resolved, runner.device)
    free, total = torch.cuda.mem_get_info(runner.device)
    reserve = _graph_reserve(resolved, runner, memory["workspace"]) if with_graphs else 0
    return int(total * config.cache.gpu_memory_utilization) - (total - free) - memory["workspace"] - reserve


def _has_graphs(config: EngineConfig, runner: Runner) -> bool:
    return not config.enforce_eager and runner.attention.is_capturable


def _capture_graphs(runner: Runner, resolved: ResolvedConfig, memory: dict[str, int], report: Report) -> None:
    before, _ = torch.cuda.mem_get_info(runner.device)
    pool = torch.cuda.graph_pool_handle()
    shapes = mixed_shapes(resolved.max_num_seqs, resolved.max_num_batched_tokens)
    mixed = make_mixed_graphs(runner, resolved, shapes, pool=pool)
    graphs = make_graphs(runner, resolved, graph_buckets(resolved.max_num_seqs), pool=pool)
    num_mixed = len(shapes) if mixed is not None else 0
    total = num_mixed + len(graphs.buckets)
    if mixed is not None:  # the larger ones first: the others fit in their memory
        mixed.capture_all(lambda done, _: report(Progress("capturing CUDA graphs", done, total, "graphs")))
    graphs.capture_all(lambda done, _: report(Progress("capturing CUDA graphs", num_mixed + done, total, "graphs")))
    runner.graphs, runner.mixed_graphs = graphs, mixed
    memory["graphs"] = before - torch.cuda.mem_get_info(runner.device)[0]


def _graph_reserve(resolved: ResolvedConfig, runner: Runner, workspace: int) -> int:
    """Bytes kept for graphs, which are captured after the cache exists: nodes of each, the largest step with prompts, and logits, as made and
    widened, of the largest without."""
    budget = resolved.max_num_batched_tokens
    num_graphs = len(graph_buckets(resolved.max_num_seqs)) + len(mixed_shapes(resolved.max_num_seqs, budget))
    logits = resolved.max_num_seqs * runner.sampler.vocab_size * torch.float32.itemsize
    return num_graphs * (12 << 20) + max(workspace * min(LARGEST, budget) // budget, logits) + logits
