"""What is refused, how, and that the official client types it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from helpers_server import ServerProcess, events

COMPLETION = {"prompt": "abc", "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def refused(http: httpx.Client, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [97, 260]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"seed": -2}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop_token_ids": [260]}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["w"] * 129}, "bad_words"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"260": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "a"}}, "logit_bias[...]"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"min_tokens": 2000, "max_tokens": 2000}, "min_tokens"),
        ({"min_tokens": 2**63, "max_tokens": 2**63}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"top_k": 2**63}, "top_k"),
        ({"priority": 2**63}, "priority"),
        ({"priority": 2**31}, "priority"),
        ({"priority": -(2**64)}, "priority"),
        ({"logprobs": 2**63}, "logprobs"),
        ({"prompt_logprobs": 2**64}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 2**64}, "truncate_prompt_tokens"),
        ({"stop_token_ids": [2**64]}, "stop_token_ids"),
        ({"prompt": [2**64]}, "prompt"),
        ({"n": 2**64}, "n"),
        ({"stop": ["x" * 2000] * 3}, "stop"),
        ({"stop": "x" * 4097}, "stop"),
        ({"bad_words": ["x" * 65]}, "bad_words"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"allowed_token_ids": [256], "min_tokens": 1}, "allowed_token_ids"),
        ({"cache_salt": "x" * 1025}, "cache_salt"),
        ({"logit_bias": {str(number): 1 for number in range(16_385)}}, "logit_bias"),
        ({"prompt": ["a"] * 1300}, "prompt"),
        ({"prompt": ["a"] * 8193}, "prompt"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "include_obfuscation"),
        ({"stream": "yes"}, "stream"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 1025}, "truncate_prompt_tokens"),
        ({"truncation_side": "right"}, "truncation_side"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"request_id": "a b"}, "request_id"),
        ({"user": 5}, "user"),
        ({"max_tokes": 5}, "max_tokes"),
        ({"messages": []}, "messages"),
        ({"suffix": "end"}, "suffix"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
        ({"guided_json": {"type": "bogus"}}, "guided_json"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": []}}, "response_format.json_schema"),
        ({"response_format": {"type": "regex", "value": 5}}, "response_format"),
    ],
)
def test_a_bad_completion_request_names_its_field(http: httpx.Client, changes: dict[str, Any], param: str) -> None:
    error = refused(http, "/v1/completions", {**COMPLETION, **changes})
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}] * 8193}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 4097}] * 2}, "messages"),
        ({"max_completion_tokens": 2**63, "max_tokens": None}, "max_completion_tokens"),
        ({"max_tokens": None, "min_tokens": 2**63}, "min_tokens"),
        ({"max_tokens": None, "min_tokens": 2000}, "min_tokens"),
        ({"logprobs": True, "top_logprobs": 2**63}, "top_logprobs"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "mood": "y"}]}, "messages[0].mood"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}]}, "messages[0].content[0].y"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"audio": {}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"store": True}, "store"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "bogus"}}}}, "response_format.json_schema.schema"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"max_completion_tokens": 3}, "max_tokens"),
        ({"max_tokens": None, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"chat_template": "x"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_a_bad_chat_request_names_its_field(http: httpx.Client, changes: dict[str, Any], param: str) -> None:
    assert refused(http, "/v1/chat/completions", {**CHAT, **changes})["param"] == param


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'"x"',
        b'{"temperature": NaN}',
        b'{"temperature": 1e999}',
        b'{"temperature": Infinity}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'{"metadata": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        b"[" * 100_000,
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "a"} trailing',
        b"\xef\xbb\xbf{}",
    ],
    ids=range(16),
)
def test_malformed_bodies(http: httpx.Client, path: str, body: bytes) -> None:
    answer = http.post(path, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x" * 1024}, "prompt"),
        ("/v1/completions", {"prompt": "x" * 200_000}, "prompt"),
        ("/v1/completions", {"prompt": [97] * 1024}, "prompt"),
        ("/v1/completions", {"prompt": ["ok", "x" * 2000]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 2000}]}, "messages"),
    ],
)
def test_a_prompt_that_is_too_long(http: httpx.Client, path: str, body: dict[str, Any], param: str, stream: bool) -> None:
    error = refused(http, path, {**body, "stream": stream})
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


def test_the_longest_prompt_leaves_room_for_one_token(http: httpx.Client) -> None:
    assert http.post("/v1/completions", json={"prompt": "x" * 1023}).json()["usage"]["completion_tokens"] == 1


def test_errors_as_the_client_types_them(server: ServerProcess, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="fake", prompt="x", temperature=5)
    assert bad.value.param == "temperature"
    assert bad.value.code == "invalid_request"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="no-such-model", prompt="x")
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")
    with pytest.raises(openai.InternalServerError) as failed:
        client.completions.create(model="fake", prompt="!fail", temperature=0)
    assert failed.value.code == "generation_failed"


def test_an_error_after_the_first_byte_is_an_event_and_ends_the_stream(client: openai.OpenAI, http: httpx.Client) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "!fail"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "!fail"}]}),
        ("/v1/completions", {"prompt": ["!fail", "other"], "max_tokens": 100}),
    ):
        answer = http.post(path, json={**body, "stream": True})
        assert answer.status_code == 200
        *chunks, last = events(answer.text)
        assert chunks
        assert last["error"]["code"] == "generation_failed"
    with pytest.raises(openai.APIError) as failed:
        list(client.completions.create(model="fake", prompt="!fail", stream=True))
    assert "not finite" in failed.value.message


def test_a_failed_request_fails_alone(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model="fake", prompt="!fail")
    assert client.completions.create(model="fake", prompt="fine", temperature=0, max_tokens=4).choices[0].text == "fine"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("POST", "/nope", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/health", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/completions/", 404),
        ("GET", "/v1/%2e%2e/health", 404),
        ("BREW", "/health", 400),
    ],
)
def test_routes_and_methods(http: httpx.Client, method: str, path: str, status: int) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_compressed_body_is_refused_by_name(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", content=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_content_encoding"
    fine = http.post("/v1/completions", content=json.dumps(COMPLETION), headers={"Content-Encoding": "identity"})
    assert fine.status_code == 200


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf"])
def test_a_bad_timeout_header(http: httpx.Client, value: str) -> None:
    answer = http.post("/v1/completions", json=COMPLETION, headers={"X-Request-Timeout": value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "X-Request-Timeout"
