"""`/v1/completions` through the official client. The scripted engine answers a prompt with the prompt, byte by byte, again and again."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from helpers_server import ServerProcess, events, post_bytes


def complete(client: openai.OpenAI, prompt: Any = "abcdef", **kwargs: Any) -> Any:
    return client.completions.create(model="fake", prompt=prompt, **{"temperature": 0, **kwargs})


def streamed(client: openai.OpenAI, prompt: Any = "abcdef", **kwargs: Any) -> list[Any]:
    return list(complete(client, prompt, stream=True, **kwargs))


def test_a_completion_has_everything_the_client_types(client: openai.OpenAI) -> None:
    answer = complete(client, max_tokens=8)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == "fake"
    [choice] = answer.choices
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, "abcdefab", "length", None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (6, 8, 14)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_max_tokens_is_16_by_default(client: openai.OpenAI) -> None:
    assert complete(client).usage.completion_tokens == 16


def test_max_tokens_beyond_the_context_is_an_upper_bound_not_a_reservation(client: openai.OpenAI) -> None:
    answer = complete(client, max_tokens=1_000_000)
    assert answer.usage.total_tokens == 1024
    assert answer.choices[0].finish_reason == "length"


def test_one_token(client: openai.OpenAI) -> None:
    assert complete(client, max_tokens=1).choices[0].text == "a"
    assert [chunk.choices[0].text for chunk in streamed(client, max_tokens=1)] == ["a"]


def test_eos_ends_and_has_no_text(client: openai.OpenAI) -> None:
    [choice] = complete(client, "!end.", max_tokens=50).choices
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("!end.", "stop", None)


@pytest.mark.parametrize("prompt", ["plain", "Grüße, 世界 😀", "emoji 👩‍👩‍👧‍👦 family"])
@pytest.mark.parametrize("stop", [None, "世", ["l", "x"], ["界 😀G"]])
@pytest.mark.parametrize("included", [False, True])
def test_stream_equals_non_stream(client: openai.OpenAI, prompt: str, stop: Any, included: bool) -> None:
    options = {"max_tokens": 70, "stop": stop, "extra_body": {"include_stop_str_in_output": included}}
    whole = complete(client, prompt, **options)
    chunks = streamed(client, prompt, stream_options={"include_usage": True}, **options)
    *content, usage = chunks
    assert "".join(chunk.choices[0].text for chunk in content) == whole.choices[0].text
    assert content[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert content[-1].choices[0].stop_reason == whole.choices[0].stop_reason
    assert all(chunk.choices[0].finish_reason is None for chunk in content[:-1])
    assert usage.choices == []
    assert usage.usage == whole.usage
    assert "\ufffd" not in whole.choices[0].text


def test_a_stop_string_is_never_shown_in_part(client: openai.OpenAI) -> None:
    chunks = streamed(client, "one two STOP three ", max_tokens=60, stop=["STOP"])
    texts = [chunk.choices[0].text for chunk in chunks]
    assert "".join(texts) == "one two "
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].choices[0].stop_reason == "STOP"


def test_text_held_back_for_a_stop_string_is_flushed_at_the_end(client: openai.OpenAI) -> None:
    assert complete(client, "abcST", max_tokens=5, stop="STOP").choices[0].text == "abcST"
    assert "".join(chunk.choices[0].text for chunk in streamed(client, "abcST", max_tokens=5, stop="STOP")) == "abcST"


def test_min_tokens_puts_off_stop_strings(client: openai.OpenAI) -> None:
    [choice] = complete(client, "ab", max_tokens=20, stop="b", extra_body={"min_tokens": 5}).choices
    assert choice.text == "ababa"


def test_a_stop_string_frees_the_engine(server: ServerProcess, client: openai.OpenAI) -> None:
    complete(client, max_tokens=1000, stop="f")
    metrics = server.metrics()
    assert metrics['vllm:num_requests_running{engine="0",model_name="fake"}'] == 0
    assert metrics['vllm:kv_cache_usage_perc{engine="0",model_name="fake"}'] == 0


def test_stop_token_ids(client: openai.OpenAI) -> None:
    [choice] = complete(client, max_tokens=20, extra_body={"stop_token_ids": [ord("c")]}).choices
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("ab", "stop", ord("c"))


def test_n_choices_have_streams_of_their_own(client: openai.OpenAI) -> None:
    answer = complete(client, n=3, max_tokens=4, temperature=1, seed=1)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "bcde"), (1, "cdef"), (2, "defa")]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 12)


def test_n_greedy_choices_are_equal(client: openai.OpenAI) -> None:
    answer = complete(client, n=3, max_tokens=4)
    assert [choice.text for choice in answer.choices] == ["abcd"] * 3
    assert answer.usage.completion_tokens == 12
    texts = {0: "", 1: "", 2: ""}
    for chunk in streamed(client, n=3, max_tokens=4):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "abcd", 1: "abcd", 2: "abcd"}


def test_a_list_of_prompts_with_n(client: openai.OpenAI) -> None:
    answer = complete(client, ["abc", "xyz!"], n=2, max_tokens=3, temperature=1, seed=0)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "abc"), (1, "bca"), (2, "xyz"), (3, "yz!")]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 12)


def test_a_list_of_prompts_streamed(client: openai.OpenAI) -> None:
    texts: dict[int, str] = {}
    finished: list[int] = []
    *content, usage = streamed(client, ["abc", "xyz!"], max_tokens=9, stream_options={"include_usage": True})
    for chunk in content:
        [choice] = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + choice.text
        if choice.finish_reason:
            finished.append(choice.index)
    assert texts == {0: "abcabcabc", 1: "xyz!xyz!x"}
    assert sorted(finished) == [0, 1]
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (7, 18)


@pytest.mark.parametrize("prompt", [[97, 98, 99], [[97, 98, 99]]])
def test_token_ids_as_prompt(client: openai.OpenAI, prompt: Any) -> None:
    assert complete(client, prompt, max_tokens=4).choices[0].text == "abca"


def test_lists_of_token_ids(client: openai.OpenAI) -> None:
    assert [choice.text for choice in complete(client, [[97, 98], [120]], max_tokens=2).choices] == ["ab", "xx"]


def test_logprobs(client: openai.OpenAI) -> None:
    [choice] = complete(client, "xy", max_tokens=2, logprobs=2).choices
    assert choice.logprobs.tokens == ["x", "y"]
    assert choice.logprobs.token_logprobs == [-0.5, -0.5]
    assert choice.logprobs.text_offset == [0, 1]
    assert choice.logprobs.top_logprobs == [{"x": -0.5, "y": -1.5}, {"y": -0.5, "z": -1.5}]


def test_logprobs_of_the_chosen_token_alone(client: openai.OpenAI) -> None:
    [choice] = complete(client, "xy", max_tokens=1, logprobs=0).choices
    assert choice.logprobs.top_logprobs == [{"x": -0.5}]


def test_streamed_logprobs_equal_the_whole_ones(client: openai.OpenAI) -> None:
    whole = complete(client, "ab é", max_tokens=7, logprobs=1).choices[0].logprobs
    chunks = [chunk.choices[0].logprobs for chunk in streamed(client, "ab é", max_tokens=7, logprobs=1)]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [item for chunk in chunks for item in getattr(chunk, name)] == getattr(whole, name)


def test_tokens_as_ids(client: openai.OpenAI) -> None:
    [choice] = complete(client, "xy", max_tokens=1, logprobs=1, extra_body={"return_tokens_as_token_ids": True}).choices
    assert choice.logprobs.tokens == ["token_id:120"]


def test_return_token_ids(http: httpx.Client, client: openai.OpenAI) -> None:
    [choice] = complete(client, "xy", max_tokens=3, extra_body={"return_token_ids": True}).choices
    assert choice.token_ids == [120, 121, 120]
    assert choice.prompt_token_ids == [120, 121]
    body = {"prompt": "xy", "max_tokens": 3, "temperature": 0, "stream": True, "return_token_ids": True}
    chunks = events(http.post("/v1/completions", json=body).text)[:-1]
    assert [chunk["choices"][0]["token_ids"] for chunk in chunks] == [[120], [121], [120]]
    assert [chunk["choices"][0].get("prompt_token_ids") for chunk in chunks] == [[120, 121], None, None]


def test_echo(client: openai.OpenAI) -> None:
    assert complete(client, "abc", max_tokens=2, echo=True).choices[0].text == "abcab"
    assert "".join(chunk.choices[0].text for chunk in streamed(client, "abc", max_tokens=2, echo=True)) == "abcab"
    assert complete(client, [97, 98, 99], max_tokens=2, echo=True).choices[0].text == "abcab"


def test_echo_with_logprobs_shows_those_of_the_prompt(client: openai.OpenAI) -> None:
    answer = complete(client, "xy", max_tokens=1, echo=True, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs.token_logprobs == [None, -0.5, -0.5]
    assert logprobs.top_logprobs == [None, {"y": -0.5}, {"x": -0.5}]
    assert logprobs.tokens[1:] == ["y", "x"]
    assert logprobs.text_offset == [0, 1, 2]


def test_echo_of_a_prompt_that_was_cut_shows_what_is_left(client: openai.OpenAI) -> None:
    answer = complete(client, "abcdé", max_tokens=1, echo=True, logprobs=0, extra_body={"truncate_prompt_tokens": 4})
    assert answer.choices[0].text == "cdéc"
    assert answer.choices[0].logprobs is not None
    assert (answer.choices[0].logprobs.text_offset or [])[:3] == [0, 1, 2]


def test_echo_without_tokens_is_the_prompt_alone(client: openai.OpenAI) -> None:
    answer = complete(client, "xyz", max_tokens=0, echo=True, logprobs=1)
    [choice] = answer.choices
    assert choice.text == "xyz"
    assert len(choice.logprobs.tokens) == 3
    assert answer.usage.completion_tokens == 0
    assert choice.finish_reason == "length"


def test_prompt_logprobs(client: openai.OpenAI) -> None:
    [choice] = complete(client, "xy", max_tokens=1, n=2, temperature=1, seed=0, extra_body={"prompt_logprobs": 1}).choices[:1]
    assert choice.prompt_logprobs == [None, {"121": {"logprob": -0.5, "rank": 1, "decoded_token": "y"}}]


def test_continuous_usage(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(client, "abc", max_tokens=3, stream_options=options)
    assert [chunk.usage.completion_tokens for chunk in chunks] == [1, 2, 3, 3]
    assert [len(chunk.choices) for chunk in chunks] == [1, 1, 1, 0]


def test_no_usage_unless_asked_for(http: httpx.Client) -> None:
    text = http.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2, "stream": True}).text
    *chunks, done = events(text)
    assert done == "[DONE]"
    assert all("usage" not in chunk for chunk in chunks)


def test_top_p_zero_means_the_most_likely_token_and_one_is_allowed(client: openai.OpenAI) -> None:
    for top_p in (0, 1):
        assert complete(client, max_tokens=2, top_p=top_p, temperature=1, seed=0).choices[0].text == "ab"


def test_truncate_prompt_tokens_keeps_the_end(client: openai.OpenAI) -> None:
    answer = complete(client, "abcdef", max_tokens=2, extra_body={"truncate_prompt_tokens": 2})
    assert answer.choices[0].text == "ef"
    assert answer.usage.prompt_tokens == 2
    answer = complete(client, "ab" * 3000, max_tokens=10, extra_body={"truncate_prompt_tokens": -1})
    assert answer.usage.prompt_tokens == 1014


def test_request_id_of_header_and_body(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers={"X-Request-Id": "my-id.1"})
    assert answer.headers["x-request-id"] == "my-id.1"
    assert answer.json()["id"] == "cmpl-my-id.1"
    assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, "request_id": "other"}).json()["id"] == "cmpl-other"
    strange = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers={"X-Request-Id": "x" * 500})
    assert len(strange.headers["x-request-id"]) == 32


def test_the_same_request_id_twice_at_once_is_no_problem(server: ServerProcess) -> None:
    with server.raw() as first, server.raw() as second:
        data = post_bytes("/v1/completions", {"prompt": "abc", "max_tokens": 300, "stream": True, "request_id": "same"})
        first.send(data)
        second.send(data)
        for connection in (first, second):
            assert b'"finish_reason":"length"' in connection.read_until(b"[DONE]")


def test_cached_tokens_are_reported(client: openai.OpenAI) -> None:
    answer = complete(client, "!cached" * 10, max_tokens=1)
    assert answer.usage.prompt_tokens_details.cached_tokens == 64


def test_model_may_be_an_alias_or_missing(http: httpx.Client, client: openai.OpenAI) -> None:
    assert client.completions.create(model="fake-alias", prompt="a", max_tokens=1).model == "fake-alias"
    assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).json()["model"] == "fake"
