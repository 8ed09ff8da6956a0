"""`/v1/chat/completions` through the official client. The scripted engine answers with the rendered prompt, its special tokens left out."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from helpers_server import ServerProcess, events

OPTIONS = {"http": {"trust_request_chat_template": True}}
MESSAGES = [{"role": "user", "content": "Hi"}]
ANSWER = "user\nHi\nassistant\n"


def chat(client: openai.OpenAI, messages: Any = MESSAGES, **kwargs: Any) -> Any:
    return client.chat.completions.create(model="fake", messages=messages, **{"temperature": 0, **kwargs})


def test_an_answer_has_everything_the_client_types(client: openai.OpenAI) -> None:
    answer = chat(client, max_tokens=12)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    [choice] = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert (choice.message.role, choice.message.content, choice.message.refusal) == ("assistant", ANSWER[:12], None)
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_without_max_tokens_the_rest_of_the_context_is_used(client: openai.OpenAI) -> None:
    assert chat(client).usage.total_tokens == 1024


def test_max_completion_tokens(client: openai.OpenAI) -> None:
    assert chat(client, max_completion_tokens=3).usage.completion_tokens == 3
    assert chat(client, max_completion_tokens=3, max_tokens=3).usage.completion_tokens == 3


def test_a_stream_is_a_role_chunk_contents_a_finish_chunk_and_usage(client: openai.OpenAI) -> None:
    role, *contents, finish, usage = chat(client, max_tokens=4, stream=True, stream_options={"include_usage": True})
    assert role.object == "chat.completion.chunk"
    assert (role.choices[0].delta.role, role.choices[0].delta.content, role.choices[0].finish_reason) == ("assistant", "", None)
    assert [(chunk.choices[0].delta.role, chunk.choices[0].delta.content) for chunk in contents] == [(None, char) for char in "user"]
    assert (finish.choices[0].delta.content, finish.choices[0].finish_reason) == (None, "length")
    assert (usage.choices, usage.usage.completion_tokens) == ([], 4)
    assert len({chunk.id for chunk in (role, *contents, finish, usage)}) == 1


def test_the_clients_own_stream_helper(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "!end"}]
    with client.chat.completions.stream(model="fake", messages=messages, max_tokens=60, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("content.delta") >= 5
    assert final.choices[0].message.content == "user\n"
    assert final.choices[0].finish_reason == "stop"


async def test_the_asynchronous_client(server: ServerProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        stream = await client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=6, temperature=0, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == ANSWER[:6]


def test_the_stream_ends_with_done(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 2, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events(answer.text)[-1] == "[DONE]"


@pytest.mark.parametrize("content", ["plain", "Grüße, 世界 😀", "stop ST STO STOP here"])
@pytest.mark.parametrize("stop", [None, ["STOP"], ["世", "er"]])
def test_stream_equals_non_stream(client: openai.OpenAI, content: str, stop: Any) -> None:
    messages = [{"role": "user", "content": content}]
    whole = chat(client, messages, max_tokens=150, stop=stop)
    chunks = list(chat(client, messages, max_tokens=150, stop=stop, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-2].choices[0].stop_reason == whole.choices[0].stop_reason
    assert chunks[-1].usage == whole.usage


def test_n_choices_each_begin_with_a_role_and_end_with_a_reason(client: openai.OpenAI) -> None:
    seen: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    for chunk in chat(client, max_tokens=3, n=3, temperature=1, seed=0, stream=True):
        seen[chunk.choices[0].index].append(chunk.choices[0])
    whole = chat(client, max_tokens=3, n=3, temperature=1, seed=0)
    for index, choices in seen.items():
        assert choices[0].delta.role == "assistant"
        assert choices[-1].finish_reason == "length"
        assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[index].message.content
    assert len({choice.message.content for choice in whole.choices}) == 3


def test_logprobs(client: openai.OpenAI) -> None:
    [choice] = chat(client, max_tokens=2, logprobs=True, top_logprobs=2).choices
    first = choice.logprobs.content[0]
    assert (first.token, first.logprob, first.bytes) == ("u", -0.5, [117])
    assert [(top.token, top.logprob, top.bytes) for top in first.top_logprobs] == [("u", -0.5, [117]), ("v", -1.5, [118])]
    assert chat(client, max_tokens=1, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_streamed_logprobs_equal_the_whole_ones(client: openai.OpenAI) -> None:
    whole = chat(client, max_tokens=5, logprobs=True, top_logprobs=1).choices[0].logprobs.content
    chunks = [chunk.choices[0].logprobs for chunk in chat(client, max_tokens=5, logprobs=True, top_logprobs=1, stream=True)]
    assert [item for chunk in chunks if chunk is not None for item in chunk.content] == whole


def test_bytes_of_parts_of_a_character(client: openai.OpenAI) -> None:
    content = chat(client, [{"role": "user", "content": "é"}], max_tokens=7, logprobs=True).choices[0].logprobs.content
    assert bytes(byte for item in content for byte in item.bytes).decode() == "user\né"


def test_content_parts_are_joined(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    answer = chat(client, [{"role": "user", "content": parts}], max_tokens=12)
    assert answer.choices[0].message.content == "user\none\ntwo"


def test_roles(client: openai.OpenAI) -> None:
    messages = [{"role": "developer", "content": "D"}, {"role": "user", "content": "U", "name": "me"}, {"role": "assistant", "content": None}]
    assert chat(client, messages, max_tokens=26).choices[0].message.content == "system\nD\nuser\nU\nassistant\n"


def test_an_answer_may_be_fed_back_as_the_client_dumps_it(client: openai.OpenAI) -> None:
    first = chat(client, max_tokens=4).choices[0].message
    answer = chat(client, [*MESSAGES, first, {"role": "user", "content": "and?"}], max_tokens=40)
    assert answer.choices[0].message.content.startswith("user\nHi\nassistant\nuser\nuser\nand?")
    full = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    assert chat(client, [*MESSAGES, full], max_tokens=1).choices[0].message.content == "u"


def test_continue_final_message_and_echo(client: openai.OpenAI) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "Sure:"}]
    extra = {"continue_final_message": True, "echo": True}
    answer = chat(client, messages, max_tokens=4, extra_body=extra)
    assert answer.choices[0].message.content == "Sure:user"
    chunks = list(chat(client, messages, max_tokens=4, extra_body=extra, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Sure:user"
    assert answer.usage.prompt_tokens == len("user\nHi\nassistant\nSure:") + 3


def test_the_requests_own_template_where_it_is_trusted(client: openai.OpenAI) -> None:
    extra = {"chat_template": "{{ greeting }} {{ messages[0].content }}", "chat_template_kwargs": {"greeting": "Oh"}}
    assert chat(client, max_tokens=5, extra_body=extra).choices[0].message.content == "Oh Hi"


def test_a_bad_template_is_the_requests_fault(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        chat(client, max_tokens=5, extra_body={"chat_template": "{% if %}"})


def test_return_token_ids(http: httpx.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, "temperature": 0, "return_token_ids": True}
    whole = http.post("/v1/chat/completions", json=body).json()
    assert whole["choices"][0]["token_ids"] == [117, 115]
    assert whole["prompt_token_ids"][0] == 258
    chunks = events(http.post("/v1/chat/completions", json={**body, "stream": True}).text)[:-1]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [chunk["choices"][0].get("token_ids") for chunk in chunks] == [None, [117], [115], None]


def test_prompt_logprobs(http: httpx.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1, "prompt_logprobs": 0}
    logprobs = http.post("/v1/chat/completions", json=body).json()["prompt_logprobs"]
    assert logprobs[0] is None
    assert logprobs[1] == {"117": {"logprob": -0.5, "rank": 1, "decoded_token": "u"}}


def test_continuous_usage(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(chat(client, max_tokens=2, stream=True, stream_options=options))
    assert [chunk.usage.completion_tokens for chunk in chunks] == [0, 1, 2, 2, 2]


def test_fields_that_ask_for_nothing_are_accepted(client: openai.OpenAI) -> None:
    nothing: dict[str, Any] = {
        **dict.fromkeys(("tools", "tool_choice", "audio", "prediction", "seed", "stop", "logit_bias", "response_format", "n", "stream_options")),
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "include_reasoning": True,
    }
    assert chat(client, max_tokens=1, extra_body=nothing).choices[0].message.content == "u"
    assert chat(client, max_tokens=1, response_format={"type": "text"}, tools=[], tool_choice="none").choices[0].message.content == "u"
