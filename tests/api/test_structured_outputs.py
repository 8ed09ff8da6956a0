"""Structured outputs from the packaged model through official clients: what ends is valid, mistakes are told, nobody waits for anybody's grammar."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from helpers_real_server import MODEL, RealServer
from huggingface_hub import InferenceClient
from pydantic import BaseModel, Field

MESSAGES: Any = [{"role": "user", "content": "Invent a person."}]
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
SCHEMAS: dict[str, Any] = {
    "object": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {"address": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["zip"]}},
        "required": ["address"],
    },
    "recursion": TREE,
    "enum": {"enum": ["red", "green", 3, None, True]},
    "large enum": {"enum": [f"item-{index}-{index * 7919 % 1009}" for index in range(1000)]},
    "const": {"const": {"a": [1, "b"]}},
    "anyOf": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 999}, {"const": "none"}]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 7}]},
    "pattern": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 5},
    "numbers": {"type": "number", "minimum": 0.5, "maximum": 2.25},
    "array": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [{"enum": ["x", "y"]}, {"type": "boolean"}], "items": False, "minItems": 2},
    "map": {"type": "object", "additionalProperties": {"enum": [0, 1]}},
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "unicode": {"type": "object", "properties": {"名前": {"enum": ["山田", "Zoë", "😀"]}}, "required": ["名前"], "additionalProperties": False},
    "escapes": {"enum": ['say "hi"\n', "back\\slash"]},
}
MUST_END = set(SCHEMAS) - {"recursion", "numbers", "nested", "map", "date-time"}
"""Those that bound their texts, so that even a small model comes to an end."""
BOMBS = [{"type": "integer", "multipleOf": prime} for prime in (999983, 999979)]
"""Each an automaton with a million states."""


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    process = RealServer("--max-num-seqs", "32", "--max-model-len", "1024")
    yield process
    process.stop()


@pytest.fixture(scope="module")
def client(server: RealServer) -> Iterator[openai.OpenAI]:
    with server.openai(timeout=120) as made:
        yield made


def response_format(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    extra = {name: fields.pop(name) for name in list(fields) if name.startswith(("guided", "structured", "min_tokens", "ignore"))}
    return client.completions.create(**{"model": MODEL, "prompt": "An example: ", "max_tokens": 64, **fields}, extra_body=extra)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_fit_their_schemas(client: openai.OpenAI, temperature: float) -> None:
    def ask(name: str) -> tuple[str, Any]:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            temperature=temperature,
            seed=11,
            max_tokens=150,
            response_format=response_format(SCHEMAS[name]),
        )
        return name, answer.choices[0]

    with ThreadPoolExecutor(len(SCHEMAS)) as threads:
        for name, choice in threads.map(ask, SCHEMAS):
            if choice.finish_reason == "length" and name not in MUST_END:
                continue
            assert choice.finish_reason == "stop", (name, choice)
            validator = jsonschema.Draft202012Validator(SCHEMAS[name], format_checker=jsonschema.FormatChecker())
            validator.validate(json.loads(choice.message.content))


class Person(BaseModel):
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)
    nickname: str | None = Field(max_length=8)


def test_the_official_clients_own_structured_outputs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Person, max_tokens=100, temperature=0)
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_json_mode_is_an_object_or_is_cut_off(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=100, seed=2)
    text = answer.choices[0].message.content or ""
    assert text.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": r"\d{3}-\d{4}"}}, r"\d{3}-\d{4}"),
        ({"guided_regex": r"[a-f]+(/[0-9]){2}", "max_tokens": 40}, r"[a-f]+(/[0-9]){2}|[a-f]+.*"),
        ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
        ({"guided_choice": ["北京", "上海"]}, "北京|上海"),
        ({"structured_outputs": {"grammar": 'start: "(" inner ")"\ninner: /[0-9]{2}/ | start'}, "max_tokens": 200}, r"\(+(\d\d\)+)?"),
        ({"guided_grammar": 'root ::= ("x" | "y") [0-9]{2}'}, "[xy][0-9]{2}"),
        ({"structured_outputs": {"json": {"const": [1, 2]}, "disable_any_whitespace": True}}, r"\[1,2\]"),
        ({"guided_json": '{"enum": [1, 2]}', "guided_whitespace_pattern": ""}, "1|2"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_form(client: openai.OpenAI, fields: dict[str, Any], pattern: str, temperature: float) -> None:
    choice = complete(client, temperature=temperature, seed=4, **fields).choices[0]
    assert re.fullmatch(pattern, choice.text), choice
    streamed = list(complete(client, temperature=temperature, seed=4, stream=True, **fields))
    assert "".join(chunk.choices[0].text for chunk in streamed) == choice.text
    assert streamed[-1].choices[0].finish_reason == choice.finish_reason


def test_tgis_clients(server: RealServer) -> None:
    client = InferenceClient(server.url, timeout=120)
    for grammar, pattern in (
        ({"type": "regex", "value": r"\d{3}-\d{4}"}, r"\d{3}-\d{4}"),
        ({"type": "json", "value": SCHEMAS["enum"]}, r'"red"|"green"|3|null|true'),
        ({"type": "json_schema", "value": {"name": "x", "schema": SCHEMAS["pattern"]}}, '"[A-Z]{3}-[0-9]{4}"'),
    ):
        for sampling in ({}, {"do_sample": True, "seed": 3}):
            answer: Any = client.text_generation("Value:", grammar=grammar, max_new_tokens=30, details=True, return_full_text=False, **sampling)  # type: ignore[call-overload]
            assert re.fullmatch(pattern, answer.generated_text), answer
            assert answer.details.finish_reason == "eos_token"
    # The form of TGI's own documentation: no type.
    form: Any = {"type": "json", "value": {"properties": {"n": {"type": "integer", "minimum": 1, "maximum": 5}}, "required": ["n"]}}
    texts = [
        client.text_generation("A number:", grammar=form, max_new_tokens=60, return_full_text=False),
        client.chat_completion(MESSAGES, model=MODEL, response_format=form, max_tokens=60, temperature=0.0).choices[0].message.content,
    ]
    assert all((text or "").startswith("{") for text in texts), texts


def test_several_choices_their_seeds_and_logprobs(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"structured_outputs": {"regex": "[a-z]{12}"}, "n": 4, "temperature": 1.0, "seed": 9, "logprobs": 2}
    first, again = complete(client, **fields), complete(client, **fields)
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) == 4
    assert all(re.fullmatch("[a-z]{12}", text) for text in texts)
    assert texts == [choice.text for choice in again.choices]
    for choice in first.choices:
        assert "".join(choice.logprobs.tokens[: len(choice.logprobs.tokens) - 1]) == choice.text
        # Of the raw distribution: what the grammar rules out keeps its share.
        assert all(sum(2.718281828**value for value in top.values()) < 1.0001 for top in choice.logprobs.top_logprobs)
        assert any(not re.fullmatch("[a-z]+", token) for top in choice.logprobs.top_logprobs for token in top)


def test_stop_strings_lengths_and_min_tokens(client: openai.OpenAI) -> None:
    stopped = complete(client, structured_outputs={"regex": "(ab){20}"}, stop=["bab"], temperature=0).choices[0]
    assert (stopped.text, stopped.finish_reason) == ("a", "stop")
    cut = complete(client, structured_outputs={"regex": "(ab){200}"}, max_tokens=5, temperature=0).choices[0]
    assert cut.finish_reason == "length"
    assert ("ab" * 200).startswith(cut.text)
    longer = complete(client, structured_outputs={"choice": ["yes"]}, min_tokens=10, temperature=0)
    assert (longer.choices[0].text, longer.choices[0].finish_reason) == ("yes", "stop")
    assert longer.usage.completion_tokens >= 10
    endless = complete(client, structured_outputs={"choice": ["yes"]}, ignore_eos=True, max_tokens=8, temperature=0)
    assert endless.choices[0].text == "yes"
    assert endless.usage.completion_tokens == 8


def test_plain_answers_are_the_same_beside_grammars(client: openai.OpenAI) -> None:
    def ask(index: int) -> str:
        wanted = {"structured_outputs": {"regex": "[a-z ]{30}"}} if index % 2 else {}
        return str(complete(client, prompt="The capital of France is", max_tokens=30, temperature=0.8, seed=index // 2, **wanted).choices[0].text)

    alone = [ask(index) for index in range(0, 14, 2)]
    with ThreadPoolExecutor(14) as threads:
        found = list(threads.map(ask, range(14)))
    assert found[::2] == alone
    assert all(re.fullmatch("[a-z ]{30}", text) for text in found[1::2])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": response_format({"type": "bogus"})}, "response_format.json_schema.schema"),
        ({"response_format": response_format({"type": "array", "uniqueItems": True})}, "response_format.json_schema.schema"),
        ({"response_format": response_format({"type": "object", "propertys": {}})}, "response_format.json_schema.schema"),
        ({"response_format": response_format({"$ref": "https://example.org/schema.json"})}, "response_format.json_schema.schema"),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "structured_outputs"),
        ({"extra_body": {"guided_grammar": "start: nowhere"}}, "guided_grammar"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_can_not_be_compiled_is_a_mistake_of_the_request(client: openai.OpenAI, fields: dict[str, Any], param: str, *, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="grammar is not valid") as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=stream, **fields)
    assert refused.value.param == param


def test_tgi_tells_what_can_not_be_compiled(server: RealServer) -> None:
    body = {"inputs": "x", "parameters": {"grammar": {"type": "json", "value": {"type": "bogus"}}}}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=60)
    assert answer.status_code == 422
    assert answer.json() == {"error": "Input validation error: grammar is not valid: Invalid type: bogus", "error_type": "validation"}


def test_a_bomb_is_stopped_and_nobody_waits_for_it(client: openai.OpenAI) -> None:
    """Plain requests and ordinary grammars that nobody has seen yet come and go while bombs are tried."""
    complete(client, structured_outputs={"regex": "warm"})
    ended = threading.Event()
    failures: list[openai.BadRequestError] = []

    def bomb(schema: dict[str, Any]) -> None:
        try:
            complete(client, structured_outputs={"json": schema})
        except openai.BadRequestError as error:
            failures.append(error)

    with ThreadPoolExecutor(3) as threads:
        waiting = threads.submit(lambda: (list(map(bomb, BOMBS)), ended.set()))
        served = 0
        begin = time.monotonic()
        while not ended.is_set():
            assert complete(client, max_tokens=2, temperature=0).usage.completion_tokens == 2
            assert complete(client, structured_outputs={"choice": [f"a{served}"]}).choices[0].text == f"a{served}"
            served += not ended.is_set()
        waiting.result()
    assert len(failures) == 2
    assert all("takes too much time" in str(error) and error.param == "structured_outputs" for error in failures)
    assert served >= 3, f"{served} rounds in {time.monotonic() - begin:.1f} s"
