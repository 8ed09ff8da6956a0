"""What TGI's answers say of tokens: alternatives and ties, places in a text, pieces of a text that several tokens brought."""

from __future__ import annotations

import pytest
from helpers_scripted_engine import FakeEngine, byte_tokenizer, fake_backend

from trivium.backends.base import ChatPrompt
from trivium.backends.llm_choice import Choice
from trivium.errors import InvalidRequest, PromptTooLong
from trivium.frontends.tgi.generate import warning_headers
from trivium.frontends.tgi.reply import Prompt, Reply, Timer
from trivium.frontends.tgi.schema import GenerateBody, LaxGenerateBody, Parameters, Parser, unknown_fields
from trivium.frontends.tgi.tokens import most_likely, token_shapes
from trivium.metrics.instruments import Registry
from trivium.metrics.sequence import ModelMetrics, SequenceClock
from trivium.protocol.messages import TokenLogprobs, TokenOutput
from trivium.repository.manager import ModelManager
from trivium.service import InferenceService
from trivium.text.stop import StopStringMatcher
from trivium.types import ChatMessage, FinishReason, Logprob, PromptInfo, SamplingParams, TokenEvent


@pytest.mark.parametrize(("count", "expected"), [(0, []), (1, [0]), (2, [0, 3]), (3, [0, 3, 1, 4]), (4, [0, 3, 1, 4]), (5, [0, 3, 1, 4, 2])])
def test_top_tokens_with_ties(count: int, expected: list[int]) -> None:
    """TGI's own unit test."""
    entries = {token_id: Logprob(value) for token_id, value in enumerate((-1.0, -3.0, -4.0, -2.0, -3.0))}
    assert most_likely(entries, count) == expected


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        (["/test"], ["/test;"], None),
        (["/test", ";"], ["/test;"], "/test;"),
        (["/te", "st; more"], ["/test;"], "/test;"),
        (["a\n", "\nfoo"], ["\n\n"], "a\n\n"),
        (["aab", "aac"], ["aabaac"], "aabaac"),
    ],
)
def test_stop_strings_that_are_kept_hold_nothing_back(pieces: list[str], stop: list[str], text: str | None) -> None:
    matcher = StopStringMatcher(stop, include_in_output=True)
    shown: list[str] = []
    for piece in pieces:
        shown.append(matcher.push(piece))
        assert matcher.matched is not None or shown[-1] == piece
    assert ("".join(shown) if matcher.matched else None) == text


def choice_of(params: SamplingParams) -> Choice:
    return Choice(0, "r", params, byte_tokenizer(), [97], SequenceClock(ModelMetrics(Registry(), "m"), 0.0))


def consume(text: bytes, finish_reason: str | None = None, **params: object) -> TokenEvent:
    ids = list(text)
    entries = [TokenLogprobs(token_id, -0.5, 1, [], []) for token_id in ids]
    output = TokenOutput(request_id="r", token_ids=ids, finish_reason=finish_reason, logprobs=entries)
    event = choice_of(SamplingParams(include_stop_str_in_output=True, **params)).consume(output, 1.0)  # type: ignore[arg-type]
    assert event is not None
    return event


def test_tokens_that_came_together_have_a_piece_of_the_text_each() -> None:
    event = consume("aé!".encode())
    assert (event.text, event.pieces) == ("aé!", ["a", "", "é", "!"])
    event = consume(b"a")
    assert (event.text, event.pieces) == ("a", None)
    event = consume(b"abcd", stop=["bc"])
    assert (event.text, event.pieces, event.token_ids, event.finish_reason) == ("abc", ["a", "b", "c"], [97, 98, 99], FinishReason.STOP)


def test_shapes_of_tokens_that_came_together() -> None:
    backend = fake_backend(FakeEngine(), Registry())
    event = consume("é!".encode())
    shapes = token_shapes(event, backend)
    assert [shape["text"] for shape in shapes] == ["", "é", "!"]
    assert "".join(shape["text"] for shape in shapes) == event.text


async def test_where_tokens_are_in_a_text() -> None:
    manager = ModelManager()
    manager.add(("fake",), fake_backend(FakeEngine(), Registry()))
    service = InferenceService(manager)
    spans = await service.spans("fake", "a你b")
    assert [(span.start, span.stop) for span in spans] == [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]
    prompt = ChatPrompt(messages=[ChatMessage(role="user", content="x")], add_generation_prompt=False)
    assert await service.render_chat("fake", prompt) == "<|im_start|>user\nx<|im_end|>\n"


def test_places_are_bounded_as_token_ids_are() -> None:
    tokenizer = byte_tokenizer()
    assert [span.token_id for span in tokenizer.encode_spans("ab")] == [97, 98]
    with pytest.raises(PromptTooLong):
        tokenizer.encode_spans("abc", max_tokens=2)
    with pytest.raises(InvalidRequest, match="surrogate"):
        tokenizer.encode_spans("\ud800")


# -- replies ------------------------------------------------------------------------------------------------------------------------


def reply_for(parameters: Parameters, **kwargs: bool) -> Reply:
    backend = fake_backend(FakeEngine(), Registry())
    return Reply(Prompt(text="ab", token_ids=[97, 98], max_tokens=None), parameters, backend.info, backend, Timer(), **kwargs)


def event_of(index: int, logprobs: list[float], *, text: str = "x") -> TokenEvent:
    ids = list(range(97, 97 + len(logprobs)))
    entries = [{token_id: Logprob(value, 1, "x")} for token_id, value in zip(ids, logprobs, strict=True)]
    event = TokenEvent(index=index, text=text, token_ids=ids, logprobs=entries, finish_reason=FinishReason.LENGTH)
    event.pieces = [text, *[""] * (len(ids) - 1)]
    return event


async def test_the_best_answer_has_the_highest_mean_logprob() -> None:
    reply = reply_for(Parameters(best_of=2, do_sample=True, details=True))
    await reply.on_event(PromptInfo(prompt=None, prompt_token_ids=[97, 98]))
    await reply.on_event(event_of(0, [-1.0, -1.0], text="worse"))
    await reply.on_event(event_of(1, [-0.5, -0.9, -0.9], text="better"))
    shape = reply.shape()
    assert shape["generated_text"] == "better"
    assert [other["generated_text"] for other in shape["details"]["best_of_sequences"]] == ["worse"]
    assert reply.num_generated_tokens == 3


async def test_an_answer_that_was_cut_off_is_no_answer() -> None:
    event = event_of(0, [-1.0])
    event.finish_reason = FinishReason.ABORT
    for is_stream, kind in ((False, "incomplete_generation"), (True, "incomplete_generation_stream")):
        with pytest.raises(Exception, match="Incomplete generation") as error:
            await reply_for(Parameters(), is_stream=is_stream).on_event(event)
        assert (error.value.status, error.value.code) == (500, kind)  # type: ignore[attr-defined]


def test_what_is_asked_of_the_engine() -> None:
    greedy = reply_for(Parameters(temperature=1.0, stop=["x"])).request("r", timeout_s=2.0, client="c")
    assert greedy.params.is_greedy
    assert (greedy.params.seed, greedy.params.logprobs, greedy.params.max_tokens) == (None, None, None)
    assert (greedy.params.stop, greedy.params.include_stop_str_in_output) == (["x"], True)
    assert (greedy.timeout_s, greedy.client, greedy.prompt_token_ids) == (2.0, "c", [97, 98])
    sampled = reply_for(Parameters(typical_p=0.9, top_n_tokens=2, details=True)).request("r", timeout_s=None, client="").params
    assert (sampled.temperature, sampled.typical_p, sampled.logprobs) == (1.0, 0.9, 7)
    assert sampled.seed is not None
    streamed = reply_for(Parameters(), is_stream=True).request("r", timeout_s=None, client="").params
    assert streamed.logprobs == 0


# -- fields that are ignored --------------------------------------------------------------------------------------------------------


def test_unknown_fields_are_found_wherever_they_are() -> None:
    parse, ignored = Parser(GenerateBody, LaxGenerateBody), []
    body = parse(b'{"inputs": "a", "x": 1, "parameters": {"top_k": 3, "y": {}}}', ignored)
    assert (body.inputs, body.settings.top_k) == ("a", 3)
    assert ignored == ["x", "parameters.y"]
    assert unknown_fields(GenerateBody, {"inputs": "a", "parameters": None}) == []
    with pytest.raises(InvalidRequest, match="top_k"):
        parse(b'{"inputs": "a", "x": 1, "parameters": {"top_k": "3"}}', [])


def test_few_of_them_are_named() -> None:
    assert warning_headers([]) == []
    [(name, value)] = warning_headers([f"k{index}" for index in range(12)])
    assert name == b"warning"
    assert value.endswith(b'k9 and 2 more"')
