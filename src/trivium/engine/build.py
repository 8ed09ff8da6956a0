"""Puts an engine together: the runner of rank 0, the processes of the other ranks, executor and scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from trivium.config import EngineConfig
from trivium.engine.executor import BroadcastExecutor, Executor, InlineExecutor, ThreadExecutor
from trivium.engine.grammar_compiler import GrammarCompiler
from trivium.engine.rank import RankRunner, build_rank
from trivium.engine.ranks import RankProcesses, join_ranks
from trivium.protocol.messages import EngineReady, Progress
from trivium.scheduling.scheduler import Scheduler, SchedulerLimits

Report = Callable[[Progress], None]


@dataclass(slots=True)
class Engine:
    scheduler: Scheduler
    executor: Executor
    ready: EngineReady
    grammars: GrammarCompiler | None = None
    tell_grammar: Callable[[str], None] | None = None
    """Has the other ranks compile a grammar, too."""


def build_engine(config: EngineConfig, report: Report) -> Engine:
    """Raises `ConfigError`, `ModelLoadError`, or `EngineDead` when another rank ends before it is ready."""
    begin = time.monotonic()
    size = config.parallel.tensor_parallel_size
    others = RankProcesses(config) if size > 1 else None
    parallel = join_ranks(config, 0, others.store_path if others else None)
    rank = build_rank(config, parallel, report)
    executor: Executor = ThreadExecutor(rank.runner) if rank.device.type == "cpu" else InlineExecutor(rank.runner)
    if others is not None:
        others.wait_until_ready()
        executor = BroadcastExecutor(executor, others)
    ready = _ready(rank)
    ready.load_s = time.monotonic() - begin
    return Engine(Scheduler(_limits(config, rank)), executor, ready, rank.grammars, others.prepare if others is not None else None)


def _limits(config: EngineConfig, rank: RankRunner) -> SchedulerLimits:
    resolved = rank.resolved
    return SchedulerLimits(
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        num_blocks=rank.num_blocks,
        block_size=resolved.block_size,
        watermark=config.cache.watermark,
        policy=config.scheduler.scheduling_policy,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        long_prefill_token_threshold=config.scheduler.long_prefill_token_threshold,
        prompt_spread=config.scheduler.prompt_spread,
    )


def _ready(rank: RankRunner) -> EngineReady:
    resolved = rank.resolved
    return EngineReady(
        vocab_size=rank.spec.vocab_size,
        max_model_len=resolved.max_model_len,
        max_num_seqs=resolved.max_num_seqs,
        num_blocks=rank.num_blocks - 1,
        block_size=resolved.block_size,
        device=rank.device_name,
        dtype=resolved.dtype,
        memory=rank.memory,
        notes=rank.notes,
    )
