"""What the HTTP server refuses before any model sees it: sizes, counts, times, malformed HTTP; and that others are served meanwhile."""

from __future__ import annotations

import contextlib
import time

import httpx
import pytest
from helpers_server import ServerProcess, post_bytes

OPTIONS = {
    "http": {
        "max_body_bytes": 100_000,
        "max_header_bytes": 16_384,
        "max_header_count": 50,
        "header_timeout_s": 1.0,
        "body_timeout_s": 1.0,
        "write_timeout_s": 1.0,
        "keep_alive_timeout_s": 1.0,
    },
    "engine": {"max_model_len": 60_000},
}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(autouse=True)
def _still_serves(http: httpx.Client) -> object:
    yield
    assert http.post("/v1/completions", json={"prompt": "ok", "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Big: " + b"a" * 20_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Big: " + b"a" * 20_000, 431, "headers_too_large"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Big: " + b"a" * 2_000_000, 431, "headers_too_large"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "headers_too_large"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 60 + b"\r\n", 431, "too_many_headers"),
        (b"GET /livez HTTP/1.1\r\n\r\n", 400, "missing_host"),
        (b"GET /livez HTTP/1.1\r\nHost : x\r\n\r\n", 400, "malformed_http"),
        (b"nonsense\r\n\r\n", 400, "malformed_http"),
        (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "malformed_http"),
        (HEAD + b"Content-Length: +2\r\n\r\n{}", 400, "malformed_http"),
        (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "malformed_http"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n11111111111111111\r\n", 400, "malformed_http"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400, "malformed_http"),
        (HEAD + b"Content-Length: 100001\r\n\r\n", 413, "payload_too_large"),
        (HEAD + b"Content-Length: 999999999999999999\r\n\r\n", 413, "payload_too_large"),
        (HEAD + b"Content-Length: " + b"0" * 5000 + b"\r\n\r\n", 400, "malformed_http"),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed_http"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"4000\r\n" + b"a" * 0x4000 + b"\r\n") * 8, 413, "payload_too_large"),
    ],
    ids=range(18),
)
def test_refused_at_once_and_closed(server: ServerProcess, data: bytes, status: int, code: str) -> None:
    with server.raw(timeout_s=5) as connection:
        # The answer may come before all of it was sent.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send(data)
        answer = connection.read_until_closed()
    # A reset may swallow the answer when data that nobody read was still on its way.
    if answer or len(data) < 200_000:
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
        assert b'"code":"%b"' % code.encode() in answer


def test_http_1_0_needs_no_host(server: ServerProcess) -> None:
    with server.raw(b"GET /livez HTTP/1.0\r\n\r\n") as connection:
        assert connection.read_until_closed().startswith(b"HTTP/1.1 200")


def test_a_stream_over_http_1_0_ends_with_the_connection(server: ServerProcess) -> None:
    body = b'{"prompt": "ok", "max_tokens": 3, "temperature": 0, "stream": true}'
    with server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)) as connection:
        head, _, text = connection.read_until_closed().partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert text.startswith(b"data: {")
    assert text.endswith(b"data: [DONE]\n\n")


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"


@pytest.mark.parametrize("num_parts", [1, 2, 500])
def test_an_offer_to_upgrade_is_passed_over(server: ServerProcess, num_parts: int) -> None:
    """As Java's HttpClient makes it with its first request."""
    requests = [post_bytes("/v1/completions", {"prompt": word, "max_tokens": 3, "temperature": 0}) for word in ("one", "two")]
    data = b"".join(one.replace(b"Host: test\r\n", b"Host: test\r\n" + OFFER) for one in requests)
    size = -(-len(data) // num_parts)
    with server.raw() as connection:
        for start in range(0, len(data), size):
            connection.send(data[start : start + size])
        received = connection.read_until(b'"text":"two"')
    assert received.index(b'"text":"one"') < received.index(b'"text":"two"')
    assert received.count(b"HTTP/1.1 200") == 2
    with server.raw(b"GET /livez HTTP/1.1\r\nHost: x\r\n" + OFFER + b"\r\n") as connection:
        connection.read_until(b"ok\n")


@pytest.mark.parametrize("path", [b"GET /livez", b"GET /none", b"POST /none", b"PUT /livez", b"OPTIONS /v1/models"])
def test_a_body_that_nobody_reads_does_not_hold_the_connection(server: ServerProcess, path: bytes) -> None:
    with server.raw(path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", timeout_s=5) as connection:
        head = connection.read_until_closed()
    assert b"connection: close" in head


def test_a_post_without_a_body_keeps_its_connection(server: ServerProcess) -> None:
    with server.raw(b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n") as connection:
        connection.read_until(b"method_not_allowed")
        connection.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.read_until(b"ok\n")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /livez HT", b"408"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"408"),
        (HEAD + b"Content-Length: 100\r\n\r\n{", b"408"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"408"),
        (b"", b""),
    ],
    ids=["request line", "headers", "body", "chunks", "nothing"],
)
def test_half_a_request_and_then_silence(server: ServerProcess, data: bytes, status: bytes) -> None:
    started = time.monotonic()
    with server.raw(data, timeout_s=5) as connection:
        answer = connection.read_until_closed()
    assert 0.8 < time.monotonic() - started < 4
    assert answer[9:12] == status


@pytest.mark.parametrize("head", [b"GET /livez HTTP/1.1\r\nHost: x\r\nX: ", HEAD + b"Content-Length: 100\r\n\r\n"], ids=["headers", "body"])
def test_a_byte_now_and_then_does_not_extend_the_time(server: ServerProcess, head: bytes) -> None:
    started = time.monotonic()
    with server.raw(head, timeout_s=5) as connection:
        connection.socket.settimeout(0.2)
        answer = b""
        while not answer and time.monotonic() - started < 5:
            try:
                connection.send(b"a")
                answer = connection.socket.recv(4096)
            except TimeoutError:
                continue
    assert answer.startswith(b"HTTP/1.1 408")


def test_an_idle_connection_is_closed_and_a_used_one_kept(server: ServerProcess) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    started = time.monotonic()
    with server.raw(request, timeout_s=5) as connection:
        connection.read_until(b"ok\n")
        time.sleep(0.5)
        connection.send(request)
        connection.read_until(b"ok\n")
        assert connection.read_until_closed() == b""
    assert 1.3 < time.monotonic() - started < 4


def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    first = post_bytes("/v1/completions", {"prompt": "one", "max_tokens": 3, "temperature": 0})
    second = post_bytes("/v1/completions", {"prompt": "two", "max_tokens": 3, "temperature": 0})
    with server.raw(first + second) as connection:
        received = connection.read_until(b'"text":"two"')
    assert received.index(b'"text":"one"') < received.index(b'"text":"two"')


def test_expect_100_continue(server: ServerProcess) -> None:
    body = b'{"prompt": "ok", "max_tokens": 1, "temperature": 0}'
    with server.raw(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)) as connection:
        connection.read_until(b"100 Continue")
        connection.send(body)
        connection.read_until(b'"text":"o"')


def test_a_client_that_never_reads_is_cut_off_and_its_blocks_are_freed(server: ServerProcess) -> None:
    with server.raw(timeout_s=30) as connection:
        connection.socket.setsockopt(1, 8, 4096)  # SO_RCVBUF
        connection.send(post_bytes("/v1/completions", {"prompt": "x" * 50, "max_tokens": 50_000, "stream": True, "logprobs": 5}))
        deadline = time.monotonic() + 20
        while server.metrics()['vllm:request_success_total{engine="0",finished_reason="abort",model_name="fake"}'] == 0:
            assert time.monotonic() < deadline, "the slow reader was not cut off"
            time.sleep(0.2)
        assert server.metrics()['vllm:kv_cache_usage_perc{engine="0",model_name="fake"}'] == 0
