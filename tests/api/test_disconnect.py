"""Clients that leave: the engine drops their sequences at once, streaming or not, and the others notice nothing."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time

import pytest
from helpers_server import ServerProcess, post_bytes

OPTIONS = {"engine": {"step_s": 0.002, "max_model_len": 100_000, "max_num_seqs": 64}, "http": {"max_queued_requests": 2000}}
LABELS = '{engine="0",model_name="fake"}'


def wait_until_idle(server: ServerProcess, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while True:
        metrics = server.metrics()
        busy = [metrics[f"vllm:{name}{LABELS}"] for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")]
        if not any(busy):
            return
        assert time.monotonic() < deadline, f"still busy: {busy}"
        time.sleep(0.05)


def close(connection: socket.socket, how: str) -> None:
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif how == "half":
        connection.shutdown(socket.SHUT_WR)
        return
    connection.close()


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "abc", "max_tokens": 90_000},
        {"prompt": "abc", "max_tokens": 90_000, "stream": True},
        {"prompt": "abc", "max_tokens": 90_000, "n": 3, "temperature": 1, "stream": True},
        {"prompt": ["abc", "def", "ghi"], "max_tokens": 90_000, "n": 2, "temperature": 1},
    ],
    ids=["whole", "stream", "n", "prompts"],
)
def test_a_client_that_leaves_frees_its_sequences(server: ServerProcess, how: str, body: dict[str, object]) -> None:
    with server.raw(post_bytes("/v1/completions", body)) as connection:
        deadline = time.monotonic() + 5
        while server.metrics()[f"vllm:num_requests_running{LABELS}"] == 0:
            assert time.monotonic() < deadline
        close(connection.socket, how)
        wait_until_idle(server, 1.0)


def test_leaving_before_the_body_is_complete(server: ServerProcess) -> None:
    with server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"):
        pass
    wait_until_idle(server, 1.0)


async def exchange(port: int, body: dict[str, object]) -> bytes:
    """A request on a connection of its own, which is closed when this is cancelled."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(post_bytes("/v1/completions", body).replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        return await reader.read()
    finally:
        writer.close()


async def test_a_thousand_requests_of_which_many_leave(server: ServerProcess) -> None:
    chance = random.Random(0)
    body = {"prompt": "steady ", "max_tokens": 20, "temperature": 0}
    with server.http() as http:
        before = http.post("/v1/completions", json=body).json()["choices"]

    async def one(number: int) -> str:
        await asyncio.sleep(number * 0.001)
        leaves = chance.random() < 0.3
        # Those that leave asked for more than they could ever wait for, so that how many there are doesn't depend on the machine's speed.
        body = {"prompt": f"request {number} ", "max_tokens": 90_000 if leaves else 30, "stream": number % 2 == 0}
        work = exchange(server.port, body)
        if not leaves:
            answer = await work
            assert answer.startswith(b"HTTP/1.1 200")
            assert b'"finish_reason":"length"' in answer
            assert b"error" not in answer
            return "answered"
        try:
            async with asyncio.timeout(chance.random() * 0.3):
                await work
        except TimeoutError:
            return "left"
        return "answered"

    results = await asyncio.gather(*(one(number) for number in range(1000)))
    assert results.count("left") > 200
    wait_until_idle(server, 2.0)
    metrics = server.metrics()
    assert metrics['vllm:request_success_total{engine="0",finished_reason="error",model_name="fake"}'] == 0
    assert metrics["http_requests_in_flight"] == 1
    with server.http() as http:
        assert http.post("/v1/completions", json=body).json()["choices"] == before
