"""Whatever a client sends to TGI's routes, it gets an answer of its own making, in TGI's shape, and the next request is served."""

from __future__ import annotations

import json
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivium.frontends.tgi.schema import Parameters

OPTIONS = {"engine": {"max_model_len": 64}}

numbers = st.sampled_from([-(2**64), -1, -0.0, 0, 1e-9, 0.5, 1, 1.0, 2, 3, 5, 20, 63, 64, 65, 1024, 2**31, 2**63, 2**64, 1e300])
texts = st.sampled_from(["", "a", "aé", "\0", "😀", "\u2028", "x" * 70, "<|eos|>", "!end", "("]) | st.text(max_size=6)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3), max_leaves=8)
kinds = st.sampled_from(["json", "json_object", "json_schema", "regex", "x"])
grammars = st.fixed_dictionaries({"type": kinds, "value": values | st.just({"type": "object"}) | st.just({"schema": {}})}) | values
parameters = st.dictionaries(st.sampled_from(Parameters.__struct_fields__) | texts, values, max_size=4)
bodies = st.fixed_dictionaries(
    {"inputs": texts | values},
    optional={
        "parameters": st.builds(lambda some, grammar: {**some, **grammar}, parameters, st.just({}) | st.builds(lambda g: {"grammar": g}, grammars))
    },
)
paths = st.sampled_from(["/generate", "/generate_stream", "/", "/invocations", "/tokenize"])


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(path=paths, body=bodies, stream=st.booleans())
def test_any_body_is_answered(http: httpx.Client, path: str, body: dict[str, Any], stream: bool) -> None:
    answer = http.post(path, content=json.dumps({**body, "stream": stream}))
    assert answer.status_code in (200, 422), (answer.status_code, answer.text)
    if answer.status_code == 422:
        error = answer.json()
        assert set(error) == {"error", "error_type"}
        assert error["error_type"] == "validation"
    elif answer.headers["content-type"].startswith("text/event-stream"):
        blocks = [json.loads(block.removeprefix("data:")) for block in answer.text.split("\n\n") if block]
        assert blocks[-1]["generated_text"] is not None
    else:
        answer.json()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(instances=st.lists(bodies | st.fixed_dictionaries({"messages": values}) | values, max_size=3))
def test_any_instances_are_answered(http: httpx.Client, instances: list[Any]) -> None:
    answer = http.post("/vertex", content=json.dumps({"instances": instances}))
    assert answer.status_code in (200, 422), (answer.status_code, answer.text)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.binary(max_size=60) | st.text(alphabet='{}[]",:\\ue0123456789-+.inputs', max_size=60).map(str.encode),
    path=st.sampled_from(["/generate", "/generate_stream", "/", "/invocations", "/vertex", "/chat_tokenize"]),
)
def test_any_bytes_are_answered(http: httpx.Client, data: bytes, path: str) -> None:
    answer = http.post(path, content=data)
    assert answer.status_code in (400, 422)
    assert set(answer.json()) == {"error", "error_type"}
