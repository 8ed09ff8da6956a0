"""Messages of a call: in any pieces, compressed or not, too large, too slow; and how a call ends."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import Any

import pytest
from helpers_http2 import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.errors import InvalidRequest, ModelNotFound
from trivium.frontends.http2.frames import Flag, FrameType, frame, rst_stream
from trivium.frontends.http2.hpack import Headers
from trivium.frontends.http2.stream import Stream, StreamHandler
from trivium.frontends.kserve.grpc_wire import GrpcCall, Status, WireLimits

POST = [(b":method", b"POST"), (b":path", b"/x"), (b"content-type", b"application/grpc"), (b"te", b"trailers")]


class Notes:
    """A method that takes notes, and sends back each message."""

    def __init__(self, call: GrpcCall) -> None:
        self.call = call
        self.messages: list[bytes] = []
        self.has_ended = False
        self.is_cancelled = False

    def on_message(self, data: bytes) -> None:
        if data == b"bad":
            raise InvalidRequest("bad: ünlike any other %")
        self.messages.append(data)
        self.call.send(data)

    def on_end(self) -> None:
        self.has_ended = True
        if self.messages == [b"missing"]:
            raise ModelNotFound("no such model")
        if self.messages != [b"wait"]:
            self.call.finish()

    def on_cancel(self) -> None:
        self.is_cancelled = True


class GrpcClient(Client):
    def __init__(self, **limits: Any) -> None:
        self.limits = WireLimits(**{"max_message_bytes": 1000, "max_buffered_bytes": 5000, "message_timeout_s": 60.0, **limits})
        self.calls: list[Notes] = []
        super().__init__()
        self.connection._accept = self._begin

    def _begin(self, stream: Stream, headers: Headers) -> StreamHandler | None:
        call = GrpcCall(stream, headers, self.limits)
        notes = Notes(call)
        self.calls.append(notes)
        try:
            call.begin(notes)
        except Exception as error:
            call.fail_with(error)  # type: ignore[arg-type]
            return None
        return call

    async def answer(self) -> tuple[list[bytes], dict[bytes, bytes]]:
        """The messages' bytes as they travelled, and the headers and trailers together."""
        data: list[bytes] = []
        headers: dict[bytes, bytes] = {}
        for kind, _, _, payload in await self.frames():
            if kind == FrameType.DATA:
                data.append(payload)
            elif kind == FrameType.HEADERS:
                headers |= {bytes(name): bytes(value) for name, value in self.decoder.decode(payload, raw=True)}
        return data, headers


def _message(data: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(data).to_bytes(4) + data


def _call(client: GrpcClient, data: bytes, *, headers: list[tuple[bytes, bytes]] | None = None, size: int = 1 << 14, ends: bool = True) -> None:
    client.send(client.request(1, headers=POST + (headers or [])))
    for position in range(0, len(data), size):
        client.send(frame(FrameType.DATA, 0, 1, data[position : position + size]))
    if ends:
        client.send(frame(FrameType.DATA, Flag.END_STREAM, 1, b""))


@given(st.lists(st.binary(max_size=300).filter(lambda data: data != b"bad"), max_size=6), st.integers(1, 700))
@settings(max_examples=100, deadline=None)
def test_messages_arrive_whole_however_they_are_cut(messages: list[bytes], size: int) -> None:
    async def run() -> None:
        client = GrpcClient()
        _call(client, b"".join(map(_message, messages)), size=size)
        assert client.calls[0].messages == messages
        data, headers = await client.answer()
        assert b"".join(data) == b"".join(map(_message, messages))
        if messages not in ([b"wait"], [b"missing"]):
            assert headers[b"grpc-status"] == b"0"
        assert client.limits.num_buffered_bytes == 0

    asyncio.run(run())


@pytest.mark.parametrize(("name", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_compressed_messages_are_taken_and_sent(name: str, compress: Any) -> None:
    client = GrpcClient(compression=name.encode())
    _call(client, _message(compress(b"text"), 1), headers=[(b"grpc-encoding", name.encode()), (b"grpc-accept-encoding", b"identity, gzip,deflate")])
    assert client.calls[0].messages == [b"text"]
    data, headers = await client.answer()
    assert headers[b"grpc-encoding"] == name.encode()
    whole = b"".join(data)
    assert whole[0] == 1
    assert (gzip.decompress if name == "gzip" else zlib.decompress)(whole[5:]) == b"text"


@pytest.mark.parametrize(
    ("data", "headers", "status", "text"),
    [
        (_message(b"x" * 1001), [], Status.RESOURCE_EXHAUSTED, "larger than max (1001 vs. 1000)"),
        (b"\x00\xff\xff\xff\xff", [], Status.RESOURCE_EXHAUSTED, "larger than max (4294967295 vs. 1000)"),
        (_message(gzip.compress(b"\x00" * 100_000), 1), [(b"grpc-encoding", b"gzip")], Status.RESOURCE_EXHAUSTED, "decompressed"),
        (_message(b"no gzip", 1), [(b"grpc-encoding", b"gzip")], Status.INVALID_ARGUMENT, "not valid gzip"),
        (_message(b"x"), [(b"grpc-encoding", b"snappy")], Status.UNIMPLEMENTED, "snappy"),
        (_message(b"x"), [(b"grpc-timeout", b"soon")], Status.INVALID_ARGUMENT, "grpc-timeout"),
        (_message(b"x")[:-1] + b"xy"[:0], [], Status.INVALID_ARGUMENT, "inside a message"),
        (_message(b"missing"), [], Status.NOT_FOUND, "no such model"),
        (_message(b"bad"), [], Status.INVALID_ARGUMENT, "bad: %C3%BCnlike any other %25"),
    ],
)
async def test_what_is_wrong_ends_the_call_with_its_status(data: bytes, headers: list[tuple[bytes, bytes]], status: Status, text: str) -> None:
    client = GrpcClient()
    _call(client, data, headers=headers)
    _, answered = await client.answer()
    assert answered[b"grpc-status"] == b"%d" % status
    assert text in answered[b"grpc-message"].decode()
    assert client.connection.num_streams == 0
    assert client.limits.num_buffered_bytes == 0


async def test_a_deadline_ends_the_call_and_cancels_it() -> None:
    client = GrpcClient()
    _call(client, _message(b"wait"), headers=[(b"grpc-timeout", b"10m")])
    await asyncio.sleep(0.05)
    assert (await client.answer())[1][b"grpc-status"] == b"%d" % Status.DEADLINE_EXCEEDED
    assert client.calls[0].is_cancelled


async def test_a_reset_cancels_the_call() -> None:
    client = GrpcClient()
    _call(client, _message(b"wait"))
    client.send(rst_stream(1, 8))  # type: ignore[arg-type]
    assert client.calls[0].is_cancelled


async def test_a_message_that_does_not_end_is_not_waited_for() -> None:
    client = GrpcClient(message_timeout_s=0.01)
    _call(client, _message(b"half")[:-1], ends=False)
    await asyncio.sleep(0.05)
    assert b"did not arrive" in (await client.answer())[1][b"grpc-message"]
    assert client.calls[0].is_cancelled


async def test_unfinished_messages_of_all_calls_share_one_bound() -> None:
    client = GrpcClient(max_buffered_bytes=2000)
    for stream_id in (1, 3, 5):
        client.send(client.request(stream_id, headers=POST), frame(FrameType.DATA, 0, stream_id, _message(b"x" * 1000)[:900]))
    statuses = (await client.answer())[1]
    assert statuses[b"grpc-status"] == b"%d" % Status.RESOURCE_EXHAUSTED
    assert client.connection.num_streams == 2
    assert client.limits.num_buffered_bytes == 1800


async def test_a_message_in_no_known_compression_resets_the_stream() -> None:
    client = GrpcClient()
    _call(client, _message(b"x", 1))
    assert FrameType.RST_STREAM in [kind for kind, *_ in await client.frames()]
