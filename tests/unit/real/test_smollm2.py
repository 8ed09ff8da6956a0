"""SmolLM2 on real text: what the engine makes of it is what transformers makes of the same weights."""

from __future__ import annotations

import pytest
import torch
from helpers_smollm2 import ENGINE_ARGS, NUM_TOKENS, PROMPTS, our_logprobs, ours, prompt_ids, reference_model, theirs, tokenizer

from trivium import LLM, SamplingParams
from trivium.text import IncrementalDetokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
A_FEW = [0, 7, 12]
each_prompt = pytest.mark.parametrize("index", range(len(PROMPTS)), ids=[repr(text[:16]) for text in PROMPTS])


@each_prompt
def test_greedy_tokens_are_those_of_transformers_in_float32(index: int) -> None:
    """transformers sees prompt and continuation at once: choosing our token at each position, it would have written the same text."""
    assert theirs("float32")[index].choices[len(prompt_ids()[index]) - 1 :] == ours("float32")[index].tokens


def test_transformers_generates_the_same_tokens_step_by_step() -> None:
    with reference_model("float32") as model:
        for index in A_FEW:
            prompt = torch.tensor([prompt_ids()[index]])
            out = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS
            )
            expected = out[0, prompt.shape[1] :].tolist()
            # `min_new_tokens` forbids the end-of-text token where our run only ignores it: compare up to there.
            found = ours("float32")[index].tokens
            end = found.index(2) if 2 in found else NUM_TOKENS
            assert expected[:end] == found[:end]
            assert end > 0


@each_prompt
def test_prompt_logprobs_are_within_a_thousandth_in_float32(index: int) -> None:
    count = len(prompt_ids()[index]) - 1
    found = ours("float32")[index].prompt_logprobs
    assert len(found) == count
    assert found == pytest.approx(theirs("float32")[index].logprobs[:count].tolist(), abs=1e-3)


def test_bfloat16_is_no_further_from_float32_than_that_of_transformers() -> None:
    exact = torch.cat([reference.logprobs for reference in theirs("float32")])
    our_error = (torch.cat(our_logprobs("bfloat16")) - exact).abs().mean()
    their_error = (torch.cat([reference.logprobs for reference in theirs("bfloat16")]) - exact).abs().mean()
    assert len(exact) > 700
    assert 0 < our_error <= their_error, (our_error, their_error)


def test_text_of_an_engine_process_is_the_decoding_of_the_same_tokens() -> None:
    with LLM(dtype="float32", num_threads=1, **ENGINE_ARGS) as llm:
        results = llm.generate([PROMPTS[index] for index in A_FEW], GREEDY, use_tqdm=False)
    for index, result in zip(A_FEW, results, strict=True):
        assert result.prompt_token_ids == prompt_ids()[index]
        assert result.outputs[0].token_ids == ours("float32")[index].tokens
        assert result.outputs[0].text == tokenizer().decode(result.outputs[0].token_ids, skip_special_tokens=True)


@each_prompt
def test_text_token_by_token_is_the_decoding_of_all_tokens(index: int) -> None:
    tokens = ours("float32")[index].tokens
    detokenizer = IncrementalDetokenizer(tokenizer(), skip_special_tokens=False)
    text = "".join([*map(detokenizer.push, tokens), detokenizer.flush()])
    # An unfinished character at the end is dropped; the decoding of all shows it as U+FFFD.
    assert tokenizer().decode(tokens, skip_special_tokens=False) in (text, text + "\ufffd")
