"""What a GPU engine does before it says that it is ready, so that no request pays for it: kernels compiled, libraries loaded, on all paths."""

from __future__ import annotations

import torch

from trivium.engine.graphs import DecodeGraphs
from trivium.engine.memory import prompt_step
from trivium.engine.resolve import ResolvedConfig
from trivium.engine.runner import Runner

DRY_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Batch sizes among which every variant of a decode kernel occurs."""
DRY_PROMPTS = (8, 64, 512)
WARM_PROMPTS = (8, 64, 128, 256, 512, 1024, 2048, 4096)
"""Tokens of prefill steps: different enough for every variant of a kernel, and for the products that the library picks by size."""


@torch.inference_mode()
def compile_kernels(runner: Runner, resolved: ResolvedConfig, *, with_graphs: bool) -> None:
    """Compile side by side what prefill and decode steps launch; nothing to do where compiled kernels are found on disk."""
    from trivium.ops.triton.launch import compile_ahead

    sizes = [size for size in DRY_BUCKETS if size <= resolved.max_num_seqs] if with_graphs else []
    graphs = make_graphs(runner, resolved, sizes) if sizes else None
    with compile_ahead():
        for num_tokens in DRY_PROMPTS:
            for cached in _cached(resolved):
                runner.launch(prompt_step(resolved, num_tokens, cached=cached))
        if graphs is not None:
            for bucket in sizes:
                graphs.run_dry(bucket)
    torch.cuda.synchronize()
    runner.rows.last_tokens.zero_()  # nothing computed them


@torch.inference_mode()
def warm_prompts(runner: Runner, resolved: ResolvedConfig) -> None:
    """Run prefill steps of all sizes once: a kernel's first launch loads it, which takes longer than the step."""
    for num_tokens in WARM_PROMPTS:
        for cached in _cached(resolved):
            if num_tokens <= resolved.max_num_batched_tokens:
                runner.launch(prompt_step(resolved, num_tokens, cached=cached)).result()


def _cached(resolved: ResolvedConfig) -> tuple[int, ...]:
    """Lengths of cached prefixes to try: prompts with one take other kernels than those without."""
    return (0, 16) if resolved.max_model_len > 32 else (0,)


def make_graphs(runner: Runner, resolved: ResolvedConfig, buckets: list[int]) -> DecodeGraphs:
    return DecodeGraphs(
        runner.model, runner.caches, runner.attention, runner.rows, runner.sampler, buckets=buckets, max_model_len=resolved.max_model_len
    )
