"""What a GPU engine does before it says that it is ready, so that no request pays for it: kernels compiled, libraries loaded, on all paths."""

from __future__ import annotations

from typing import Any, Final

import torch

from trivium.engine.graphs import DecodeGraphs
from trivium.engine.memory import prompt_step
from trivium.engine.mixed import MixedGraphs, MixedShape, mixed_shapes
from trivium.engine.resolve import ResolvedConfig
from trivium.engine.runner import Runner
from trivium.ops.sampling.grammar_mask import mask_words

DRY_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Batch sizes among which every variant of a decode kernel occurs."""
DRY_PROMPTS: Final = (4, 64, 512, 2048)
"""Tokens of a prompt, short to long, among which every variant of a prefill kernel occurs."""
WARM_PROMPTS: Final = (8, 128, 1024, 4096)
"""Tokens of prefill steps launched kernel by kernel; captured graphs warm all sizes between."""


@torch.inference_mode()
def compile_kernels(runner: Runner, resolved: ResolvedConfig, *, with_graphs: bool) -> None:
    """Compile side by side what steps launch; nothing to do where compiled kernels are found on disk."""
    from trivium.ops.triton.launch import compile_ahead

    sizes = [size for size in DRY_BUCKETS if size <= resolved.max_num_seqs] if with_graphs else []
    graphs = make_graphs(runner, resolved, sizes, pool=None) if sizes else None
    shapes = mixed_shapes(resolved.max_num_seqs, resolved.max_num_batched_tokens) if with_graphs else []
    mixed = make_mixed_graphs(runner, resolved, shapes[:: max(1, len(shapes) // 3)], pool=None)
    with compile_ahead():
        for num_tokens in DRY_PROMPTS:
            for cached in _cached(resolved):
                runner.launch(prompt_step(resolved, num_tokens, cached=cached))
        if graphs is not None:
            for bucket in sizes:
                graphs.run_dry(bucket)
        if mixed is not None:
            mixed.run_dry(mixed.shapes)
        _compile_sampling(runner)
    torch.cuda.synchronize()
    runner.rows.last_tokens.zero_()  # nothing computed them


def _compile_sampling(runner: Runner) -> None:
    """The sampler's kernels for logits of steps with prompts, which are float32: with and without filters, and the rare ones."""
    from trivium.ops.sampling import triton_grammar_mask, triton_logprobs, triton_penalties

    sampler = runner.sampler
    logits = torch.zeros(8, sampler.vocab_size, dtype=torch.float32, device=runner.device)
    rows = torch.full((8,), sampler.padding_row, dtype=torch.int64, device=runner.device)
    for is_filtered in (False, True):
        sampler.sample_simple(logits, rows, is_filtered=is_filtered)
    triton_penalties.apply_penalties(logits, sampler.table, rows)
    triton_penalties.count_sampled(sampler.table, rows, rows)
    triton_logprobs.normalize(logits, rows)
    masks = torch.zeros(8, mask_words(sampler.vocab_size + 1), dtype=torch.int32, device=runner.device)
    triton_grammar_mask.apply_grammar_mask(logits, torch.zeros_like(rows), masks)


@torch.inference_mode()
def warm_prompts(runner: Runner, resolved: ResolvedConfig) -> None:
    """Run prefill steps of several sizes once: a kernel's first launch loads it, which takes longer than the step."""
    for num_tokens in WARM_PROMPTS:
        for cached in _cached(resolved):
            if num_tokens <= resolved.max_num_batched_tokens:
                runner.launch(prompt_step(resolved, num_tokens, cached=cached)).result()


def _cached(resolved: ResolvedConfig) -> tuple[int, ...]:
    """Lengths of cached prefixes to try: prompts with one take other kernels than those without."""
    return (0, 16) if resolved.max_model_len > 32 else (0,)


def make_graphs(runner: Runner, resolved: ResolvedConfig, buckets: list[int], *, pool: Any) -> DecodeGraphs:
    return DecodeGraphs(
        runner.model, runner.caches, runner.attention, runner.rows, runner.sampler, buckets=buckets, max_model_len=resolved.max_model_len, pool=pool
    )


def make_mixed_graphs(runner: Runner, resolved: ResolvedConfig, shapes: list[MixedShape], *, pool: Any) -> MixedGraphs | None:
    """None where steps with prompts can't be captured: latent attention (its kernel wants each token's row), or no shape to capture."""
    if not shapes or any(cache.value is None for cache in runner.caches):
        return None
    return MixedGraphs(runner.model, runner.caches, runner.attention, runner.rows, shapes=shapes, max_model_len=resolved.max_model_len, pool=pool)
