"""117 HTTP exchanges recorded from a real tritonserver 2.51.0, replayed in order: equal, or one of the improvements named here.

The models are the recorded server's, with in-process functions in place of its Python models. Content types are compared where there is a
body that isn't an error: Triton calls some of its JSON errors text.
"""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers_kserve import KserveProcess

RECORDED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "recorded_triton" / "http.json").read_text())


@dataclass(frozen=True)
class Improvement:
    """What we answer instead, and why."""

    why: str
    status: int
    contains: str


def _client_mistake(contains: str) -> Improvement:
    return Improvement("400 for a client's mistake, and what is wrong in words", 400, contains)


UNLOADING = b'"name":"identity_dyn","version":"1","state":"UNLOADING"'
UNLOADED = b'"name":"identity_dyn","version":"1","state":"UNAVAILABLE","reason":"unloaded"'
"""Nothing is in flight: the unload may be over by the time the index is asked for."""

IMPROVEMENTS = {
    "server_meta": Improvement("the server's own name and version", 200, '{"name":"trivium","version":'),
    "infer_bad_json": _client_mistake("not valid JSON"),
    "infer_no_inputs_key": _client_mistake("'inputs' is required"),
    "infer_inputs_not_array": _client_mistake("inputs: Expected 'array'"),
    "infer_extra_input": Improvement("brackets that match", 400, "but missing required input(s) []. Please provide all required input(s)."),
    "infer_no_name": _client_mistake("'inputs[0].name' is required"),
    "infer_no_shape": _client_mistake("'inputs[0].shape' is required"),
    "infer_no_dtype": _client_mistake("'inputs[0].datatype' is required"),
    "infer_short_data": _client_mistake("Unable to parse 'data': Shape does not match true shape of 'data' field"),
    "infer_neg_shape": _client_mistake("negative dimension"),
    "infer_string_in_fp32": _client_mistake("can't be an element of FP32"),
    "infer_bool_in_fp32": _client_mistake("can't be an element of FP32"),
    "bin_hdr_nan": Improvement("a header that is no number is refused as such", 400, "Inference-Header-Content-Length must be a whole number"),
    "bin_no_hdr_len": Improvement("without the header all of the body is JSON", 400, "trailing characters"),
    "notfound": Improvement("paths outside /v2 belong to other APIs, whose errors look differently", 404, "There is no such route."),
    "metrics_on_http": Improvement("/metrics on the HTTP port too", 200, "# TYPE"),
    "index_bad": _client_mistake("ready: Expected 'bool'"),
    "load_unknown": Improvement("404 and the reason", 404, "failed to load 'nope', failed to poll from model repository"),
    "load_bad_config": _client_mistake("failed to load 'fixed2ms', failed to poll from model repository: "),
    "load_bad_config2": _client_mistake("max_batch_size"),
    "load_unknown_param": _client_mistake("'zzz'"),
    "load_file_without_config": _client_mistake("override model configuration must be provided along with override model file"),
    "trace_bad": Improvement("unknown settings are refused", 400, "'foo' is not a trace setting"),
    "log_bad": Improvement("unknown settings are refused", 400, "'zzz' is not a log setting"),
    "log_neg": _client_mistake("log_verbose_level"),
    "shm_reg_bad": _client_mistake("Unable to open shared memory region: '/nope'"),
    "gen_zero": _client_mistake("generate expects model to produce exactly 1 response"),
    "gen_badjson": _client_mistake("not valid JSON"),
}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def _unpacked(headers: dict[str, str], body: bytes) -> bytes:
    return gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, Answer]]:
    """What the same requests, in the same order, are answered here."""
    process = KserveProcess(only_recorded=True)
    try:
        yield {exchange["name"]: _replay(process, exchange) for exchange in RECORDED}
    finally:
        assert process.stop() == 0


def _replay(process: KserveProcess, exchange: dict[str, Any]) -> Answer:
    connection = http.client.HTTPConnection(process.http, timeout=20)
    body = None if exchange["req"] is None else exchange["req"].encode("latin-1")
    connection.request(exchange["method"], exchange["path"], body, dict(exchange["req_headers"] or {}))
    response = connection.getresponse()
    headers = {name.lower(): value for name, value in response.getheaders()}
    answer = Answer(response.status, headers, _unpacked(headers, response.read()))
    connection.close()
    return answer


@pytest.mark.parametrize("exchange", RECORDED, ids=lambda exchange: exchange["name"])
def test_answer_is_tritons_or_a_named_improvement(exchange: dict[str, Any], answers: dict[str, Answer]) -> None:
    answer = answers[exchange["name"]]
    improvement = IMPROVEMENTS.get(exchange["name"])
    if improvement is not None:
        assert answer.status == improvement.status
        assert improvement.contains in answer.body.decode()
        return
    headers = {name.lower(): value for name, value in exchange["headers"].items()}
    assert (answer.status, answer.body.replace(UNLOADED, UNLOADING)) == (exchange["status"], _unpacked(headers, exchange["body"].encode("latin-1")))
    names = ["inference-header-content-length", "content-encoding"]
    if answer.status == 200 and answer.body:
        names.append("content-type")
    assert {name: answer.headers.get(name) for name in names} == {name: headers.get(name) for name in names}


def test_every_improvement_is_about_a_recorded_exchange() -> None:
    assert IMPROVEMENTS.keys() <= {exchange["name"] for exchange in RECORDED}
