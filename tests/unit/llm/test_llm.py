"""`LLM` as vLLM's users call it: a packaged model for text, a tiny one for what needs an engine of its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers_engine import checkpoint_folder

from trivium import LLM, SamplingParams
from trivium.errors import ConfigError, EngineDead, InvalidRequest, PromptTooLong, UnsupportedFeature
from trivium.llm.engine_args import engine_config
from trivium.protocol.messages import EngineStats, Probe, ProbeReply
from trivium.sources.packaged import packaged_model
from trivium.types import ChatMessage

needs_model = pytest.mark.skipif(packaged_model() is None, reason="the packaged model is not installed")
FRANCE = "The capital of France is"
TEXTS = [FRANCE, "1, 2, 3,", "Once upon a time", "def main():\n", "你好"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
TINY: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 64, "num_threads": 1, "skip_tokenizer_init": True, "max_model_len": 64}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=256, max_num_seqs=8, num_gpu_blocks_override=200, num_threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def tiny() -> Iterator[LLM]:
    """Token ids only, one sequence at a time, by priority."""
    arguments = {**TINY, "max_num_seqs": 1, "scheduling_policy": "priority", "override_generation_config": {"temperature": 0.0}}
    with LLM(model=checkpoint_folder("llama"), **arguments) as made:
        yield made


def stats(llm: LLM) -> EngineStats:
    """What the engine's loop says of itself now."""
    llm._client._send(Probe(nonce=-1))
    while not isinstance(message := llm._client._receive(), ProbeReply):
        pass
    assert message.stats is not None
    return message.stats


def assert_idle(llm: LLM) -> None:
    found = stats(llm)
    assert (found.num_running, found.num_waiting) == (0, 0)
    assert found.num_free_blocks == found.num_blocks


def generate(llm: LLM, prompts: Any, params: Any = GREEDY, **arguments: Any) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in llm.generate(prompts, params, use_tqdm=False, **arguments)]


@needs_model
def test_the_snippet_of_vllms_readme_runs() -> None:
    llm = LLM(model="", tensor_parallel_size=1, gpu_memory_utilization=0.9, max_model_len=4096)
    outputs = llm.generate([FRANCE], SamplingParams(temperature=0.7, top_p=0.95, max_tokens=16))
    assert outputs[0].outputs[0].text
    assert outputs[0].prompt == FRANCE
    llm.close()


@needs_model
def test_results_hold_what_vllms_do(llm: LLM) -> None:
    (result,) = llm.generate(FRANCE, SamplingParams(temperature=0.0, max_tokens=3), use_tqdm=False)
    (output,) = result.outputs
    assert output.text.startswith(" Paris")
    assert (output.index, output.finish_reason, output.stop_reason, output.logprobs, output.cumulative_logprob) == (0, "length", None, None, None)
    assert output.finished()
    assert result.finished
    assert result.prompt_token_ids == llm.get_tokenizer().encode(FRANCE)
    assert (result.prompt_logprobs, result.num_cached_tokens, result.lora_request) == (None, 0, None)
    assert llm.get_tokenizer().decode(output.token_ids) == output.text
    metrics = result.metrics
    assert metrics is not None
    assert metrics.first_scheduled_time is not None
    assert metrics.first_token_time is not None
    assert metrics.finished_time is not None
    assert metrics.arrival_time < metrics.first_scheduled_time < metrics.first_token_time < metrics.finished_time


@needs_model
def test_prompts_come_as_text_ids_and_mappings(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(FRANCE)
    (expected,) = generate(llm, FRANCE)
    forms: list[Any] = [[FRANCE], ids, tuple(ids), [ids], np.array(ids), {"prompt": FRANCE}, {"prompt_token_ids": ids}]
    for form in [*forms, [{"prompt_token_ids": np.array(ids), "prompt": None}], [np.array(ids)]]:
        assert generate(llm, form) == [expected], form
    mixed = llm.generate([FRANCE, ids, {"prompt": FRANCE, "prompt_token_ids": ids}], GREEDY, use_tqdm=False)
    assert [result.prompt for result in mixed] == [FRANCE, None, FRANCE]
    assert [result.prompt_token_ids for result in mixed] == [ids] * 3
    assert llm.generate([], GREEDY) == []


@needs_model
def test_order_is_kept_whatever_ends_first(llm: LLM) -> None:
    alone = [generate(llm, text, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))[0] for text in TEXTS]
    lengths = [40, 1, 25, 3, 12]
    each = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]
    results = llm.generate(TEXTS, each, use_tqdm=False)
    assert [result.prompt for result in results] == TEXTS
    assert [result.outputs[0].token_ids for result in results] == [ids[:length] for ids, length in zip(alone, lengths, strict=True)]


@needs_model
def test_n_choices_have_streams_of_their_own(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
    first, second = (llm.generate([FRANCE, "1, 2,"], params, use_tqdm=False) for _ in range(2))
    for result, again in zip(first, second, strict=True):
        assert [output.index for output in result.outputs] == [0, 1, 2]
        assert [output.token_ids for output in result.outputs] == [output.token_ids for output in again.outputs]
        assert len({tuple(output.token_ids) for output in result.outputs}) == 3
    single = SamplingParams(temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
    assert generate(llm, FRANCE, single) == [first[0].outputs[0].token_ids]


@needs_model
def test_stop_strings_cut_the_text_and_free_the_engine(llm: LLM) -> None:
    def run(**fields: Any) -> Any:
        return llm.generate(FRANCE, SamplingParams(temperature=0.0, max_tokens=100, **fields), use_tqdm=False)[0].outputs[0]

    cut = run(stop="ari")
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (" P", "stop", "ari")
    assert len(cut.token_ids) == 1
    assert_idle(llm)
    assert run(stop=["nowhere", "ris"], include_stop_str_in_output=True).text == " Paris"
    (token_id,) = cut.token_ids
    by_id = run(stop_token_ids=[token_id])
    assert (by_id.finish_reason, by_id.stop_reason, by_id.text) == ("stop", token_id, "")


@needs_model
def test_logprobs_are_dicts_of_the_token_and_the_likeliest(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, logprobs=3, prompt_logprobs=2)
    result = llm.generate(FRANCE, params, use_tqdm=False)[0]
    output = result.outputs[0]
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids) == 5
    for token_id, found in zip(output.token_ids, output.logprobs, strict=True):
        assert len(found) == 3
        assert next(iter(found)) == token_id
        assert [entry.rank for entry in found.values()] == [1, 2, 3]
        assert all(entry.logprob <= found[token_id].logprob <= 0.0 for entry in found.values())
        assert found[token_id].decoded_token == llm.get_tokenizer().token_to_str(token_id)
    assert output.cumulative_logprob == pytest.approx(sum(found[i].logprob for i, found in zip(output.token_ids, output.logprobs, strict=True)))
    prompt_logprobs = result.prompt_logprobs
    assert prompt_logprobs is not None
    assert prompt_logprobs[0] is None
    for token_id, entry in zip(result.prompt_token_ids[1:], prompt_logprobs[1:], strict=True):
        assert entry is not None
        assert next(iter(entry)) == token_id
        assert len(entry) in (2, 3)


@needs_model
def test_without_detokenization_there_is_no_text(llm: LLM) -> None:
    (result,) = llm.generate(FRANCE, SamplingParams(temperature=0.0, max_tokens=4, detokenize=False), use_tqdm=False)
    assert (result.outputs[0].text, len(result.outputs[0].token_ids)) == ("", 4)


@needs_model
def test_prefix_cache_is_seen_reset_and_kept_apart_by_salt(llm: LLM) -> None:
    ids = list(range(100, 164))

    def cached(**fields: Any) -> int | None:
        return llm.generate({"prompt_token_ids": ids, **fields}, GREEDY, use_tqdm=False)[0].num_cached_tokens

    assert [cached(), cached(), cached(cache_salt="a"), cached(cache_salt="a"), cached(cache_salt="b")] == [0, 48, 0, 48, 0]
    llm.reset_prefix_cache()
    assert cached() == 0


@needs_model
def test_chat_goes_through_the_template(llm: LLM) -> None:
    turn = {"role": "user", "content": "Name a planet."}
    (result,) = llm.chat([turn], GREEDY, use_tqdm=False)
    assert result.prompt is not None
    assert result.prompt.endswith("<|im_start|>user\nName a planet.<|im_end|>\n<|im_start|>assistant\n")
    assert generate(llm, result.prompt) == [result.outputs[0].token_ids]
    in_parts = {"role": "user", "content": [{"type": "text", "text": "Name"}, {"type": "text", "text": "a planet."}]}
    several = llm.chat([[turn], [ChatMessage(role="user", content="Name a planet.")], [in_parts]], GREEDY, use_tqdm=False)
    assert [each.prompt for each in several] == [result.prompt, result.prompt, result.prompt.replace("Name a", "Name\na")]
    begun = [turn, {"role": "assistant", "content": "Surely"}]
    started = llm.chat(begun, GREEDY, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)
    assert started[0].prompt is not None
    assert started[0].prompt.endswith("assistant\nSurely")
    own = llm.chat([turn], GREEDY, use_tqdm=False, chat_template="{{ greeting }}{{ messages[0].content }}", chat_template_kwargs={"greeting": "Hi. "})
    assert own[0].prompt == "Hi. Name a planet."


def changed_later(**values: Any) -> SamplingParams:
    """Parameters that were right when they were made."""
    params = SamplingParams()
    for name, value in values.items():
        setattr(params, name, value)
    return params


BAD_CALLS: dict[str, tuple[Any, Any, type[Exception], str | None]] = {
    "no tokens": ([FRANCE, ""], GREEDY, InvalidRequest, "prompts"),
    "no token ids": ([FRANCE, {"prompt_token_ids": []}], GREEDY, InvalidRequest, "prompts"),
    "id outside the vocabulary": ([[1, 2], [1, 49152]], GREEDY, InvalidRequest, "prompt_token_ids"),
    "negative id": ([[1, 2], [-1]], GREEDY, InvalidRequest, "prompt_token_ids"),
    "id that is a float": ([[1, 2], [1.0]], GREEDY, InvalidRequest, "prompts"),
    "id that is text": ({"prompt_token_ids": ["1"]}, GREEDY, InvalidRequest, "prompt_token_ids"),
    "too long": ([FRANCE, [5] * 256], GREEDY, PromptTooLong, "prompts"),
    "too long text": ("word " * 5000, GREEDY, PromptTooLong, "prompt"),
    "a number": (7, GREEDY, InvalidRequest, "prompts"),
    "None among prompts": ([FRANCE, None], GREEDY, InvalidRequest, "prompts"),
    "bytes": (b"text", GREEDY, InvalidRequest, "prompts"),
    "empty mapping": ([FRANCE, {}], GREEDY, InvalidRequest, "prompts"),
    "images": ({"prompt": FRANCE, "multi_modal_data": {"image": 1}}, GREEDY, UnsupportedFeature, "prompts"),
    "prompt of a wrong type": ({"prompt": 5}, GREEDY, InvalidRequest, "prompts"),
    "fewer params than prompts": ([FRANCE, FRANCE], [GREEDY], InvalidRequest, "sampling_params"),
    "params of another kind": ([FRANCE], {"temperature": 0.0}, InvalidRequest, "sampling_params"),
    "a float for a whole number": ([FRANCE], changed_later(top_k=1.5), InvalidRequest, "top_k"),
    "a list of floats": ([FRANCE], SamplingParams(stop_token_ids=[1.0]), InvalidRequest, "stop_token_ids"),  # pyright: ignore[reportArgumentType]
    "stop id outside the vocabulary": ([FRANCE], SamplingParams(stop_token_ids=[49152]), InvalidRequest, "stop_token_ids"),
    "bias outside the vocabulary": ([FRANCE], SamplingParams(logit_bias={49152: 1.0}), InvalidRequest, "logit_bias"),
    "more logprobs than allowed": ([FRANCE], SamplingParams(logprobs=21), InvalidRequest, "logprobs"),
    "bad words without tokens": ([FRANCE], SamplingParams(bad_words=["x"] * 200), InvalidRequest, "bad_words"),
    "one bad among several": ([FRANCE] * 2, [GREEDY, SamplingParams(prompt_logprobs=-1)], InvalidRequest, "prompt_logprobs"),
}  # fmt: skip


@needs_model
@pytest.mark.parametrize("case", BAD_CALLS)
def test_mistakes_are_told_before_anything_runs(llm: LLM, case: str) -> None:
    prompts, params, error, param = BAD_CALLS[case]
    before = stats(llm).num_steps
    with pytest.raises(error) as caught:
        llm.generate(prompts, params, use_tqdm=False)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, InvalidRequest)
    assert caught.value.param == param
    assert_idle(llm)
    assert stats(llm).num_steps == before


@needs_model
def test_other_mistakes_are_told_too(llm: LLM) -> None:
    turn = {"role": "user", "content": "Hello"}
    calls: list[tuple[str, Any]] = [
        ("priority", lambda: llm.generate([FRANCE], GREEDY, priority=[1, 2])),
        ("priority", lambda: llm.generate([FRANCE], GREEDY, priority=[0.5])),  # pyright: ignore[reportArgumentType]
        ("lora_request", lambda: llm.generate([FRANCE], GREEDY, lora_request="x")),  # pyright: ignore[reportArgumentType]
        ("tools", lambda: llm.chat([turn], GREEDY, tools=[{}])),  # pyright: ignore[reportArgumentType]
        ("chat_template_content_format", lambda: llm.chat([turn], GREEDY, chat_template_content_format="openai")),
        ("messages", lambda: llm.chat([{"content": "no role"}], GREEDY)),
        ("messages", lambda: llm.chat([{"role": "user", "content": [{"type": "image_url"}]}], GREEDY)),
        ("messages", lambda: llm.chat([{"role": "user", "content": [{"type": "text"}]}], GREEDY)),
        ("messages", lambda: llm.chat([{"role": "user", "content": 5}], GREEDY)),
        ("messages", lambda: llm.chat([[turn], []], GREEDY)),
        ("messages", lambda: llm.chat([[turn], ["text"]], GREEDY)),  # pyright: ignore[reportArgumentType]
        ("continue_final_message", lambda: llm.chat([turn], GREEDY, continue_final_message=True)),
        ("prompt", lambda: llm.chat([{"role": "user", "content": "word " * 500}], GREEDY)),
    ]
    for param, call in calls:
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert caught.value.param == param, param
    with pytest.raises(InvalidRequest):
        llm.chat([turn], GREEDY, chat_template="{{ unclosed")
    assert_idle(llm)


class Bar:
    """tqdm's interface, and what was done through it."""

    made: list[Bar] = []

    def __init__(self, *, total: int, desc: str) -> None:
        self.total = total
        self.done = 0
        self.is_closed = False
        Bar.made.append(self)

    def update(self, count: int) -> None:
        self.done += count

    def close(self) -> None:
        self.is_closed = True


@needs_model
def test_progress_is_shown_on_stderr_or_through_a_class_of_the_callers(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(TEXTS, GREEDY, use_tqdm=False)
    assert capfd.readouterr() == ("", "")
    llm.generate(TEXTS, GREEDY)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "Processed prompts" in shown.err
    assert "5/5" in shown.err
    Bar.made.clear()
    llm.generate(TEXTS, GREEDY, use_tqdm=Bar)
    (bar,) = Bar.made
    assert (bar.total, bar.done, bar.is_closed) == (5, 5, True)
    assert capfd.readouterr() == ("", "")


class InterruptingBar(Bar):
    def update(self, count: int) -> None:
        raise KeyboardInterrupt


@needs_model
def test_an_interruption_leaves_an_idle_engine(llm: LLM) -> None:
    expected = generate(llm, TEXTS)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(TEXTS, [GREEDY, LONG, LONG, LONG, LONG], use_tqdm=InterruptingBar)
    assert_idle(llm)
    assert generate(llm, TEXTS) == expected


@needs_model
def test_ctrl_c_leaves_an_idle_engine(llm: LLM) -> None:
    expected = generate(llm, TEXTS)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(TEXTS * 20, LONG, use_tqdm=False)
    timer.cancel()
    assert_idle(llm)
    assert generate(llm, TEXTS) == expected


def test_what_no_engine_could_take_is_refused_before_it_runs(tiny: LLM) -> None:
    for params, priority, param in (
        (SamplingParams(max_tokens=None, min_tokens=62), [0], "min_tokens"),
        (SamplingParams(max_tokens=100, min_tokens=100), [0], "min_tokens"),
        (SamplingParams(repetition_penalty=1e-40), [0], "repetition_penalty"),
        (GREEDY, [2**31], "priority"),
        (GREEDY, [-(2**70)], "priority"),
    ):
        with pytest.raises(InvalidRequest) as raised:
            tiny.generate([[1, 2, 3]], params, use_tqdm=False, priority=priority)
        assert raised.value.param == param
    assert tiny.generate([[1, 2, 3]], GREEDY, use_tqdm=False, priority=[2**31 - 1])[0].finished


def test_a_lower_priority_value_runs_earlier(tiny: LLM) -> None:
    results = tiny.generate([[1, 2, 3 + index] for index in range(5)], GREEDY, use_tqdm=False, priority=[9, 3, np.int64(1), 4, 2])
    started = [result.metrics.first_scheduled_time or 0.0 for result in results if result.metrics]
    # The first was alone when it came.
    assert sorted(range(1, 5), key=lambda index: started[index]) == [2, 4, 1, 3]


@needs_model
def test_priority_without_its_policy_has_no_effect_and_says_so(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    generate(llm, TEXTS, priority=[1] * 5)
    assert "priority has no effect" in caplog.text


def test_without_a_tokenizer_ids_go_in_and_out(tiny: LLM) -> None:
    (result,) = tiny.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=6, logprobs=1), use_tqdm=False)
    output = result.outputs[0]
    assert (result.prompt, output.text, len(output.token_ids)) == (None, "", 6)
    assert output.logprobs is not None
    assert output.logprobs[0][output.token_ids[0]].decoded_token is None
    for param, call in {
        "prompts": lambda: tiny.generate("text", GREEDY),
        "stop": lambda: tiny.generate([[1]], SamplingParams(stop="x")),
        "bad_words": lambda: tiny.generate([[1]], SamplingParams(bad_words=["x"])),
        "messages": lambda: tiny.chat([{"role": "user", "content": "x"}]),
        "skip_tokenizer_init": tiny.get_tokenizer,
    }.items():
        with pytest.raises(UnsupportedFeature) as caught:
            call()
        assert caught.value.param == param


def test_defaults_are_the_models_and_max_tokens_ends_with_the_context(tiny: LLM) -> None:
    assert tiny.get_default_sampling_params() == SamplingParams(temperature=0.0)
    first, second = (tiny.generate([[1, 2, 3]], use_tqdm=False)[0].outputs[0] for _ in range(2))
    assert len(first.token_ids) == 16
    assert first.token_ids == second.token_ids
    (result,) = tiny.generate([[5] * 10], SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True), use_tqdm=False)
    assert (len(result.outputs[0].token_ids), result.outputs[0].finish_reason) == (54, "length")


def test_what_the_caller_changes_later_does_not_count(tiny: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3)
    read = tiny._inputs.params(params, 2)
    params.max_tokens = 50
    assert [own.max_tokens for own in read] == [3, 3]


def test_a_closed_llm_says_so() -> None:
    with LLM(model=checkpoint_folder("llama"), max_num_seqs=2, **TINY) as llm:
        pid = llm._client._process.pid
        assert generate(llm, [[1, 2]])
    assert llm._client._process.exit_code == 0
    assert not os.path.exists(f"/proc/{pid}")
    llm.close()
    with pytest.raises(EngineDead, match="closed"):
        llm.generate([[1, 2]], GREEDY)
    with pytest.raises(EngineDead, match="closed"):
        llm.reset_prefix_cache()


def test_engine_arguments_are_honoured_or_refused_by_name() -> None:
    neutral: dict[str, Any] = {"quantization": None, "swap_space": 4, "enable_chunked_prefill": True, "seed": None, "pipeline_parallel_size": 1}
    config = engine_config("m", {"max_model_len": 99, "block_size": 32, "enforce_eager": True, "revision": None, **neutral})
    assert (config.model.model, config.model.max_model_len, config.model.seed) == ("m", 99, 0)
    assert (config.cache.block_size, config.enforce_eager) == (32, True)
    for name, value in {
        "max_modle_len": 99,
        "port": 8000,
        "trust_remote_code": True,
        "quantization": "int3",
        "enable_lora": True,
        "pipeline_parallel_size": 2,
        "enable_chunked_prefill": False,
        "speculative_config": {"model": "x"},
        "dtype": "int3",
        "block_size": 12,
        "max_model_len": 1.5,
        "load_format": "pt",
    }.items():
        with pytest.raises(ConfigError) as caught:
            LLM("", **{name: value})
        assert caught.value.param == name
