from __future__ import annotations

import dataclasses

import pytest
from helpers_engine import InProcessEngine

from trivium.engine.memory import largest_step, prompt_step
from trivium.engine.warmup import WARM_PROMPTS, warm_prompts
from trivium.types import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def test_warming_up_changes_nothing() -> None:
    engine = InProcessEngine("llama", max_model_len=64, enable_prefix_caching=False)  # it runs on rows whose old blocks it may overwrite
    prompts = [[5, 6, 7], [9] * 20]
    before = engine.run(prompts, GREEDY)
    runner = engine.engine.executor._runner
    ready = engine.engine.ready
    resolved = resolved_like(ready.max_model_len, ready.max_num_seqs)
    warm_prompts(runner, resolved)
    assert engine.run(prompts, GREEDY) == before
    engine.close()


@dataclasses.dataclass
class resolved_like:
    """The part of `ResolvedConfig` that these functions read."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int = 8192


@pytest.mark.parametrize("max_model_len", [16, 33, 100, 4096])
@pytest.mark.parametrize("cached", [0, 16])
def test_plans_keep_to_the_limits(max_model_len: int, cached: int) -> None:
    if cached >= max_model_len:
        return
    limits = resolved_like(max_model_len, 8)
    for plan in [largest_step(limits), *(prompt_step(limits, size, cached=cached) for size in WARM_PROMPTS)]:
        assert len(plan.rows) <= limits.max_num_seqs
        assert plan.total_tokens == len(plan.token_ids) <= limits.max_num_batched_tokens
        assert all(computed + count <= max_model_len for computed, count in zip(plan.num_computed, plan.num_tokens, strict=True))
        decodes = [count == 1 for count in plan.num_tokens]
        assert decodes == sorted(decodes, reverse=True), "rows with a single token come first"
