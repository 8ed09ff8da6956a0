"""What a streamed chunk costs the server process: everything from an engine's output to the socket, with the scripted engine's own share."""

from __future__ import annotations

import selectors
import socket

import pytest
from helpers_server import ServerProcess, post_bytes

NUM_STREAMS = 128
NUM_TOKENS = 500
MIN_CHUNKS_PER_CPU_SECOND = 30_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "The quick brown fox jumps over the lazy dog. "}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "The quick brown fox"}]}),
    ],
)
def test_one_core_serves_many_streams(path: str, body: dict[str, object]) -> None:
    server = ServerProcess()
    try:
        request = post_bytes(path, {**body, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True})
        _read_streams(server, request, 8)
        before = server.metrics()["process_cpu_seconds_total"]
        num_chunks = _read_streams(server, request, NUM_STREAMS)
        spent = server.metrics()["process_cpu_seconds_total"] - before
    finally:
        server.stop()
    rate = num_chunks / spent
    assert num_chunks > NUM_STREAMS * NUM_TOKENS * 0.9
    assert rate >= MIN_CHUNKS_PER_CPU_SECOND, f"{rate:.0f} chunks per second of processor time, {spent / num_chunks * 1e6:.1f} µs each"


def _read_streams(server: ServerProcess, request: bytes, count: int) -> int:
    """Chunks received on `count` streams, all read to their ends."""
    selector = selectors.DefaultSelector()
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(request)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
    num_chunks = 0
    while selector.get_map():
        for key, _ in selector.select(30):
            assert isinstance(key.fileobj, socket.socket)
            data = key.fileobj.recv(1 << 18)
            num_chunks += data.count(b"data: ")
            if not data or b"[DONE]" in data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
    selector.close()
    return num_chunks
