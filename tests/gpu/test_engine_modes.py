"""The engine on a GPU: however a request is run, its tokens are the same, with graphs and without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers_checkpoints import checkpoint
from helpers_engine import InProcessEngine
from helpers_modes import GREEDY, MODES, SEEDED, make_prompts

from trivium.engine.mixed import MixedShape
from trivium.types import SamplingParams

FAMILIES = ["llama", "qwen2", "gemma2", "deepseek-v3"]
GPU_MODES: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True},
    "flash": {"attention_backend": "flash"},
    "reference": {"attention_backend": "reference"},
    **MODES,
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def test_tokens_are_the_same_in_every_mode(family: str) -> None:
    """In float32, where the order of sums moves logits by far less than they differ. Captured graphs serve decode steps and steps with prompts."""
    prompts = make_prompts()
    wanted = {"greedy": GREEDY, "nucleus": SEEDED[0], "top-k with penalty": SEEDED[1]}
    engine = InProcessEngine(family)
    alone = {name: [engine.run([prompt], params)[0] for prompt in prompts] for name, params in wanted.items()}
    assert alone["greedy"][4] == checkpoint(family).greedy(prompts[4], 32)
    assert {name: engine.run(prompts, params) for name, params in wanted.items()} == alone
    engine.close()
    for mode, args in GPU_MODES.items():
        if mode in ("flash", "reference") and family != "llama":
            continue
        engine = InProcessEngine(family, **args)
        for name, params in wanted.items():
            assert engine.run(prompts, params) == alone[name], (mode, name)
        engine.close()


def test_steps_with_prompts_are_replayed() -> None:
    engine = InProcessEngine("llama", enable_prefix_caching=False)
    graphs = engine.engine.executor._runner.mixed_graphs
    used: list[MixedShape] = []
    run = graphs.run

    def spy(shape: MixedShape, *args: Any) -> Any:
        used.append(shape)
        return run(shape, *args)

    graphs.run = spy
    engine.run(make_prompts(), GREEDY)
    engine.close()
    assert used
    assert all(shape.tokens <= 512 for shape in used)


def test_every_kind_of_request_in_one_batch() -> None:
    """Steps whose rows want nothing, filters, or logits edited and logprobs: three ways through the graphs."""
    prompts = make_prompts()[:4]
    params = [
        SamplingParams(temperature=0.0, max_tokens=12),
        SamplingParams(temperature=0.8, top_p=0.9, min_p=0.01, seed=1, max_tokens=12),
        SamplingParams(temperature=0.0, max_tokens=12, logprobs=3, prompt_logprobs=2, logit_bias={5: 2.0}),
        SamplingParams(temperature=1.0, typical_p=0.9, seed=2, frequency_penalty=0.3, max_tokens=12),
    ]
    engine = InProcessEngine("llama", enable_prefix_caching=False)
    alone = [engine.run([prompt], own)[0] for prompt, own in zip(prompts, params, strict=True)]
    assert engine.run(prompts, params) == alone
    for row in range(4):  # each kind decides for the whole step while it runs
        assert engine.run(prompts[row:], params[row:]) == alone[row:]
    engine.close()


def test_odd_numbers_of_sampled_rows_compile_nothing() -> None:
    """Kernels were once compiled again for line counts that left their buffers at other alignments: seconds, in the middle of serving."""
    from triton import knobs

    engine = InProcessEngine("llama", enable_prefix_caching=False, dtype="bfloat16")
    compiled: list[Any] = []
    before = knobs.runtime.jit_post_compile_hook
    knobs.runtime.jit_post_compile_hook = lambda **kwargs: compiled.append(kwargs["repr"])
    try:
        for count in (1, 3, 5, 6, 7):
            engine.run(make_prompts()[:count], SamplingParams(temperature=0.7, top_p=0.95, seed=1, max_tokens=4))
            engine.run(make_prompts()[:count], SamplingParams(temperature=0.7, top_k=5, seed=1, max_tokens=4))
    finally:
        knobs.runtime.jit_post_compile_hook = before
        engine.close()
    assert compiled == []


def test_bfloat16_is_as_close_as_the_references_are() -> None:
    """Sampled logprobs of a bfloat16 engine with graphs beside one of plain torch ops, both against float32."""
    prompts = make_prompts()
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)

    def logprobs(**args: Any) -> torch.Tensor:
        engine = InProcessEngine("llama", **args)
        found = [entry.logprob for outputs in engine.outputs(prompts, params) for entry in (outputs[0].prompt_logprobs or []) if entry]
        engine.close()
        return torch.tensor(found)

    exact = logprobs(dtype="float32", enforce_eager=True)
    ours = (logprobs(dtype="bfloat16") - exact).abs().mean()
    plain = (logprobs(dtype="bfloat16", device="cpu", attention_backend="reference", batch_invariant=False) - exact).abs().mean()
    assert ours <= 1.25 * plain


def test_fp8_cache_halves_memory_and_keeps_greedy_answers_close() -> None:
    """Logprobs move by the rounding of keys and values to 4 significant bits, and stay finite; twice the tokens fit."""
    prompts = make_prompts()
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, prompt_logprobs=0)
    found: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    for kind in ("auto", "fp8"):
        engine = InProcessEngine("llama", dtype="bfloat16", kv_cache_dtype=kind, enable_prefix_caching=False)
        outputs = engine.outputs(prompts, params)
        found[kind] = [entry.logprob for own in outputs for entry in (own[0].prompt_logprobs or []) if entry]
        assert all(sum(len(output.token_ids) for output in own) == 16 for own in outputs)
        sizes[kind] = engine.engine.ready.memory["kv_cache"]
        engine.close()
    assert 2 * sizes["fp8"] == sizes["auto"]
    error = (torch.tensor(found["fp8"]) - torch.tensor(found["auto"])).abs()
    assert 0 < error.mean() < 0.05
