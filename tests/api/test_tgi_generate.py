"""TGI's generating routes as its users call them. The scripted engine answers a prompt with the prompt, byte by byte, again and again."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from helpers_server import ServerProcess, post_bytes

OPTIONS = {"settings": {"max_logprobs": 20}}
ALL_PARAMETERS = {
    "temperature": 0.5,
    "top_k": 10,
    "top_p": 0.9,
    "typical_p": 0.9,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.1,
    "truncate": 5,
    "max_new_tokens": 4,
    "do_sample": True,
    "seed": 1,
    "stop": ["zz"],
    "details": True,
    "decoder_input_details": True,
    "top_n_tokens": 2,
    "return_full_text": False,
    "watermark": False,
    "best_of": 1,
    "grammar": None,
    "adapter_id": None,
}


def generate(http: httpx.Client, inputs: str = "abcdef", path: str = "/generate", **parameters: Any) -> Any:
    answer = http.post(path, json={"inputs": inputs, "parameters": parameters})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(http: httpx.Client, inputs: str = "abcdef", path: str = "/generate_stream", **parameters: Any) -> list[Any]:
    answer = http.post(path, json={"inputs": inputs, "parameters": parameters, "stream": True})
    assert answer.status_code == 200, answer.text
    return sse(answer.text)


def sse(text: str) -> list[Any]:
    """Events as TGI writes them: no space after the colon, no `[DONE]`."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data:{") for block in blocks), blocks
    return [json.loads(block.removeprefix("data:")) for block in blocks]


def test_the_answer_is_the_text_alone_unless_details_are_asked_for(http: httpx.Client) -> None:
    assert generate(http, max_new_tokens=8) == {"generated_text": "abcdefab"}


def test_details(http: httpx.Client) -> None:
    answer = generate(http, "abc", max_new_tokens=2, details=True)
    assert answer["details"] == {
        "finish_reason": "length",
        "generated_tokens": 2,
        "seed": None,
        "prefill": [],
        "tokens": [{"id": 97, "text": "a", "logprob": -0.5, "special": False}, {"id": 98, "text": "b", "logprob": -0.5, "special": False}],
    }


def test_decoder_input_details_bring_the_prompt_and_the_details(http: httpx.Client) -> None:
    details = generate(http, "ab", max_new_tokens=1, decoder_input_details=True)["details"]
    assert details["prefill"] == [{"id": 97, "text": "a", "logprob": None}, {"id": 98, "text": "b", "logprob": -0.5}]


def test_top_tokens(http: httpx.Client) -> None:
    details = generate(http, "ab", max_new_tokens=2, details=True, top_n_tokens=3)["details"]
    assert [[token["id"] for token in step] for step in details["top_tokens"]] == [[97, 98, 99], [98, 99, 100]]
    assert details["top_tokens"][0][0] == {"id": 97, "text": "a", "logprob": -0.5, "special": False}
    assert "top_tokens" not in generate(http, "ab", max_new_tokens=2, details=True)["details"]


def test_every_parameter_at_once(http: httpx.Client) -> None:
    answer = generate(http, "0123456789", **ALL_PARAMETERS)
    assert answer["generated_text"] == "6789"  # sampled: one token further on in the five that truncation left
    assert answer["details"]["seed"] == 1
    assert len(answer["details"]["prefill"]) == 5


@pytest.mark.parametrize(
    ("body", "is_sampled"),
    [
        ({}, True),
        ({"parameters": None}, True),
        ({"parameters": {}}, False),
        ({"parameters": {"do_sample": False}}, False),
        ({"parameters": {"do_sample": True}}, True),
        ({"parameters": {"temperature": 1.0}}, False),
        ({"parameters": {"temperature": 0.9}}, True),
        ({"parameters": {"top_k": 5}}, True),
        ({"parameters": {"top_p": 0.5}}, True),
        ({"parameters": {"typical_p": 0.5}}, True),
        ({"parameters": {"seed": 5}}, False),
    ],
)
def test_what_makes_an_answer_random(http: httpx.Client, body: dict[str, Any], is_sampled: bool) -> None:
    parameters = body.get("parameters")
    if parameters is not None:
        parameters |= {"details": True, "max_new_tokens": 2}
        answer = http.post("/generate", json={"inputs": "abc", **body}).json()
        assert (answer["details"]["seed"] is not None) == is_sampled
    else:
        # Seeds differ, and with them where the script begins.
        texts = {http.post("/generate", json={"inputs": "abcdefghijklmnop", **body}).json()["generated_text"][:4] for _ in range(12)}
        assert len(texts) > 1


def test_a_seed_is_chosen_and_told_so_that_the_answer_can_be_repeated(http: httpx.Client) -> None:
    first = generate(http, do_sample=True, details=True, max_new_tokens=6)
    again = generate(http, do_sample=True, details=True, max_new_tokens=6, seed=first["details"]["seed"])
    assert again["generated_text"] == first["generated_text"]


def test_best_of_shows_the_others_too(http: httpx.Client) -> None:
    details = generate(http, best_of=2, do_sample=True, details=True, max_new_tokens=3)["details"]
    [other] = details["best_of_sequences"]
    assert set(other) == {"generated_text", "finish_reason", "generated_tokens", "seed", "prefill", "tokens"}
    assert other["seed"] == (details["seed"] + 1) % 2**64
    assert set(generate(http, best_of=2, do_sample=True, max_new_tokens=3)) == {"generated_text"}


@pytest.mark.parametrize(("stop", "text"), [(["cd"], "abcd"), (["x", "c"], "abc"), (["de", "cde"], "abcde")])
def test_stop_strings_stay_in_the_text(http: httpx.Client, stop: list[str], text: str) -> None:
    answer = generate(http, stop=stop, details=True)
    assert (answer["generated_text"], answer["details"]["finish_reason"]) == (text, "stop_sequence")
    events = stream(http, stop=stop, details=True)
    assert "".join(event["token"]["text"] for event in events) == text
    # Not held back: each token is shown as it comes.
    assert [event["token"]["text"] for event in events] == list(text)
    assert events[-1]["details"]["finish_reason"] == "stop_sequence"


def test_the_end_token_is_counted_and_shown_but_not_in_the_text(http: httpx.Client) -> None:
    answer = generate(http, "ab!end", details=True)
    assert answer["generated_text"] == "ab!en"
    assert answer["details"]["finish_reason"] == "eos_token"
    assert answer["details"]["tokens"][-1] == {"id": 256, "text": "<|eos|>", "logprob": -0.5, "special": True}
    assert stream(http, "ab!end")[-1]["token"]["special"]


def test_return_full_text(http: httpx.Client) -> None:
    assert generate(http, "abc", max_new_tokens=2, return_full_text=True)["generated_text"] == "abcab"
    assert generate(http, "abcdef", max_new_tokens=2, return_full_text=True, truncate=2)["generated_text"] == "abcdefef"
    assert stream(http, "abc", max_new_tokens=2, return_full_text=True)[-1]["generated_text"] == "abcab"


def test_a_stream(http: httpx.Client) -> None:
    events = stream(http, "abc", max_new_tokens=2, details=True, top_n_tokens=1)
    assert events[0] == {
        "index": 1,
        "token": {"id": 97, "text": "a", "logprob": -0.5, "special": False},
        "top_tokens": [{"id": 97, "text": "a", "logprob": -0.5, "special": False}],
        "generated_text": None,
        "details": None,
    }
    assert events[1]["generated_text"] == "ab"
    assert events[1]["details"] == {"finish_reason": "length", "generated_tokens": 2, "seed": None, "input_length": 3}
    assert stream(http, "abc", max_new_tokens=2)[-1]["details"] is None


@pytest.mark.parametrize("text", ["你好,世界。", "a😀b👩‍👩‍👧c", "é", "ab"])
def test_streams_equal_whole_answers(http: httpx.Client, text: str) -> None:
    for length in (1, 2, 3, 5, 17, 40):
        whole = generate(http, text, max_new_tokens=length, details=True)
        events = stream(http, text, max_new_tokens=length)
        assert events[-1]["generated_text"] == whole["generated_text"]
        assert "".join(event["token"]["text"] for event in events) == whole["generated_text"]
        assert [event["token"] for event in events] == whole["details"]["tokens"]
        assert [event["index"] for event in events] == list(range(1, length + 1))


def test_one_token_at_least_and_at_most(http: httpx.Client) -> None:
    assert generate(http, "xyz", max_new_tokens=1)["generated_text"] == "x"
    assert [event["generated_text"] for event in stream(http, "xyz", max_new_tokens=1)] == ["x"]


def test_without_max_new_tokens_the_answer_fills_the_context(http: httpx.Client) -> None:
    assert generate(http, "abcd", details=True)["details"]["generated_tokens"] == 1020


def test_more_tokens_than_the_context_holds_end_with_length(http: httpx.Client) -> None:
    """TGI holds only the first 1024 against the context; the scripted one holds exactly so many."""
    answer = http.post("/generate", json={"inputs": "a", "parameters": {"max_new_tokens": 1023, "details": True}}).json()
    assert (answer["details"]["generated_tokens"], answer["details"]["finish_reason"]) == (1023, "length")


def test_a_long_text_may_be_cut_to_its_end(http: httpx.Client) -> None:
    text = "x" * 70_000 + "abc"
    assert generate(http, text, max_new_tokens=3, truncate=3) == {"generated_text": "abc"}
    assert http.post("/generate", json={"inputs": text}).status_code == 422


def test_a_deadline(http: httpx.Client) -> None:
    answer = http.post("/generate", json={"inputs": "abc"}, headers={"X-Request-Timeout": "0.0001"})
    assert (answer.status_code, answer.json()["error_type"]) == (504, "timeout")
    wrong = http.post("/generate", json={"inputs": "abc"}, headers={"X-Request-Timeout": "soon"})
    assert (wrong.status_code, wrong.json()["error_type"]) == (422, "validation")


# -- the compatible route -----------------------------------------------------------------------------------------------------------


def test_the_compatible_route_answers_with_an_array_and_the_prompt(http: httpx.Client) -> None:
    body = {"inputs": "abc", "parameters": {"max_new_tokens": 2}}
    assert http.post("/", json=body).json() == [{"generated_text": "abcab"}]
    assert http.post("/", json={**body, "stream": False}).json() == [{"generated_text": "abcab"}]
    body["parameters"]["return_full_text"] = False  # type: ignore[index]
    assert http.post("/", json=body).json() == [{"generated_text": "ab"}]


def test_the_compatible_route_streams(http: httpx.Client) -> None:
    events = stream(http, "abc", "/", max_new_tokens=2)
    assert [event["token"]["text"] for event in events] == ["a", "b"]
    assert events[-1]["generated_text"] == "abcab"


def test_the_other_routes_do_not_look_at_stream(http: httpx.Client) -> None:
    assert http.post("/generate", json={"inputs": "a", "stream": True, "parameters": {"max_new_tokens": 1}}).json() == {"generated_text": "a"}


# -- headers ------------------------------------------------------------------------------------------------------------------------


def test_headers_of_a_whole_answer(http: httpx.Client) -> None:
    headers = http.post("/generate", json={"inputs": "aé😀", "parameters": {"max_new_tokens": 4}}).headers
    assert headers["x-compute-type"] == "gpu+optimized"
    assert headers["x-compute-characters"] == "3"
    assert (headers["x-prompt-tokens"], headers["x-generated-tokens"]) == ("7", "4")
    assert float(headers["x-compute-time"]) > 0
    for name in ("total", "validation", "queue", "inference"):
        assert headers[f"x-{name}-time"].isdigit()
    assert headers["x-time-per-token"].isdigit()
    assert "warning" not in headers


def test_headers_of_a_stream(http: httpx.Client) -> None:
    headers = http.post("/generate_stream", json={"inputs": "abc", "parameters": {"max_new_tokens": 1}}).headers
    assert headers["content-type"] == "text/event-stream"
    assert headers["x-accel-buffering"] == "no"
    assert (headers["x-compute-type"], headers["x-compute-characters"]) == ("gpu+optimized", "3")
    assert "x-compute-time" not in headers


def test_unknown_fields_are_ignored_and_named(http: httpx.Client) -> None:
    body = {"inputs": "a", "parameters": {"max_new_tokens": 1, "temprature": 2}, "foo": {"bar": 1}, "model": "no-such-model"}
    for path in ("/generate", "/generate_stream", "/"):
        answer = http.post(path, json=body)
        assert answer.status_code == 200
        assert answer.headers["warning"] == '299 trivium "unknown fields were ignored: parameters.temprature, foo, model"'


def test_names_of_unknown_fields_cannot_break_the_header(http: httpx.Client) -> None:
    names = ['a"\r\nx: y', "\u0000é😀", "z" * 1000, *[f"k{index}" for index in range(20)]]
    answer = http.post("/generate", json={"inputs": "a", "parameters": {"max_new_tokens": 1}, **dict.fromkeys(names, 1)})
    assert answer.status_code == 200
    assert "x" not in answer.headers
    warning = answer.headers["warning"]
    assert warning.isascii() and warning.isprintable() and len(warning) < 900
    assert "and 13 more" in warning


# -- errors -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"", 400, "malformed_request"),
        (b"{", 400, "malformed_request"),
        (b"[" * 5000, 422, "validation"),
        (b'{"inputs": "\\ud800"}', 400, "malformed_request"),
        (b"[]", 422, "validation"),
        (b"{}", 422, "validation"),
        (b'{"inputs": ["a"]}', 422, "validation"),
        (b'{"inputs": "a", "parameters": []}', 422, "validation"),
        (b'{"inputs": "a", "parameters": {"max_new_tokens": "1"}}', 422, "validation"),
        (b'{"inputs": "a", "unknown": 1, "parameters": {"max_new_tokens": "1"}}', 422, "validation"),
        (b'{"inputs": "a", "parameters": {"temperature": 1e999}}', 422, "validation"),
    ],
)
def test_malformed_bodies(http: httpx.Client, path: str, body: bytes, status: int, kind: str) -> None:
    answer = http.post(path, content=body)
    error = answer.json()
    assert (answer.status_code, error["error_type"]) == (status, kind)
    assert set(error) == {"error", "error_type"}


def test_an_error_before_the_first_token_has_its_status_in_streams_too(http: httpx.Client) -> None:
    answer = http.post("/generate_stream", json={"inputs": "a", "parameters": {"temperature": 0}})
    assert answer.status_code == 422
    assert answer.json() == {"error": "Input validation error: `temperature` must be strictly positive", "error_type": "validation"}


def test_a_failure_in_the_engine(http: httpx.Client) -> None:
    body = {"inputs": "!fail abc", "parameters": {"max_new_tokens": 9}}
    error = {"error": "Request failed during generation: The logits of this request are not finite.", "error_type": "generation"}
    answer = http.post("/generate", json=body)
    assert (answer.status_code, answer.json()) == (424, error)
    events = sse(http.post("/generate_stream", json=body).text)
    assert [event["token"]["text"] for event in events[:-1]] == ["!", "f"]
    assert events[-1] == error


def test_a_method_or_route_that_is_not_there(http: httpx.Client) -> None:
    assert http.get("/generate").json() == {"error": "This route does not answer to this method.", "error_type": "method_not_allowed"}
    assert http.put("/").status_code == 405


def test_a_client_that_leaves_frees_its_request(server: ServerProcess) -> None:
    with server.raw(post_bytes("/generate_stream", {"inputs": "a" * 200, "parameters": {}})) as connection:
        connection.read_until(b"data:")
    with server.http() as http:
        assert generate(http, max_new_tokens=1) == {"generated_text": "a"}
        assert server.metrics()['vllm:num_requests_running{engine="0",model_name="fake"}'] == 0
