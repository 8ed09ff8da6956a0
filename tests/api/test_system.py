"""Models, tokens, version, docs, and what a bare server answers."""

from __future__ import annotations

import httpx
import openai
import pytest
from helpers_server import ServerProcess, events


def test_models(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["fake", "fake-alias"]
    one = client.models.retrieve("fake-alias")
    assert (one.id, one.object, one.owned_by, one.root, one.max_model_len) == ("fake-alias", "model", "trivium", "fake", 1024)


def test_tokenize_and_back(http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": "aé", "return_token_strs": True}).json()
    assert tokens == {"count": 3, "max_model_len": 1024, "tokens": [97, 195, 169], "token_strs": ["a", "\ufffd", "\ufffd"]}
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": "aé"}


def test_tokenize_a_conversation(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    whole = http.post("/tokenize", json={"messages": messages, "model": "fake"}).json()
    assert http.post("/detokenize", json={"tokens": whole["tokens"]}).json()["prompt"] == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    bare = http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    assert whole["token_strs"] is None
    assert bare["count"] < whole["count"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "x"}]}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, 400, "tools"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "chat_template": "x"}, 400, "chat_template"),
        ("/tokenize", {"text": "a"}, 400, "text"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [260]}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
def test_bad_token_requests(http: httpx.Client, path: str, body: dict[str, object], status: int, param: str) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param


def test_health_version_and_head(http: httpx.Client) -> None:
    health = http.get("/health")
    assert (health.status_code, health.content) == (200, b"")
    assert http.get("/livez").text == "ok\n"
    assert http.get("/readyz").text == "ok\n"
    assert http.head("/livez").status_code == 200
    from trivium import __version__

    assert http.get("/version").json() == {"version": __version__}


def test_no_server_header_and_no_cors_by_default(http: httpx.Client) -> None:
    answer = http.get("/version", headers={"Origin": "https://any.example"})
    assert "server" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers


def test_the_docs_page_is_self_contained(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text
    assert "https://" not in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "unsafe" not in policy


def test_the_description_lists_every_route_and_resolves(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert {path for path in document["paths"] if not path.startswith("/v2")} == {
        *("/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{model}", "/tokenize", "/detokenize"),
        *("/health", "/livez", "/readyz", "/version", "/metrics", "/docs", "/openapi.json"),
        *("/", "/generate", "/generate_stream", "/info", "/ping", "/chat_tokenize", "/invocations", "/vertex"),
    }
    kserve = {"/v2", "/v2/health/ready", "/v2/models/{model}/versions/{version}/infer", "/v2/models/{model}/generate", "/v2/repository/index"}
    assert kserve <= set(document["paths"])
    schemas = document["components"]["schemas"]

    def check(value: object) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                assert value["$ref"].removeprefix("#/components/schemas/") in schemas
            for inner in value.values():
                check(inner)
        elif isinstance(value, list):
            for inner in value:
                check(inner)

    check(document)
    assert schemas["CompletionBody"]["required"] == ["prompt"]
    assert schemas["ChatBody"]["required"] == ["messages"]
    assert {"temperature", "top_k", "prompt", "tools", "logprobs"} <= set(schemas["CompletionBody"]["properties"]) | {"tools"}


def test_answers_match_their_schemas(http: httpx.Client) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = http.get("/openapi.json").json()
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    completion_chunks = events(http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, **streamed}).text)[:-1]
    chat_chunks = events(http.post("/v1/chat/completions", json={**chat, **streamed}).text)[:-1]
    assert all("usage" in chunks[-1] for chunks in (completion_chunks, chat_chunks))
    answers = {
        "Completion": http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, "logprobs": 1}).json(),
        "ChatCompletion": http.post("/v1/chat/completions", json={**chat, "logprobs": True, "top_logprobs": 1}).json(),
        "ModelList": http.get("/v1/models").json(),
        "Tokens": http.post("/tokenize", json={"prompt": "a"}).json(),
        "ErrorBody": http.get("/nope").json(),
    }
    assert all(answer["system_fingerprint"].startswith("trivium-") for name, answer in answers.items() if "Completion" in name)
    pairs = [
        *answers.items(),
        *(("CompletionChunk", chunk) for chunk in completion_chunks),
        *(("ChatCompletionChunk", chunk) for chunk in chat_chunks),
    ]
    for name, answer in pairs:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer)


def test_unknown_fields_may_be_ignored(server: ServerProcess) -> None:
    lax = ServerProcess(http={"ignore_unknown_fields": True})
    try:
        with lax.http() as http:
            for path, body in (
                ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
                ("/tokenize", {"prompt": "a"}),
                ("/detokenize", {"tokens": [97]}),
            ):
                assert http.post(path, json={**body, "brand_new": {"a": 1}}).status_code == 200
            assert http.post("/v1/completions", json={"prompt": "a", "guided_grammar": "a"}).status_code == 400
    finally:
        lax.stop()
