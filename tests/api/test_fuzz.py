"""Whatever a client sends, it gets an answer of its own making: 200 or 4xx, never 5xx, and the next request is served."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from helpers_server import ServerProcess, events
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivium.frontends.openai.schema import ChatBody, CompletionBody, TokenizeBody

OPTIONS = {"engine": {"max_model_len": 64}}

numbers = st.sampled_from([-(2**64), -2, -1, -0.0, 0, 1e-9, 0.5, 1, 1.5, 2, 3, 20, 63, 64, 65, 129, 1000, 2**31, 2**63, 2**64, 1e300])
texts = st.sampled_from(["", "a", "aé", "\0", "\x7f", "😀", "\u2028", "x" * 70, "<|eos|>", "<|im_start|>", "{{ 1 }}", "!end"]) | st.text(max_size=6)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | st.just("type"), inner, max_size=3), max_leaves=8)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "developer", "tool", "x"]), "content": texts | st.none()},
        optional={"name": texts, "tool_calls": values, "refusal": values},
    ),
    min_size=1,
    max_size=3,
)
BASES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "/v1/completions": (CompletionBody, {"prompt": "abc", "max_tokens": 3}),
    "/v1/chat/completions": (ChatBody, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}),
    "/tokenize": (TokenizeBody, {"prompt": "abc"}),
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    path = draw(st.sampled_from(sorted(BASES)))
    body_type, base = BASES[path]
    names = draw(st.lists(st.sampled_from(body_type.__struct_fields__), max_size=4, unique=True))
    special = {"prompt": values, "messages": messages, "stream": st.booleans(), "n": st.integers(1, 3)}
    return path, {**base, **{name: draw(special.get(name, values) | values) for name in names}}


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=requests())
def test_any_body_is_answered(http: httpx.Client, request: tuple[str, dict[str, Any]]) -> None:
    path, body = request
    answer = http.post(path, content=json.dumps(body))
    assert answer.status_code in (200, 400, 404), (answer.status_code, answer.text)
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error["message"]
        assert error["code"] in ("invalid_request", "unknown_field", "unsupported", "context_length_exceeded", "model_not_found")
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert events(answer.text)[-1] == "[DONE]"
    else:
        answer.json()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.binary(max_size=60) | st.text(alphabet='{}[]",:\\ue0123456789-+.aprompt', max_size=60).map(str.encode),
    path=st.sampled_from(sorted(BASES)),
)
def test_any_bytes_are_answered(http: httpx.Client, data: bytes, path: str) -> None:
    assert http.post(path, content=data).status_code == 400


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    target=st.text(alphabet="/%.:?#&=;~@abhel2fc0\\*", max_size=30).map(lambda text: "/" + text),
    headers=st.lists(st.tuples(st.sampled_from([b"X-Request-Id", b"Authorization", b"Content-Type", b"X-A"]), st.binary(max_size=20)), max_size=3),
)
def test_any_target_and_headers_are_answered(server: ServerProcess, target: str, headers: list[tuple[bytes, bytes]]) -> None:
    lines = b"".join(name + b": " + value.replace(b"\r", b"").replace(b"\n", b"") + b"\r\n" for name, value in headers)
    with server.raw(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\n" % (target.encode(), lines)) as connection:
        answer = connection.read_until_closed()
    assert answer[:9] == b"HTTP/1.1 "
    assert answer[9:12] in (b"200", b"400", b"404", b"405"), answer


@pytest.mark.parametrize("concurrency", [2, 30, 100])
def test_no_answer_is_empty_or_another_ones(server: ServerProcess, concurrency: int) -> None:
    with server.http(limits=httpx.Limits(max_connections=concurrency)) as http, ThreadPoolExecutor(concurrency) as threads:

        def ask(number: int) -> str:
            body = {"prompt": f"<{number:03}>", "max_tokens": 5, "temperature": 0, "stream": number % 2 == 0}
            answer = http.post("/v1/completions", json=body)
            if number % 2:
                return answer.json()["choices"][0]["text"]
            return "".join(event["choices"][0]["text"] for event in events(answer.text)[:-1])

        assert list(threads.map(ask, range(concurrency * 2))) == [f"<{number:03}>" for number in range(concurrency * 2)]


def test_nothing_was_left_behind(server: ServerProcess) -> None:
    metrics = server.metrics()
    assert metrics['vllm:num_requests_running{engine="0",model_name="fake"}'] == 0
    assert not [key for key in metrics if key.startswith("http_requests_total") and 'status="5' in key]
    assert "Traceback" not in "".join(server.log)
