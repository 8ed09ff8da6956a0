"""TGI's smaller routes: tokens, health and information, and those that SageMaker and Vertex AI call."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from helpers_server import ServerProcess

OPTIONS = {"http": {"root_path": "/prefix"}, "tgi": {"max_client_batch_size": 3}}


def test_tokenize_takes_tgis_body_and_vllms(http: httpx.Client) -> None:
    text = "aé😀"
    tokens = http.post("/tokenize", json={"inputs": text}).json()
    assert [token["id"] for token in tokens] == list(text.encode())
    assert all(text[token["start"] : token["stop"]] == token["text"] for token in tokens)
    assert tokens[1] == {"id": 0xC3, "text": "é", "start": 1, "stop": 2}
    assert http.post("/tokenize", json={"prompt": text}).json()["tokens"] == list(text.encode())
    warned = http.post("/tokenize", json={"inputs": "a", "add_special_tokens": False})
    assert "add_special_tokens" in warned.headers["warning"]


def test_mistakes_in_tokenize_have_the_shape_of_the_api_they_are_made_in(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={"inputs": 1}).json()["error_type"] == "validation"
    assert http.post("/tokenize", json={"prompt": 1}).json()["error"]["code"] == "invalid_request"
    assert http.post("/tokenize", content=b"{").json()["error"]["code"] == "invalid_request"


def test_chat_tokenize(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "Hi 你"}], "model": "tgi", "temperature": 0.5}
    answer = http.post("/chat_tokenize", json=body).json()
    assert answer["templated_text"] == "<|im_start|>user\nHi 你<|im_end|>\n<|im_start|>assistant\n"
    assert answer["tokenize_response"][0] == {"id": 258, "text": "<|im_start|>", "start": 0, "stop": 12}
    whole = http.post("/tokenize", json={"messages": body["messages"]}).json()
    assert [token["id"] for token in answer["tokenize_response"]] == whole["tokens"]


def test_mistakes_in_chat_tokenize(http: httpx.Client) -> None:
    empty = http.post("/chat_tokenize", json={"messages": []})
    assert (empty.status_code, empty.json()["error_type"]) == (422, "validation")
    tools = http.post("/chat_tokenize", json={"messages": [{"role": "user", "content": "x"}], "tools": [{}]})
    assert (tools.status_code, tools.json()["error_type"]) == (422, "validation")


def test_a_template_that_fails() -> None:
    process = ServerProcess(backend={"template": None})
    try:
        with process.http() as http:
            answer = http.post("/chat_tokenize", json={"messages": [{"role": "user", "content": "x"}]})
            assert (answer.status_code, answer.json()["error_type"]) == (422, "template_error")
            assert answer.json()["error"].startswith("Template error: ")
    finally:
        process.stop()


def test_info(http: httpx.Client) -> None:
    info = http.get("/info").json()
    assert info["model_id"] == "fake"
    assert info["model_pipeline_tag"] == "text-generation"
    assert (info["max_total_tokens"], info["max_input_tokens"]) == (1024, 1023)
    assert (info["max_best_of"], info["max_stop_sequences"], info["max_client_batch_size"]) == (2, 4, 3)
    assert info["max_concurrent_requests"] == 256 + 1024
    assert {"model_sha", "validation_workers", "router", "version", "sha", "docker_label"} <= set(info)


@pytest.mark.parametrize("path", ["/", "/ping", "/health"])
def test_health(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_browser_is_sent_to_the_documentation(http: httpx.Client) -> None:
    answer = http.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (answer.status_code, answer.headers["location"]) == (307, "/prefix/docs")


def test_an_unhealthy_server_says_so_as_tgi_does() -> None:
    process = ServerProcess(engine={"restart_s": 30})
    try:
        with process.http() as http:
            http.post("/generate", json={"inputs": "!die abc", "parameters": {"max_new_tokens": 9}})
            for path in ("/ping", "/"):
                answer = http.get(path)
                assert (answer.status_code, answer.json()) == (503, {"error": "unhealthy", "error_type": "healthcheck"})
                assert answer.headers["retry-after"] == "1"
            down = http.post("/generate", json={"inputs": "abc"})
            assert (down.status_code, down.json()["error_type"]) == (503, "healthcheck")
    finally:
        process.stop()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"inputs": "abc", "parameters": {"max_new_tokens": 2}}, [{"generated_text": "abcab"}]),
        ({"inputs": "abc", "parameters": {"max_new_tokens": 2, "return_full_text": False}, "stream": False}, [{"generated_text": "ab"}]),
    ],
)
def test_invocations_take_tgis_bodies(http: httpx.Client, body: dict[str, Any], expected: Any) -> None:
    assert http.post("/invocations", json=body).json() == expected


def test_invocations_take_openais_bodies(http: httpx.Client) -> None:
    chat = http.post("/invocations", json={"messages": [{"role": "user", "content": "x"}], "model": "fake", "max_tokens": 2}).json()
    assert chat["object"] == "chat.completion"
    completion = http.post("/invocations", json={"prompt": "abc", "max_tokens": 2, "temperature": 0}).json()
    assert completion["choices"][0]["text"] == "ab"


def test_invocations_stream(http: httpx.Client) -> None:
    text = http.post("/invocations", json={"inputs": "abc", "parameters": {"max_new_tokens": 2}, "stream": True}).text
    assert text.startswith("data:{") and "[DONE]" not in text
    text = http.post("/invocations", json={"prompt": "abc", "max_tokens": 2, "stream": True}).text
    assert text.startswith("data: {") and text.endswith("data: [DONE]\n\n")


def test_mistakes_in_invocations(http: httpx.Client) -> None:
    assert http.post("/invocations", json={"unknown": 1}).json()["error_type"] == "validation"
    assert http.post("/invocations", content=b"x").json()["error_type"] == "malformed_request"
    assert http.post("/invocations", json={"prompt": 1}).json()["error"]["code"] == "invalid_request"


def test_vertex(http: httpx.Client) -> None:
    instances = [
        {"inputs": "abc", "parameters": {"max_new_tokens": 2}},
        {"inputs": "xyz", "parameters": {"max_new_tokens": 4, "stop": ["y"]}},
        {"messages": [{"role": "user", "content": "x"}], "parameters": {"max_new_tokens": 3, "temperature": 1.0}},
    ]
    assert http.post("/vertex", json={"instances": instances}).json() == {"predictions": ["ab", "xy", "use"]}


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"instances": [{"inputs": "a"}] * 4}, "batch size exceeded", "batch size of 3"),
        ({"instances": []}, "validation", "cannot be empty"),
        ({}, "validation", "required"),
        ({"instances": [{"inputs": "a", "parameters": {"top_k": 0}}]}, "validation", "`top_k` must be strictly positive"),
        ({"instances": [{"messages": [], "parameters": {}}]}, "validation", "messages"),
        ({"instances": [1]}, "validation", "object"),
    ],
)
def test_mistakes_in_vertex(http: httpx.Client, body: dict[str, Any], kind: str, text: str) -> None:
    answer = http.post("/vertex", json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (422, kind)
    assert text in answer.json()["error"]


def test_vertex_names_unknown_fields(http: httpx.Client) -> None:
    answer = http.post("/vertex", json={"instances": [{"inputs": "a", "parameters": {"max_new_tokens": 1, "x": 1}, "y": 2}]})
    assert answer.headers["warning"] == '299 trivium "unknown fields were ignored: instances[0].parameters.x, instances[0].y"'


def test_the_batch_limit_holds_for_completions_too(http: httpx.Client) -> None:
    assert http.post("/v1/completions", json={"prompt": ["a"] * 3, "max_tokens": 1}).status_code == 200
    answer = http.post("/v1/completions", json={"prompt": ["a"] * 4, "max_tokens": 1})
    assert answer.status_code == 400
    assert "exceeds the maximum allowed batch size of 3" in answer.json()["error"]["message"]
