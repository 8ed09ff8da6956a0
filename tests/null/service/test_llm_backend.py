"""`LLMBackend`: what reaches the engine, and what becomes of its outputs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from helpers_scripted_engine import EOS_ID, VOCAB_SIZE, FakeEngine, byte_tokenizer, fake_backend

from trivium.backends.base import ChatPrompt
from trivium.backends.llm import LLMBackend
from trivium.backends.llm_choice import Choice
from trivium.backends.llm_feed import create_feed
from trivium.backends.llm_params import bad_words_token_ids, eos_token_ids, sampling_defaults
from trivium.backends.registry import backend_names, create_backend
from trivium.config import ModelSettings
from trivium.errors import ConfigError, GenerationFailed, InvalidRequest, PromptTooLong, RequestCancelled, UnsupportedFeature
from trivium.metrics.instruments import Registry
from trivium.metrics.sequence import ModelMetrics, SequenceClock
from trivium.protocol.messages import TokenLogprobs, TokenOutput
from trivium.types import ChatMessage, FinishReason, GenerateRequest, PromptInfo, SamplingParams, TokenEvent


def backend(engine: FakeEngine | None = None, **kwargs: Any) -> tuple[LLMBackend, FakeEngine]:
    engine = engine or FakeEngine()
    return fake_backend(engine, Registry(), **kwargs), engine


def request(prompt: Any = "abc", *, params: dict[str, Any] | None = None, **fields: Any) -> GenerateRequest:
    made = SamplingParams(**{"max_tokens": 4, "temperature": 0.0, **(params or {})})
    source = {"prompt_token_ids": prompt} if isinstance(prompt, list) else {"prompt": prompt}
    if "messages" in fields:
        source = {}
    return GenerateRequest(request_id="r", model="fake", params=made, **source, **fields)


async def events_of(model: LLMBackend, one: GenerateRequest) -> list[Any]:
    generation = model.generate(one)
    try:
        return [event async for event in generation]
    finally:
        await generation.aclose()


async def submitted(one: GenerateRequest, **kwargs: Any) -> list[Any]:
    model, engine = backend(**kwargs)
    await events_of(model, one)
    return engine.submitted


async def test_what_reaches_the_engine_is_complete() -> None:
    one = request(params={"bad_words": ["bad"], "max_tokens": None}, priority=3, cache_salt="s")
    [add] = await submitted(one, engine=FakeEngine(max_model_len=10))
    assert add.prompt_token_ids == [97, 98, 99]
    assert add.max_tokens == 7
    assert add.eos_token_ids == [EOS_ID]
    assert add.bad_words_token_ids == [list(b"bad")]
    assert (add.priority, add.cache_salt) == (3, "s")


async def test_max_tokens_is_cut_to_the_context() -> None:
    [add] = await submitted(request(params={"max_tokens": 5000}), engine=FakeEngine(max_model_len=10))
    assert add.max_tokens == 7


async def test_each_choice_has_a_random_stream_of_its_own() -> None:
    additions = await submitted(request(n=3, params={"temperature": 1.0, "seed": 2**64 - 1, "prompt_logprobs": 1}))
    assert [add.params.seed for add in additions] == [2**64 - 1, 0, 1]
    assert [add.params.prompt_logprobs for add in additions] == [1, None, None]
    assert len({add.request_id for add in additions}) == 3
    additions = await submitted(request(n=2, params={"temperature": 1.0}))
    assert [add.params.seed for add in additions] == [None, None]


async def test_greedy_choices_are_computed_once() -> None:
    model, engine = backend()
    events = await events_of(model, request(n=3))
    assert len(engine.submitted) == 1
    texts = {index: "".join(event.text for event in events[1:] if event.index == index) for index in range(3)}
    assert texts == {0: "abca", 1: "abca", 2: "abca"}
    assert sum(event.finish_reason is not None for event in events[1:]) == 3


async def test_all_logprobs_where_they_are_allowed() -> None:
    settings = ModelSettings(model="fake", max_logprobs=-1)
    [add] = await submitted(request(params={"logprobs": -1, "prompt_logprobs": -1, "max_tokens": 1}), settings=settings)
    assert (add.params.logprobs, add.params.prompt_logprobs) == (VOCAB_SIZE, VOCAB_SIZE)


async def test_with_prompt_logprobs_the_prompt_still_comes_first() -> None:
    model, _ = backend()
    for n in (1, 3):
        events = await events_of(model, request(n=n, params={"temperature": 1.0, "prompt_logprobs": 0, "max_tokens": 2}))
        assert isinstance(events[0], PromptInfo)
        assert events[0].prompt_logprobs is not None
        assert [entry and list(entry) for entry in events[0].prompt_logprobs] == [None, [98], [99]]
        assert all(isinstance(event, TokenEvent) for event in events[1:])


@pytest.mark.parametrize(
    ("one", "error", "param"),
    [
        (request([]), InvalidRequest, "prompt"),
        (request(""), InvalidRequest, "prompt"),
        (request([VOCAB_SIZE]), InvalidRequest, "prompt"),
        (request(params={"max_tokens": None, "min_tokens": 1022}), InvalidRequest, "min_tokens"),
        (request(params={"max_tokens": 2000, "min_tokens": 2000}), InvalidRequest, "min_tokens"),
        (request(params={"max_tokens": None, "min_tokens": 1021}), None, None),
        (request(priority=2**31), InvalidRequest, "priority"),
        (request(priority=-(2**31) - 1), InvalidRequest, "priority"),
        (request(priority=-(2**31)), None, None),
        (request(params={"allowed_token_ids": [97] * (VOCAB_SIZE + 1)}), InvalidRequest, "allowed_token_ids"),
        (request(params={"stop_token_ids": [97] * (VOCAB_SIZE + 1)}), InvalidRequest, "stop_token_ids"),
        (request(params={"allowed_token_ids": [EOS_ID], "min_tokens": 1}), InvalidRequest, "allowed_token_ids"),
        (request(params={"allowed_token_ids": [98, EOS_ID], "stop_token_ids": [98], "min_tokens": 1}), InvalidRequest, "allowed_token_ids"),
        (request(params={"allowed_token_ids": [98], "bad_words": ["b"]}), InvalidRequest, "allowed_token_ids"),
        (request(params={"stop_token_ids": list(range(VOCAB_SIZE)), "min_tokens": 1}), InvalidRequest, "bad_words"),
        (request(params={"allowed_token_ids": [98, EOS_ID], "min_tokens": 1}), None, None),
        (request(params={"allowed_token_ids": [EOS_ID]}), None, None),
        (request(params={"repetition_penalty": 1e-40}), InvalidRequest, "repetition_penalty"),
        (request(params={"repetition_penalty": 1e40}), InvalidRequest, "repetition_penalty"),
        (request(params={"bad_words": ["x" * 65]}), InvalidRequest, "bad_words"),
        (request(params={"bad_words": ["x" * 64]}), None, None),
        (request(params={"bad_words": [" " * 2000]}), InvalidRequest, "bad_words"),
        (request("x" * 1024), PromptTooLong, "prompt"),
        (request([1] * 1024), PromptTooLong, "prompt"),
        (request(messages=[ChatMessage(role="user", content="x" * 2000)]), PromptTooLong, "messages"),
        (request(truncate_prompt_tokens=0), InvalidRequest, "truncate_prompt_tokens"),
        (request(truncate_prompt_tokens=1024), None, None),
        (request("x" * 5000, truncate_prompt_tokens=1024), PromptTooLong, "prompt"),
        (request(params={"stop_token_ids": [VOCAB_SIZE]}), InvalidRequest, "stop_token_ids"),
        (request(params={"allowed_token_ids": [-1]}), InvalidRequest, "allowed_token_ids"),
        (request(params={"logit_bias": {VOCAB_SIZE: 1.0}}), InvalidRequest, "logit_bias"),
        (request(params={"logprobs": 21}), InvalidRequest, "logprobs"),
        (request(params={"prompt_logprobs": -1}), InvalidRequest, "prompt_logprobs"),
        (request(params={"bad_words": ["x"] * 129}), InvalidRequest, "bad_words"),
        (request(params={"bad_words": ["abc"] * 128}), None, None),
    ],
)
async def test_validation(one: GenerateRequest, error: type[InvalidRequest] | None, param: str | None) -> None:
    model, engine = backend()
    if error is None:
        await events_of(model, one)
        return
    with pytest.raises(error) as raised:
        await model.generate(one).start()
    assert raised.value.param == param
    assert engine.submitted == []


async def test_a_tokenizer_that_knows_more_tokens_than_the_model_can_not_reach_the_engine_with_them() -> None:
    engine = FakeEngine()
    assert engine.ready is not None
    engine.ready.vocab_size = EOS_ID
    model, _ = backend(engine)
    message = ChatMessage(role="user", content="x")
    for one, param in (
        (request("a<|im_end|>"), "prompt"),
        (request("a<|im_end|>" * 500, truncate_prompt_tokens=5), "prompt"),
        (request(messages=[message]), "messages"),
    ):
        with pytest.raises(InvalidRequest) as raised:
            await model.generate(one).start()
        assert raised.value.param == param
    assert engine.submitted == []
    await events_of(model, request("abc"))
    assert engine.submitted[0].eos_token_ids == []


async def test_of_a_prompt_that_was_cut_no_text_is_told() -> None:
    model, _ = backend()
    [info, *_] = await events_of(model, request("abcdef", truncate_prompt_tokens=3))
    assert (info.prompt, info.prompt_token_ids) == (None, list(b"def"))
    [info, *_] = await events_of(model, request("abcdef", truncate_prompt_tokens=6))
    assert info.prompt == "abcdef"


async def test_slow_templates_do_not_keep_others_from_being_tokenized() -> None:
    model, _ = backend()
    release = threading.Event()

    class Slow:
        def render(self, *_: Any, **__: Any) -> str:
            assert release.wait(10)
            return "x"

    slow, _ = backend(template=Slow())
    chats = [asyncio.create_task(slow.tokenize_chat(ChatPrompt(messages=[ChatMessage(role="user", content="x")]))) for _ in range(40)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(5):
            assert len(await slow.tokenize("x" * 10_000, add_special_tokens=False)) == 10_000
    finally:
        release.set()
    assert await asyncio.gather(*chats) == [[120]] * 40
    await slow.close()
    await model.close()


async def test_more_tokens_than_any_prompt_could_have_are_refused() -> None:
    model, _ = backend()
    with pytest.raises(PromptTooLong):
        await model.tokenize("x" * 65_537, add_special_tokens=False)
    with pytest.raises(InvalidRequest) as raised:
        await model.detokenize([97] * 65_537)
    assert raised.value.param == "tokens"
    assert len(await model.detokenize([97] * 65_536)) == 65_536
    assert await model.spell([97, 195] * 5000) == ["a", "\ufffd"] * 5000


async def test_truncation_keeps_the_end() -> None:
    model, _ = backend(FakeEngine(max_model_len=100))
    for one in (request("x" * 500 + "end", truncate_prompt_tokens=3), request([120] * 500 + list(b"end"), truncate_prompt_tokens=3)):
        assert (await events_of(model, one))[0].prompt_token_ids == list(b"end")
    [info, *_] = await events_of(model, request("x" * 500, truncate_prompt_tokens=-1, params={"max_tokens": 10}))
    assert len(info.prompt_token_ids) == 90
    [info, *_] = await events_of(model, request("x" * 500, truncate_prompt_tokens=-1, params={"max_tokens": 1000}))
    assert len(info.prompt_token_ids) == 1


async def test_long_texts_are_tokenized_elsewhere_and_the_loop_goes_on() -> None:
    model, _ = backend(FakeEngine(max_model_len=1_000_000))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(tick())
    ids = await model.tokenize("word " * 100_000, add_special_tokens=True)
    ticker.cancel()
    assert len(ids) == 500_000
    assert ticks > 5


async def test_without_a_template_chat_is_refused() -> None:
    model, _ = backend(template=None)
    with pytest.raises(UnsupportedFeature) as raised:
        await events_of(model, request(messages=[ChatMessage(role="user", content="x")]))
    assert raised.value.param == "messages"


async def test_without_a_tokenizer_ids_go_in_and_out() -> None:
    model, _ = backend(tokenizer=None, template=None)
    events = await events_of(model, request([1, 2], params={"logprobs": 0}))
    assert [event.token_ids for event in events[1:]] == [[1], [2], [1], [2]]
    assert [event.text for event in events[1:]] == [""] * 4
    assert events[1].logprobs[0][1].decoded_token is None
    assert model.token_bytes([1]) == [b""]
    for one in (request("text"), request([1], params={"stop": "x"}), request([1], params={"bad_words": ["x"]})):
        with pytest.raises(UnsupportedFeature):
            await events_of(model, one)
    with pytest.raises(UnsupportedFeature):
        model.token_strings([1])


async def test_without_detokenizing_there_is_no_text() -> None:
    model, _ = backend()
    events = await events_of(model, request(params={"detokenize": False}))
    assert [event.text for event in events[1:]] == [""] * 4


async def test_a_stop_string_ends_the_choice_once_and_the_engine_too() -> None:
    model, engine = backend()
    events = await events_of(model, request(params={"stop": "c", "max_tokens": 100}))
    assert "".join(event.text for event in events[1:]) == "ab"
    assert [event.finish_reason for event in events[1:]] == [None, None, FinishReason.STOP]
    assert events[-1].stop_reason == "c"
    assert len(engine.aborted) == 1


async def test_one_choice_that_stops_early_leaves_the_others_alone() -> None:
    model, engine = backend()
    events = await events_of(model, request("abcX", n=2, params={"temperature": 1.0, "seed": 3, "stop": ["Xa"], "max_tokens": 9}))
    texts = {index: "".join(event.text for event in events[1:] if event.index == index) for index in range(2)}
    assert texts == {0: "", 1: "abc"}
    assert len(engine.aborted) == 2


async def test_a_failure_in_one_choice_ends_the_request() -> None:
    model, engine = backend()
    with pytest.raises(GenerationFailed, match="not finite"):
        await events_of(model, request("!fail", n=3, params={"temperature": 1.0, "max_tokens": 50}))
    await asyncio.sleep(0)
    assert not engine._running
    assert not engine._waiting


@pytest.mark.parametrize("n", [1, 3])
async def test_cancelling_the_consumer_frees_everything(n: int) -> None:
    model, engine = backend(FakeEngine(step_s=0.001))
    task = asyncio.create_task(events_of(model, request(n=n, params={"temperature": 1.0, "max_tokens": 1000})))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(engine.aborted) == n
    assert not engine._running


async def test_failing_from_outside_before_between_and_during() -> None:
    model, engine = backend(FakeEngine(step_s=0.001))
    before = model.generate(request())
    before.fail(RequestCancelled("gone"))
    before.fail(RequestCancelled("only the first counts"))
    with pytest.raises(RequestCancelled, match="gone"):
        await before.start()
    between = model.generate(request(params={"max_tokens": 1000}))
    await anext(between)
    between.fail(RequestCancelled("gone"))
    assert len(engine.aborted) == 1
    with pytest.raises(RequestCancelled):
        async for _ in between:
            pass
    during = model.generate(request("!hang", params={"max_tokens": 1000}))
    await anext(during)
    asyncio.get_running_loop().call_later(0.02, during.fail, RequestCancelled("gone"))
    with pytest.raises(RequestCancelled):
        async for _ in during:
            pass
    assert asyncio.current_task() is not None
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_real_cancellation_is_not_mistaken_for_a_failure() -> None:
    model, _ = backend()
    generation = model.generate(request("!hang", params={"max_tokens": 1000}))
    await anext(generation)

    async def read() -> None:
        async for _ in generation:
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    generation.fail(RequestCancelled("also"))
    with pytest.raises(asyncio.CancelledError):
        await task


# -- outputs ------------------------------------------------------------------------------------------------------------------------


def choice(**params: Any) -> Choice:
    clock = SequenceClock(ModelMetrics(Registry(), "m"), 0.0)
    return Choice(0, "r", SamplingParams(**params), byte_tokenizer(), [97], clock)


def output(text: str, **fields: Any) -> TokenOutput:
    return TokenOutput(request_id="r", token_ids=list(text.encode()), **fields)


def test_tokens_that_come_together_after_a_stop_string_are_dropped() -> None:
    entries = [TokenLogprobs(byte, -1.0, 1, [], []) for byte in b"abSTOPxy"]
    event = choice(stop=["STOP"]).consume(output("abSTOPxy", logprobs=entries), 1.0)
    assert event is not None
    assert (event.text, event.finish_reason, event.stop_reason) == ("ab", FinishReason.STOP, "STOP")
    assert bytes(event.token_ids) == b"abSTOP"
    assert event.logprobs is not None
    assert len(event.logprobs) == 6


def test_a_stop_string_wins_over_the_length_limit() -> None:
    event = choice(stop=["b"]).consume(output("ab", finish_reason="length"), 1.0)
    assert event is not None
    assert (event.text, event.finish_reason, event.stop_reason) == ("a", FinishReason.STOP, "b")


def test_a_stop_token_has_no_text_unless_asked_for() -> None:
    for included, text in ((False, "a"), (True, "ab")):
        event = choice(include_stop_str_in_output=included).consume(output("ab", finish_reason="stop", stop_reason=98), 1.0)
        assert event is not None
        assert (event.text, event.stop_reason) == (text, 98)


def test_an_unfinished_character_is_not_shown() -> None:
    made = choice()
    first = made.consume(TokenOutput(request_id="r", token_ids=[0xC3]), 1.0)
    last = made.consume(TokenOutput(request_id="r", token_ids=[0xA9, 0xC3], finish_reason="length"), 2.0)
    assert first is not None
    assert last is not None
    assert (first.text, last.text) == ("", "é")


def test_news_of_the_queue_are_no_event() -> None:
    assert choice().consume(TokenOutput(request_id="r", scheduled_at=1.0), 1.0) is None


def test_logprobs_show_the_token_first_and_no_token_twice() -> None:
    entry = TokenLogprobs(token_id=98, logprob=-2.0, rank=2, top_ids=[97, 98, 99], top_logprobs=[-1.0, -2.0, -3.0])
    event = choice().consume(output("b", logprobs=[entry]), 1.0)
    assert event is not None
    assert event.logprobs is not None
    assert [(token_id, item.rank, item.decoded_token) for token_id, item in event.logprobs[0].items()] == [(98, 2, "b"), (97, 1, "a"), (99, 3, "c")]


# -- defaults -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation_config", "overrides", "expected"),
    [
        ({}, {}, {}),
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 20}, {}, {"temperature": 0.6, "top_p": 0.9, "top_k": 20}),
        ({"temperature": 0.6}, {"temperature": 0.1, "min_p": 0.2}, {"temperature": 0.1, "min_p": 0.2}),
        ({"do_sample": False, "temperature": 0.6}, {}, {"temperature": 0.0}),
        ({"max_new_tokens": 50, "repetition_penalty": 1.1}, {}, {"max_tokens": 50, "repetition_penalty": 1.1}),
        ({"temperature": "hot", "top_p": 5, "top_k": None, "eos_token_id": 3}, {}, {}),
        ({"max_new_tokens": 10**30, "top_k": 10**30, "repetition_penalty": 1e-40}, {}, {}),
        ({"max_new_tokens": True}, {"max_new_tokens": 2.5}, {}),
    ],
)
def test_sampling_defaults(generation_config: dict[str, Any], overrides: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sampling_defaults(generation_config, overrides) == expected


def test_a_suggestion_that_is_ignored_is_told(caplog: pytest.LogCaptureFixture) -> None:
    sampling_defaults({"max_new_tokens": 10**30}, {})
    assert "max_tokens is ignored" in caplog.text


def test_the_models_defaults_can_be_switched_off() -> None:
    suggested = {"temperature": 0.6}
    assert backend(generation_config=suggested)[0].info.sampling_defaults == suggested
    settings = ModelSettings(model="m", generation_config="vllm", override_generation_config={"top_p": 0.5})
    assert backend(generation_config=suggested, settings=settings)[0].info.sampling_defaults == {"top_p": 0.5}


@pytest.mark.parametrize(
    ("config", "generation_config", "expected"),
    [
        ({}, {}, [EOS_ID]),
        ({"eos_token_id": 5}, {"eos_token_id": [6, 5]}, [EOS_ID, 5, 6]),
        ({"eos_token_id": None}, {"eos_token_id": [None, 7]}, [EOS_ID, 7]),
        ({"eos_token_id": True}, {"eos_token_id": [False, -1, VOCAB_SIZE, 2**70, "3", 5.0, 8]}, [EOS_ID, 8]),
        ({"eos_token_id": 5.0}, {"eos_token_id": "7"}, [EOS_ID]),
    ],
)
def test_eos_token_ids(config: dict[str, Any], generation_config: dict[str, Any], expected: list[int]) -> None:
    assert eos_token_ids(byte_tokenizer(), config, generation_config, vocab_size=VOCAB_SIZE) == expected
    assert eos_token_ids(None, config, generation_config, vocab_size=VOCAB_SIZE) == expected[1:]


def test_bad_words_read_the_same_after_a_space() -> None:
    assert bad_words_token_ids(["ab", " "], byte_tokenizer()) == [list(b"ab"), list(b" ")]
    assert bad_words_token_ids(None, byte_tokenizer()) == []


def test_backends_by_name() -> None:
    assert backend_names() == ["llm"]
    with pytest.raises(ConfigError, match="known: llm"):
        create_backend("other")
    engine = FakeEngine()
    arguments: dict[str, Any] = {"tokenizer": None, "template": None, "config": {}, "generation_config": {}, "settings": ModelSettings(model="m")}
    assert create_backend("llm", name="m", engine=engine, registry=Registry(), **arguments).info.name == "m"


# -- feeds --------------------------------------------------------------------------------------------------------------------------


async def at_once(outputs: list[TokenOutput]) -> AsyncIterator[TokenOutput]:
    for one in outputs:
        yield one


async def test_what_came_after_a_choice_ended_is_dropped() -> None:
    choices = [choice(stop=["b"]), choice()]
    choices[1].index = 1
    feed = create_feed(choices, [at_once([output("a"), output("b"), output("c"), output("d")]), at_once([output("x", finish_reason="stop")])])
    await asyncio.sleep(0.01)
    texts: list[bytes] = []
    while not all(one.is_finished for one in choices):
        found, tokens = await feed.get()
        texts.append(bytes(tokens.token_ids))
        found.consume(tokens, 1.0)
        if found.is_finished:
            await feed.stop(found)
            await feed.stop(found)
    assert texts == [b"a", b"b", b"x"]
    await feed.close()


async def test_an_iterator_that_can_not_be_closed_is_left_alone() -> None:
    class Plain:
        def __aiter__(self) -> Plain:
            return self

        async def __anext__(self) -> TokenOutput:
            return output("a")

    feed = create_feed([choice()], [Plain()])
    await feed.get()
    await feed.stop(choice())
    await feed.close()
