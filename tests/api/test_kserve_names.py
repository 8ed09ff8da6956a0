"""Models whose names have slashes, over KServe's HTTP routes: as hub models and folders served by their path do."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
import tritonclient.http as triton_http
from click.testing import CliRunner
from helpers_server import ServerProcess
from tritonclient.utils import InferenceServerException

from trivium.cli.main import cli

NAMES = ("org/mod", "org/mod/versions/2", "folder/infer", "plain")
OPTIONS = {"names": NAMES}
TENSORS = {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hello"]}]}
TEXT = {"text_input": "hello", "max_tokens": 3}


def _prompt() -> triton_http.InferInput:
    tensor = triton_http.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"hello"], dtype=np.object_))
    return tensor


@pytest.mark.parametrize("name", NAMES)
def test_tritonclient_reaches_every_name(server: ServerProcess, name: str) -> None:
    with triton_http.InferenceServerClient(server.url.removeprefix("http://")) as client:
        for version in ("", "1"):
            assert client.is_model_ready(name, version)
            assert client.get_model_metadata(name, version)["name"] == name
            assert client.get_model_config(name, version)["name"] == name
            assert client.get_inference_statistics(name, version)["model_stats"][0]["name"] == name
            assert client.infer(name, [_prompt()], version).get_response()["model_name"] == name
        assert client.get_trace_settings(name)["trace_level"] == ["OFF"]
        for change in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="this server has no model repository"):
                change(name)


@pytest.mark.parametrize("prefix", ["/v2/models/{}", "/v2/models/{}/versions/1"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_quoted", [False, True], ids=["raw", "quoted"])
def test_names_may_be_raw_or_quoted(http: httpx.Client, name: str, prefix: str, is_quoted: bool) -> None:
    path = prefix.format(quote(name, safe="") if is_quoted else name)
    assert http.get(path).json()["name"] == http.get(f"{path}/config").json()["name"] == name
    assert http.get(f"{path}/ready").status_code == 200
    assert http.get(f"{path}/stats").json()["model_stats"][0]["name"] == name
    # With a query the route behind ASGI answers, without one the other.
    assert [http.post(f"{path}/infer{query}", json=TENSORS).json()["model_name"] for query in ("", "?x=1")] == [name, name]
    assert http.post(f"{path}/generate", json=TEXT).json()["model_name"] == name
    event = http.post(f"{path}/generate_stream", json=TEXT).text.partition("\n")[0]
    assert json.loads(event.removeprefix("data: "))["model_name"] == name


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/v2/models/org/none", 404, "Request for unknown model: 'org/none' is not found"),
        ("GET", "/v2/models/org/mod/versions/7", 404, "Request for unknown model: 'org/mod' version 7 is not found"),
        ("POST", "/v2/models/org/none/infer", 404, "Request for unknown model: 'org/none' is not found"),
        ("POST", "/v2/models/org/none/versions/1/infer", 404, "Request for unknown model: 'org/none' is not found"),
        ("POST", "/v2/models/org/none/generate", 404, "Request for unknown model: 'org/none' is not found"),
        ("GET", "/v2/models/org/mod/infer", 405, "Method Not Allowed"),
        ("GET", "/v2/models/org/mod/versions/1/generate", 405, "Method Not Allowed"),
        ("POST", "/v2/models/org/mod", 405, "Method Not Allowed"),
        ("POST", "/v2/models/org/mod/ready", 405, "Method Not Allowed"),
        ("GET", "/v2/models/", 404, "Not Found"),
        ("POST", "/v2/repository/other/models/org/mod/load", 404, "Not Found"),
        ("POST", "/v2/repository/other/models/plain/load", 501, "'repository_name' specification is not supported"),
    ],
)
def test_what_is_not_there_is_refused_as_for_other_names(http: httpx.Client, method: str, path: str, status: int, text: str) -> None:
    answer = http.request(method, path, json=TENSORS if method == "POST" else None)
    assert (answer.status_code, answer.json()) == (status, {"error": text})


def test_they_share_the_series_of_other_models(server: ServerProcess, http: httpx.Client) -> None:
    def count() -> dict[str, float]:
        return {key: value for key, value in server.metrics().items() if key.startswith("http_requests_total") and "/v2/models" in key}

    before = count()
    for path in ("org/mod/infer", "org%2Fmod/versions/1/infer?x=1", "org/mod/generate"):
        http.post(f"/v2/models/{path}", json=TENSORS if "infer" in path else TEXT)
    grown = {key: value - before.get(key, 0) for key, value in count().items() if value != before.get(key, 0)}
    assert grown == {
        'http_requests_total{handler="/v2/models/{model}/infer",method="POST",status="200"}': 1,
        'http_requests_total{handler="/v2/models/{model}/versions/{version}/infer",method="POST",status="200"}': 1,
        'http_requests_total{handler="/v2/models/{model}/generate",method="POST",status="200"}': 1,
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_shows_them(server: ServerProcess, name: str) -> None:
    result = CliRunner().invoke(cli, ["models", "show", name, "--url", server.url])
    shown: Any = json.loads(result.output)
    assert (shown["metadata"]["name"], shown["config"]["name"]) == (name, name)
