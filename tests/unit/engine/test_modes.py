"""Whatever way a request is run, its tokens are the same: alone, in a batch, in chunks, after a prefix hit, preempted, pipelined or not."""

from __future__ import annotations

import pytest
from helpers_checkpoints import CASES, checkpoint
from helpers_engine import InProcessEngine
from helpers_modes import GREEDY, MODES, SEEDED, make_prompts

from trivium.scheduling.step import NewRow
from trivium.types import SamplingParams

NAMES = [case.name for case in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_transformers_in_every_mode(name: str) -> None:
    prompts = make_prompts()
    engine = InProcessEngine(name)
    alone = [engine.run([prompt], GREEDY)[0] for prompt in prompts]
    assert alone[4] == checkpoint(name).greedy(prompts[4], 32)
    hit = engine.run(prompts, GREEDY)
    assert engine.engine.scheduler.stats().prefix_hits > 0
    engine.close()
    assert hit == alone
    for mode, args in MODES.items():
        engine = InProcessEngine(name, **args)
        assert engine.run(prompts, GREEDY) == alone, mode
        stats = engine.engine.scheduler.stats()
        assert (stats.num_preemptions > 0) == mode.startswith("preempted"), mode
        engine.close()


@pytest.mark.parametrize("params", SEEDED, ids=["nucleus", "top-k with penalty"])
@pytest.mark.parametrize("name", ["llama", "deepseek-v3"])
def test_seeded_tokens_are_the_same_in_every_mode(name: str, params: SamplingParams) -> None:
    prompts = make_prompts()
    engine = InProcessEngine(name)
    alone = [engine.run([prompt], params)[0] for prompt in prompts]
    assert alone != [engine.run([prompt], GREEDY)[0] for prompt in prompts]
    assert engine.run(prompts, params) == alone
    engine.close()
    for mode, args in MODES.items():
        engine = InProcessEngine(name, **args)
        assert engine.run(prompts, params) == alone, mode
        engine.close()


def test_logprobs_and_prompt_logprobs_are_the_same_in_every_mode() -> None:
    prompts = make_prompts()
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=3, prompt_logprobs=2)
    results: dict[str, list[list[float]]] = {}
    for mode, args in {"plain": {}, **MODES}.items():
        engine = InProcessEngine("llama", **args)
        results[mode] = []
        for prompt, outputs in zip(prompts, engine.outputs(prompts, params), strict=True):
            whole = outputs[0].prompt_logprobs
            assert whole is not None
            assert [entry is None for entry in whole] == [True] + [False] * (len(prompt) - 1)
            assert [entry.token_id for entry in whole[1:] if entry] == prompt[1:]
            tokens = [entry for output in outputs for entry in output.logprobs or []]
            assert len(tokens) == 8
            assert all(len(entry.top_ids) == 3 for entry in tokens)
            results[mode].append([entry.logprob for entry in (*whole[1:], *tokens) if entry])
        engine.close()
    plain = results.pop("plain")
    for mode, found in results.items():
        for expected, actual in zip(plain, found, strict=True):
            assert actual == pytest.approx(expected, abs=1e-4), mode


def test_prompt_logprobs_are_transformers() -> None:
    prompt = make_prompts()[5]
    engine = InProcessEngine("llama", max_num_batched_tokens=11)
    output = engine.outputs([prompt], SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0))[0][0]
    engine.close()
    expected = checkpoint("llama").logits(prompt).log_softmax(-1)
    entries = output.prompt_logprobs
    assert entries is not None
    for position, entry in enumerate(entries[1:]):
        assert entry is not None
        assert entry.logprob == pytest.approx(float(expected[position, prompt[position + 1]]), abs=1e-3)


def test_parameters_the_sampler_can_not_take_end_their_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = make_prompts()[:3]
    engine = InProcessEngine("llama", enable_prefix_caching=False)
    expected = engine.run(prompts, GREEDY)
    sampler = engine.engine.executor._runner.sampler
    add_row = sampler.add_row

    def fail_for_one(new_row: NewRow) -> None:
        if new_row.params.temperature == 0.5:
            raise OverflowError("too large")
        add_row(new_row)

    monkeypatch.setattr(sampler, "add_row", fail_for_one)
    params = [GREEDY, SamplingParams(temperature=0.5, max_tokens=32), GREEDY]
    outputs = engine.outputs(prompts, params)
    engine.close()
    assert [output.error_slug for output in outputs[1]] == ["generation_failed"]
    assert [[token for output in outputs[index] for token in output.token_ids] for index in (0, 2)] == [expected[0], expected[2]]
