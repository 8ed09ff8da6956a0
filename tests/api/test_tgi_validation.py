"""The table of TGI's validation messages, and the order of its checks."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from helpers_server import ServerProcess

OPTIONS = {"engine": {"max_model_len": 64}, "tgi": {"max_best_of": 3, "max_input_tokens": 50}}

MESSAGES: list[tuple[str, dict[str, Any], str]] = [
    ("/generate", {"best_of": 4, "do_sample": True}, "`best_of` must be > 0 and <= 3. Given: 4"),
    ("/generate", {"best_of": 0}, "`best_of` must be > 0 and <= 3. Given: 0"),
    ("/generate", {"best_of": 2}, "you must use sampling when `best_of` is > 1"),
    ("/generate", {"best_of": 2, "do_sample": True, "seed": 1}, "`seed` must not be set when `best_of` > 1"),
    ("/generate_stream", {"best_of": 2, "do_sample": True}, "`best_of` != 1 is not supported when streaming tokens"),
    ("/generate", {"top_n_tokens": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
    ("/generate_stream", {"decoder_input_details": True}, "`decoder_input_details` == true is not supported when streaming tokens"),
    ("/generate", {"temperature": 0.0}, "`temperature` must be strictly positive"),
    ("/generate", {"temperature": -1}, "`temperature` must be strictly positive"),
    ("/generate", {"repetition_penalty": 0}, "`repetition_penalty` must be strictly positive"),
    ("/generate", {"frequency_penalty": 2.1}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    ("/generate", {"frequency_penalty": -2.1}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    ("/generate", {"top_p": 0.0}, "`top_p` must be > 0.0 and < 1.0"),
    ("/generate", {"top_p": 1.0}, "`top_p` must be > 0.0 and < 1.0"),
    ("/generate", {"top_k": 0}, "`top_k` must be strictly positive"),
    ("/generate", {"top_k": -1}, "`top_k` must be strictly positive"),
    ("/generate", {"truncate": 0}, "`truncate` must be strictly positive and less than 50. Given: 0"),
    ("/generate", {"truncate": 51}, "`truncate` must be strictly positive and less than 50. Given: 51"),
    ("/generate", {"typical_p": 1.0}, "`typical_p` must be > 0.0 and < 1.0"),
    ("/generate", {"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
    (
        "/generate",
        {"max_new_tokens": 62},
        "`inputs` tokens + `max_new_tokens` must be <= 64. Given: 3 `inputs` tokens and 62 `max_new_tokens`",
    ),
    (
        "/generate",
        {"max_new_tokens": 5000},
        "`inputs` tokens + `max_new_tokens` must be <= 64. Given: 3 `inputs` tokens and 1024 `max_new_tokens`",
    ),
    ("/generate", {"stop": list("abcde")}, "`stop` supports up to 4 stop sequences. Given: 5"),
    ("/generate", {"grammar": {"type": "unheard-of", "value": "a"}}, "grammar is not supported"),
    ("/generate", {"grammar": {"type": "json", "value": 5}}, "grammar is not supported"),
    ("/generate", {"grammar": {"type": "regex", "value": {}}}, "grammar is not supported"),
    ("/generate", {"grammar": {"type": "json", "value": {"type": "bogus"}}}, "grammar is not valid: Invalid type: bogus"),
    (
        "/generate_stream",
        {"grammar": {"type": "json_schema", "value": {"schema": {"$ref": "#/x"}}}},
        "grammar is not valid: Pointer '/x' does not exist",
    ),
    ("/generate", {"seed": -1}, f"`seed` must be from 0 to {2**64 - 1}. Given: -1"),
    # what TGI does and we don't
    ("/generate", {"watermark": True}, "`watermark` is not supported by this server"),
    ("/generate", {"adapter_id": "x"}, "`adapter_id` is not supported: this server loads no adapters"),
    ("/generate", {"temperature": 2.5}, "temperature must be from 0 to 2, got 2.5."),
]


def refusal(http: httpx.Client, inputs: str = "abc", path: str = "/generate", **parameters: Any) -> str:
    answer = http.post(path, json={"inputs": inputs, "parameters": parameters})
    assert answer.status_code == 422, answer.text
    error = answer.json()
    assert error["error_type"] == "validation"
    assert error["error"].startswith("Input validation error: ")
    return error["error"].removeprefix("Input validation error: ")


@pytest.mark.parametrize(("path", "parameters", "message"), MESSAGES)
def test_messages(http: httpx.Client, path: str, parameters: dict[str, Any], message: str) -> None:
    given = refusal(http, path=path, **parameters)
    assert given == message


def test_messages_of_the_prompt(http: httpx.Client) -> None:
    assert refusal(http, "") == "`inputs` cannot be empty"
    assert refusal(http, "a" * 51) == "`inputs` must have less than 50 tokens. Given: 51"
    assert refusal(http, "a" * 51, max_new_tokens=14).startswith("`inputs` tokens + `max_new_tokens` must be <= 64. Given: 51")


def test_bounds_that_are_accepted(http: httpx.Client) -> None:
    for parameters in (
        {"truncate": 50},
        {"top_p": 0.99},
        {"frequency_penalty": -2.0},
        {"best_of": 3, "temperature": 1.0},
        {"top_n_tokens": 5, "details": True},
        {"top_n_tokens": 0},
        {"seed": 2**64 - 1, "do_sample": True},
        {"max_new_tokens": 14},
    ):
        answer = http.post("/generate", json={"inputs": "a" * 50, "parameters": {"max_new_tokens": 2, **parameters}})
        assert answer.status_code == 200, (parameters, answer.text)


def test_truncation_comes_before_the_lengths(http: httpx.Client) -> None:
    answer = http.post("/generate", json={"inputs": "x" * 900 + "abc", "parameters": {"truncate": 3, "max_new_tokens": 3}})
    assert answer.json() == {"generated_text": "abc"}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"best_of": 9}, "`best_of` must be > 0"),
    ({"best_of": 2}, "you must use sampling"),
    ({"temperature": 0}, "`temperature`"),
    ({"repetition_penalty": 0}, "`repetition_penalty`"),
    ({"frequency_penalty": 3}, "`frequency_penalty`"),
    ({"top_p": 1}, "`top_p`"),
    ({"typical_p": 1}, "`typical_p`"),
    ({"top_k": 0}, "`top_k`"),
    ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly"),
    ({"stop": list("abcde")}, "`stop`"),
    ({"seed": 1, "best_of": 2, "do_sample": True}, "`seed`"),
    ({"top_n_tokens": 9}, "`top_n_tokens`"),
    ({"truncate": 99}, "`truncate`"),
]


@pytest.mark.parametrize("place", range(2, len(WRONG)))
def test_of_two_mistakes_the_first_in_tgis_order_is_told(http: httpx.Client, place: int) -> None:
    later, _ = WRONG[place]
    for earlier, start in WRONG[2:place]:
        assert refusal(http, **{**later, **earlier}).startswith(start)


def test_limits_of_one_and_none(http: httpx.Client) -> None:
    process = ServerProcess(tgi={"max_best_of": 1, "max_top_n_tokens": 0, "max_stop_sequences": 0, "disable_grammar_support": True})
    try:
        with process.http() as strict:
            assert refusal(strict, best_of=2, do_sample=True) == "`best_of` != 1 is not allowed for this endpoint"
            assert refusal(strict, top_n_tokens=1) == "`top_n_tokens` != 0 is not allowed for this endpoint"
            assert refusal(strict, grammar={"type": "regex", "value": "a"}) == "grammar is not supported"
            answer = strict.post("/v1/completions", json={"prompt": "a", "guided_regex": "a"})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "guided_regex")
            assert refusal(strict, stop=["a"]) == "`stop` supports up to 0 stop sequences. Given: 1"
    finally:
        process.stop()
