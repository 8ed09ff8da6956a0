"""What a KServe server process does with connections: pipelines, slow and leaving clients, limits, keys, deadlines, large messages, its end."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from helpers_grpc_replay import infer, repeat
from helpers_kserve import KserveProcess
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "data": list(range(16))}]}).encode()
SLOW = json.dumps({"inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[KserveProcess]:
    process = KserveProcess(http={"max_tensor_bytes": 1_000_000, "body_timeout_s": 0.5}, grpc={"grpc_max_message_bytes": 70_000_000})
    try:
        yield process
    finally:
        assert process.stop() == 0


@pytest.fixture(scope="module")
def locked() -> Iterator[KserveProcess]:
    process = KserveProcess(http={"api_key": ["secret-key"]})
    try:
        yield process
    finally:
        process.stop()


def _connect(server: KserveProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.http_port), timeout=10)


def _post(model: str = "identity", body: bytes = BODY, *headers: str, length: int | None = None) -> bytes:
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: test", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _read(connection: socket.socket, num_answers: int = 1) -> list[tuple[int, dict[str, str], bytes]]:
    """Answers of one connection, in order."""
    stream = connection.makefile("rb")
    found: list[tuple[int, dict[str, str], bytes]] = []
    for _ in range(num_answers):
        status = int(stream.readline().split()[1])
        headers: dict[str, str] = {}
        while line := stream.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name] = value
        found.append((status, headers, stream.read(int(headers.get("content-length", "0")))))
    return found


def _stats(server: KserveProcess, model: str) -> Any:
    return httpx.get(f"http://{server.http}/v2/models/{model}/stats", timeout=10).json()["model_stats"][0]


# -- HTTP -------------------------------------------------------------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_order(server: KserveProcess) -> None:
    with _connect(server) as connection:
        other = b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n"
        connection.sendall(_post() + other + _post("nope") + _post() + other)
        assert [status for status, _, _ in _read(connection, 5)] == [200, 200, 404, 200, 200]


def test_a_body_may_come_in_pieces_and_after_100_continue(server: KserveProcess) -> None:
    with _connect(server) as connection:
        connection.sendall(_post("identity", b"", "Expect: 100-continue", length=len(BODY)))
        assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        for position in range(0, len(BODY), 10):
            connection.sendall(BODY[position : position + 10])
        assert _read(connection)[0][0] == 200


def test_chunked_bodies_and_percent_encoded_names(server: KserveProcess) -> None:
    answer = httpx.post(f"http://{server.http}/v2/models/%69dentity/versions/1/infer", content=iter([BODY[:50], BODY[50:]]), timeout=10)
    assert answer.status_code == 200
    # With a query the other way through the server is taken.
    assert httpx.post(f"http://{server.http}/v2/models/identity/infer?x=1", content=BODY, timeout=10).json() == answer.json()


def test_http_1_0_and_connection_close_end_the_connection(server: KserveProcess) -> None:
    for request in (_post().replace(b"HTTP/1.1", b"HTTP/1.0"), _post("identity", BODY, "Connection: close")):
        with _connect(server) as connection:
            connection.sendall(request)
            status, headers, _ = _read(connection)[0]
            assert (status, headers["connection"]) == (200, "close")
            assert connection.recv(1) == b""


@pytest.mark.parametrize("claimed", [2_000_000, 10**25])
def test_a_body_that_is_too_large_is_refused_before_it_comes(server: KserveProcess, claimed: int) -> None:
    with _connect(server) as connection:
        connection.sendall(_post("identity", b"x", length=claimed))
        status, headers, body = _read(connection)[0]
        assert (status in (400, 413), headers["connection"]) == (True, "close")
        assert "error" in json.loads(body)


def test_a_chunked_body_is_measured_as_it_comes(server: KserveProcess) -> None:
    answer = httpx.post(f"http://{server.http}/v2/models/identity/infer", content=(b"x" * 50_000 for _ in range(40)), timeout=10)
    assert answer.status_code == 413


def test_a_body_that_does_not_come_is_not_waited_for(server: KserveProcess) -> None:
    with _connect(server) as connection:
        connection.sendall(_post("identity", BODY[:10], length=len(BODY)))
        status, headers, _ = _read(connection)[0]
        assert (status, headers["connection"]) == (408, "close")


def test_a_client_that_leaves_cancels_its_request(server: KserveProcess) -> None:
    before = _stats(server, "slow")["inference_stats"]["fail"]["count"]
    with _connect(server) as connection:
        connection.sendall(_post("slow", SLOW))
        time.sleep(0.1)
    deadline = time.monotonic() + 5
    while _stats(server, "slow")["inference_stats"]["fail"]["count"] == before:
        assert time.monotonic() < deadline, "the request was not cancelled"
        time.sleep(0.02)
    assert httpx.get(f"http://{server.http}/metrics", timeout=10).text.count("http_requests_in_flight 1.0") == 1


def test_what_was_answered_is_counted(server: KserveProcess) -> None:
    def count() -> float:
        page = httpx.get(f"http://{server.http}/metrics", timeout=10).text
        lines = [line for line in page.splitlines() if line.startswith("http_requests_total") and 'infer"' in line and 'status="200"' in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    before = count()
    with _connect(server) as connection:
        connection.sendall(_post() * 3)
        _read(connection, 3)
    assert count() == before + 3


# -- keys -------------------------------------------------------------------------------------------------------------------------


def test_every_route_but_health_asks_for_the_key(locked: KserveProcess) -> None:
    base = f"http://{locked.http}"
    for path in ("/v2", "/v2/models/identity", "/v2/models/identity/config", "/v2/models/stats", "/v2/logging", "/v2/systemsharedmemory/status"):
        answer = httpx.get(base + path, timeout=10)
        assert (answer.status_code, list(answer.json())) == (401, ["error"]), path
    for path in ("infer", "infer?x=1", "generate", "generate_stream"):
        assert httpx.post(f"{base}/v2/models/identity/{path}", content=BODY, timeout=10).status_code == 401, path
    assert httpx.get(f"{base}/v2/health/ready", timeout=10).status_code == 200
    key = {"Authorization": "Bearer secret-key"}
    assert httpx.post(f"{base}/v2/models/identity/infer", content=BODY, headers=key, timeout=10).status_code == 200


def test_every_method_but_health_asks_for_the_key(locked: KserveProcess) -> None:
    with grpc.insecure_channel(locked.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = {name: method for name, method in vars(stub).items() if name not in ("ServerLive", "ServerReady")}
        for name, call in calls.items():
            kind = getattr(pb, f"{'ModelInfer' if name == 'ModelStreamInfer' else name}Request")
            with pytest.raises(grpc.RpcError) as raised:
                list(call(iter([kind()]), timeout=10)) if name == "ModelStreamInfer" else call(kind(), timeout=10)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED, name
        assert stub.ServerReady(pb.ServerReadyRequest(), timeout=10).ready
        assert stub.ModelInfer(infer(), timeout=10, metadata=[("authorization", "Bearer secret-key")]).model_name == "identity"


# -- gRPC -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stub(server: KserveProcess) -> Iterator[Any]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=options) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def test_a_message_of_64_megabytes_comes_back(stub: Any) -> None:
    data = np.arange(16 << 20, dtype=np.float32).tobytes()
    request = infer(model="echo_fp32", name="IN", shape=(16 << 20,), raw=[data])
    assert stub.ModelInfer(request, timeout=60).raw_output_contents[0] == data


def test_a_message_beyond_the_limit_is_refused(stub: Any) -> None:
    request = infer(model="echo_fp32", name="IN", shape=(20 << 20,), raw=[bytes(80 << 20)])
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(request, timeout=60)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stub.ModelInfer(infer(), timeout=10).model_name == "identity"


def test_a_deadline_is_kept_and_frees_the_model(server: KserveProcess, stub: Any) -> None:
    before = _stats(server, "slow")["inference_stats"]["fail"]["count"]
    started = time.monotonic()
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(infer(model="slow", name="IN", shape=(1,), raw=[bytes(4)]), timeout=0.3)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - started < 2
    assert _stats(server, "slow")["inference_stats"]["fail"]["count"] == before + 1


def test_a_client_that_pings_stays_connected(server: KserveProcess) -> None:
    options = [("grpc.keepalive_time_ms", 50), ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0)]
    with grpc.insecure_channel(server.grpc, options=options) as channel:
        own = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(3):
            assert own.ModelInfer(infer(), timeout=10).model_name == "identity"
            time.sleep(0.3)


def test_a_slow_reader_gets_all_of_a_stream(stub: Any) -> None:
    words: list[bytes] = []
    for number, answer in enumerate(stub.ModelStreamInfer(iter([repeat(3000)]), timeout=60)):
        words.append(answer.infer_response.raw_output_contents[0])
        if number % 1000 == 0:
            time.sleep(0.1)
    assert [word[4:] for word in words] == [b"tok%d " % number for number in range(3000)]


def test_unknown_methods_and_plain_http_are_turned_away(server: KserveProcess) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/inference.GRPCInferenceService/Nope")(b"", timeout=10)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff\xff", timeout=10)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
        received = b""
        while chunk := connection.recv(1000):
            received += chunk
        assert b"this port speaks HTTP/2 only" in received


def test_a_shutdown_finishes_what_was_accepted() -> None:
    process = KserveProcess(only_recorded=True)
    with grpc.insecure_channel(process.grpc) as channel:
        own = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        waiting = [own.ModelInfer.future(infer(model="fixed2ms", raw=[struct.pack("<16f", *range(16))]), timeout=10) for _ in range(40)]
        waiting[0].result()
        assert process.stop() == 0
        assert [call.code() for call in waiting] == [grpc.StatusCode.OK] * 40


def test_requests_are_traced_while_that_is_switched_on(tmp_path: Path) -> None:
    file = tmp_path / "traces"
    process = KserveProcess(only_recorded=True, grpc={"trace_file": str(file)})
    try:
        base = f"http://{process.http}/v2"

        def ask() -> None:
            assert httpx.post(f"{base}/models/identity/infer", content=BODY, timeout=10).status_code == 200

        ask()
        changed = httpx.post(
            f"{base}/models/identity/trace/setting", json={"trace_level": ["TIMESTAMPS"], "trace_rate": "2", "trace_count": "3"}, timeout=10
        )
        assert changed.json()["trace_level"] == ["TIMESTAMPS"]
        for _ in range(10):
            ask()
        with grpc.insecure_channel(process.grpc) as channel:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(infer(model="fixed2ms"), timeout=10)
    finally:
        assert process.stop() == 0
    traces = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(trace["id"], trace["model_name"]) for trace in traces] == [(1, "identity"), (2, "identity"), (3, "identity")]
    moments = {moment["name"]: moment["ns"] for moment in traces[0]["timestamps"]}
    assert moments["QUEUE_START"] <= moments["COMPUTE_START"] <= moments["REQUEST_END"]
