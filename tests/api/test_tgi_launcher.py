"""`trivium launcher` as a user of text-generation-launcher starts it: a real engine process, the packaged model, real clients."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from helpers_real_server import RealServer
from huggingface_hub import InferenceClient

START_COMMANDS = {
    # Those of the comparison articles, model and shard count aside.
    "docker": ["--num-shard", "1", "--max-batch-size", "32", "--max-total-tokens", "4096"],
    "handbook": ["--num-shard", "1", "--max-batch-prefill-tokens", "4096", "--max-total-tokens", "8192"],
}
VARIABLES = {"NUM_SHARD": "1", "MAX_BATCH_PREFILL_TOKENS": "4096", "MAX_TOTAL_TOKENS": "8192", "MAX_BEST_OF": "3", "JSON_OUTPUT": "true"}


def check(url: str, *, max_total_tokens: int) -> dict[str, Any]:
    """Every way in works; returns /info."""
    info: dict[str, Any] = httpx.get(f"{url}/info", timeout=20).json()
    assert (info["max_total_tokens"], info["max_input_tokens"]) == (max_total_tokens, max_total_tokens - 1)
    client = InferenceClient(url, timeout=60)
    whole = client.text_generation("The capital of France is", max_new_tokens=8, details=True, return_full_text=False)
    assert "Paris" in whole.generated_text
    assert whole.details is not None and whole.details.generated_tokens == 8
    streamed = list(client.text_generation("The capital of France is", max_new_tokens=8, stream=True, return_full_text=False))
    assert "".join(streamed) == whole.generated_text
    chat = client.chat_completion([{"role": "user", "content": "Say yes."}], model="tgi", max_tokens=4, temperature=0)
    assert chat.choices[0].message.content
    return info


def test_the_start_command_with_a_batch_size() -> None:
    server = RealServer(*START_COMMANDS["docker"], command="launcher")
    try:
        info = check(server.url, max_total_tokens=4096)
        assert info["max_concurrent_requests"] == 32 + 1024
        assert server.gauge("tgi_request_success") >= 3
        assert server.gauge("vllm:num_requests_running") == 0
        assert_streams_agree(server.url)
        assert_greedy_answers_agree_at_concurrency(server.url)
        assert_grammars_hold_beside_plain_requests(server.url)
        assert_every_form_of_grammar_holds(server)
    finally:
        code = server.stop()
    assert code == 0


def test_the_start_command_with_a_prefill_budget() -> None:
    server = RealServer(*START_COMMANDS["handbook"], command="launcher")
    try:
        check(server.url, max_total_tokens=8192)
    finally:
        server.stop()


def test_the_same_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    server = RealServer(command="launcher")
    try:
        assert check(server.url, max_total_tokens=8192)["max_best_of"] == 3
        assert all(json.loads(line)["level"] for line in server.log().splitlines())
    finally:
        server.stop()


def assert_streams_agree(url: str) -> None:
    """Whole and streamed text, with stop strings and details, for scripts whose characters are several tokens."""
    for prompt in ("你好,请继续写:", "Repeat: 😀🎉😀🎉", "List:\n1. one\n2. two\n"):
        parameters = {"max_new_tokens": 24, "details": True, "stop": ["\n\n"], "top_n_tokens": 3, "decoder_input_details": False}
        whole = httpx.post(f"{url}/generate", json={"inputs": prompt, "parameters": parameters}, timeout=60).json()
        text = httpx.post(f"{url}/generate_stream", json={"inputs": prompt, "parameters": parameters}, timeout=60).text
        events = [json.loads(block.removeprefix("data:")) for block in text.split("\n\n") if block]
        assert events[-1]["generated_text"] == whole["generated_text"]
        shown = "".join(event["token"]["text"] for event in events if not event["token"]["special"])
        assert shown == whole["generated_text"]
        assert [event["token"] for event in events] == whole["details"]["tokens"]
        for event in events:
            best = event["top_tokens"][0]
            assert len(event["top_tokens"]) >= 3
            assert best["logprob"] >= event["token"]["logprob"]


def assert_greedy_answers_agree_at_concurrency(url: str) -> None:
    """As TGI's own load tests: equal requests at once have equal answers."""
    client = InferenceClient(url, timeout=60)
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 10, "details": True, "decoder_input_details": True}}
    alone = httpx.post(f"{url}/generate", json=body, timeout=60).json()
    assert alone["details"]["prefill"][0]["logprob"] is None
    assert all(token["logprob"] <= 0 for token in alone["details"]["prefill"][1:])
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: client.text_generation("Once upon a time", max_new_tokens=10, return_full_text=False), range(4)))
    assert answers == [alone["generated_text"]] * 4


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def is_of_schema(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"name", "age"} and len(value["name"]) <= 12 and 0 <= value["age"] <= 120


def assert_grammars_hold_beside_plain_requests(url: str) -> None:
    """Both kinds at once: every grammar holds, and plain answers are what they are alone."""

    def ask(index: int) -> tuple[int, dict[str, Any]]:
        parameters: dict[str, Any] = {"max_new_tokens": 12}
        if index % 2:
            parameters = {"max_new_tokens": 120, "details": True, "do_sample": True, "seed": index, "grammar": {"type": "json", "value": SCHEMA}}
        body = {"inputs": "A person as JSON: ", "parameters": parameters}
        return index, httpx.post(f"{url}/generate", json=body, timeout=100).json()

    alone = ask(0)[1]
    with ThreadPoolExecutor(12) as threads:
        for index, answer in threads.map(ask, range(12)):
            if index % 2:
                assert answer["details"]["finish_reason"] == "eos_token", answer
                assert is_of_schema(answer["generated_text"]), answer
            else:
                assert answer == alone


def assert_every_form_of_grammar_holds(server: RealServer) -> None:
    client = InferenceClient(server.url, timeout=100)
    text = client.text_generation("Phone:", grammar={"type": "regex", "value": r"\d{3}-\d{4}"}, max_new_tokens=20, return_full_text=False)  # type: ignore[arg-type]
    assert re.fullmatch(r"\d{3}-\d{4}", text), text
    with server.openai(timeout=100) as openai_client:
        messages: Any = [{"role": "user", "content": "Invent a person."}]
        json_schema: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
        for response_format, check in ((json_schema, is_of_schema), ({"type": "json_object"}, lambda text: isinstance(json.loads(text), dict))):
            answer = openai_client.chat.completions.create(model="tgi", messages=messages, response_format=response_format, max_tokens=200, seed=1)
            if answer.choices[0].finish_reason == "stop":
                assert check(answer.choices[0].message.content or "")
        for extra in ({"guided_choice": ["red", "green"]}, {"structured_outputs": {"choice": ["red", "green"]}}):
            chunks = openai_client.completions.create(model="tgi", prompt="The sky is", max_tokens=9, stream=True, extra_body=extra)
            assert "".join(chunk.choices[0].text for chunk in chunks) in ("red", "green")
