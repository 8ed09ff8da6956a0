"""The connection: requests, windows, and a peer that does everything wrong."""

from __future__ import annotations

import asyncio
import struct

import pytest
from helpers_http2 import POST, Client
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.frontends.http2 import connection as module
from trivium.frontends.http2.connection import Http2Limits
from trivium.frontends.http2.errors import ErrorCode
from trivium.frontends.http2.frames import PREFACE, Flag, FrameType, Setting, frame, rst_stream, window_update
from trivium.frontends.http2.frames import settings as settings_frame
from trivium.frontends.http2.hpack import encode

END = Flag.END_STREAM
PING = frame(FrameType.PING, 0, 0, b"12345678")


def _data(stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(FrameType.DATA, flags, stream_id, payload)


# -- what a good client sees ------------------------------------------------------------------------------------------------------


async def test_a_request_arrives_and_is_answered() -> None:
    client = Client()
    client.send(client.request(1), _data(1, b"half"), _data(1, b" whole", END))
    (request,) = client.requests
    assert (list(request.headers), bytes(request.data), request.has_ended) == (POST, b"half whole", True)
    await client.frames()
    request.stream.send_headers(encode([(b":status", b"200")]))
    request.stream.send_data(b"answer")
    request.stream.send_trailers(encode([(b"grpc-status", b"0")]))
    answers = await client.frames()
    assert [(kind, flags, stream_id) for kind, flags, stream_id, _ in answers] == [
        (FrameType.HEADERS, Flag.END_HEADERS, 1),
        (FrameType.DATA, 0, 1),
        (FrameType.HEADERS, Flag.END_HEADERS | END, 1),
    ]
    assert client.connection.num_streams == 0


async def test_frames_may_arrive_in_any_pieces() -> None:
    client = Client(preface=b"")
    stream = PREFACE + settings_frame({}) + client.request(1) + _data(1, b"x" * 1000, END) + PING
    for position in range(0, len(stream), 7):
        client.connection.data_received(stream[position : position + 7])
    assert bytes(client.requests[0].data) == b"x" * 1000
    assert client.requests[0].has_ended
    assert (FrameType.PING, Flag.ACK, 0, b"12345678") in await client.frames()


async def test_padding_and_priority_are_taken_off() -> None:
    client = Client()
    block = client.encoder.encode(POST)
    padded = b"\x03" + b"\x00\x00\x00\x00\x10" + block + b"\x00" * 3
    client.send(frame(FrameType.HEADERS, Flag.END_HEADERS | Flag.PADDED | Flag.PRIORITY, 1, padded))
    client.send(_data(1, b"\x02data\x00\x00", END | Flag.PADDED))
    assert list(client.requests[0].headers) == POST
    assert bytes(client.requests[0].data) == b"data"


async def test_headers_may_go_on_in_further_frames() -> None:
    client = Client()
    block = client.encoder.encode(POST)
    client.send(frame(FrameType.HEADERS, END, 1, block[:5]), frame(FrameType.CONTINUATION, Flag.END_HEADERS, 1, block[5:]))
    assert client.requests[0].has_ended


async def test_answers_wait_for_the_peers_window() -> None:
    client = Client(preface=PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 10}))
    client.send(client.request(1, ends=True))
    stream = client.requests[0].stream
    await client.frames()
    stream.send_data(b"0123456789abcdef")
    stream.send_trailers(encode([(b"grpc-status", b"0")]))
    assert [payload for _, _, _, payload in await client.frames()] == [b"0123456789"]
    client.send(window_update(1, 4))
    assert [payload for _, _, _, payload in await client.frames()] == [b"abcd"]
    client.send(settings_frame({Setting.INITIAL_WINDOW_SIZE: 12}))
    kinds = [(kind, payload) for kind, flags, _, payload in await client.frames() if kind != FrameType.SETTINGS]
    assert kinds[0] == (FrameType.DATA, b"ef")
    assert kinds[1][0] == FrameType.HEADERS
    assert stream.is_closed


async def test_answers_wait_for_the_connections_window() -> None:
    client = Client(preface=PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 1 << 20}))
    client.send(client.request(1, ends=True), client.request(3, ends=True))
    await client.frames()
    for request in client.requests:
        request.stream.send_data(b"x" * 50_000)
    sent = sum(len(payload) for kind, _, _, payload in await client.frames() if kind == FrameType.DATA)
    assert sent == 65_535
    client.send(window_update(0, 1 << 20))
    sent += sum(len(payload) for kind, _, _, payload in await client.frames() if kind == FrameType.DATA)
    assert sent == 100_000


async def test_the_clients_windows_are_opened_again() -> None:
    client = Client()
    client.send(client.request(1))
    await client.frames()
    chunk = b"x" * 65_536
    for _ in range(3 * module.STREAM_WINDOW // len(chunk)):
        client.send(_data(1, chunk))
    opened = [
        struct.unpack(">I", payload)[0] for kind, _, stream_id, payload in await client.frames() if kind == FrameType.WINDOW_UPDATE and stream_id == 1
    ]
    assert sum(opened) >= 2 * module.STREAM_WINDOW


async def test_a_reset_reaches_the_request() -> None:
    client = Client()
    client.send(client.request(1), rst_stream(1, ErrorCode.CANCEL))
    assert client.requests[0].was_reset
    client.requests[0].stream.send_data(b"too late")
    assert FrameType.DATA not in [kind for kind, *_ in await client.frames()]


async def test_a_lost_connection_resets_its_requests() -> None:
    client = Client()
    client.send(client.request(1), client.request(3))
    client.connection.connection_lost(None)
    assert [request.was_reset for request in client.requests] == [True, True]
    assert client.is_lost


async def test_a_drain_ends_with_the_last_request() -> None:
    client = Client()
    client.send(client.request(1, ends=True))
    client.connection.drain()
    client.send(client.request(3, ends=True))
    found = await client.frames()
    assert (FrameType.GOAWAY, 0, 0) in [entry[:3] for entry in found]
    assert (FrameType.RST_STREAM, 0, 3, struct.pack(">I", ErrorCode.REFUSED_STREAM)) in found
    assert not client.transport.is_closed
    client.requests[0].stream.send_headers(encode([(b":status", b"200")]), ends_stream=True)
    await client.frames()
    assert client.transport.is_closed


# -- what a bad one gets ----------------------------------------------------------------------------------------------------------

BROKEN = {
    "http/1": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
    "half a preface and then something else": (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
}
FRAMES = {
    "frame of 16 MiB": (b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", ErrorCode.FRAME_SIZE_ERROR),
    "push": (frame(FrameType.PUSH_PROMISE, Flag.END_HEADERS, 1, b"\x00" * 8), ErrorCode.PROTOCOL_ERROR),
    "data before headers": (_data(1, b"x"), ErrorCode.PROTOCOL_ERROR),
    "data of stream 0": (_data(0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "even stream": (frame(FrameType.HEADERS, Flag.END_HEADERS, 2, b"\x82"), ErrorCode.PROTOCOL_ERROR),
    "headers of stream 0": (frame(FrameType.HEADERS, Flag.END_HEADERS, 0, b"\x82"), ErrorCode.PROTOCOL_ERROR),
    "broken header block": (frame(FrameType.HEADERS, Flag.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
    "priority cut off": (frame(FrameType.HEADERS, Flag.END_HEADERS | Flag.PRIORITY, 1, b"\x00"), ErrorCode.FRAME_SIZE_ERROR),
    "more padding than frame": (frame(FrameType.HEADERS, Flag.END_HEADERS | Flag.PADDED, 1, b"\x09x"), ErrorCode.PROTOCOL_ERROR),
    "lone continuation": (frame(FrameType.CONTINUATION, Flag.END_HEADERS, 1, b"\x82"), ErrorCode.PROTOCOL_ERROR),
    "headers interrupted": (frame(FrameType.HEADERS, 0, 1, b"\x82") + PING, ErrorCode.PROTOCOL_ERROR),
    "settings of length 5": (frame(FrameType.SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
    "settings of a stream": (frame(FrameType.SETTINGS, 0, 1, b""), ErrorCode.FRAME_SIZE_ERROR),
    "window setting too large": (settings_frame({Setting.INITIAL_WINDOW_SIZE: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
    "frame setting too small": (settings_frame({Setting.MAX_FRAME_SIZE: 100}), ErrorCode.PROTOCOL_ERROR),
    "window update by nothing": (window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "window update of length 3": (frame(FrameType.WINDOW_UPDATE, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
    "window update of a stream that never was": (window_update(7, 1), ErrorCode.PROTOCOL_ERROR),
    "windows beyond 2 GiB": (window_update(0, 2**31 - 1) * 2, ErrorCode.FLOW_CONTROL_ERROR),
    "ping of length 4": (frame(FrameType.PING, 0, 0, b"1234"), ErrorCode.FRAME_SIZE_ERROR),
    "reset of a stream that never was": (rst_stream(1, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    "reset of stream 0": (rst_stream(0, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    "reset of length 3": (frame(FrameType.RST_STREAM, 0, 1, b"123"), ErrorCode.FRAME_SIZE_ERROR),
    "continuation flood": (
        frame(FrameType.HEADERS, 0, 1, b"\x82") + frame(FrameType.CONTINUATION, 0, 1, b"") * 5000,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "endless headers": (
        frame(FrameType.HEADERS, 0, 1, b"\x00\x01a\x01b" * 2000) + frame(FrameType.CONTINUATION, 0, 1, b"\x00\x01a\x01b" * 2000),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "settings flood": (settings_frame({}) * 5000, ErrorCode.ENHANCE_YOUR_CALM),
    "ping flood": (PING * 5000, ErrorCode.ENHANCE_YOUR_CALM),
    "flood of unknown frames": (frame(99, 0, 0, b"x") * 5000, ErrorCode.ENHANCE_YOUR_CALM),
    "flood of priorities": (frame(FrameType.PRIORITY, 0, 1, b"12345") * 5000, ErrorCode.ENHANCE_YOUR_CALM),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_no_http2_is_turned_away(name: str) -> None:
    data, code = BROKEN[name]
    client = Client(preface=b"")
    client.send(data)
    assert await client.goaway_code() == code
    assert client.transport.is_closed


@pytest.mark.parametrize("name", FRAMES)
async def test_a_broken_or_greedy_peer_is_told_why_and_cut_off(name: str) -> None:
    data, code = FRAMES[name]
    client = Client()
    client.send(data)
    assert await client.goaway_code() == code
    assert client.transport.is_closed
    client.send(PING)
    assert await client.frames() == []


async def test_requests_that_are_taken_back_at_once_end_the_connection() -> None:
    """Rapid reset: the work each costs is bounded, and the peer is cut off."""
    client = Client()
    for number in range(module.MAX_NOISE + 100):
        client.send(client.request(2 * number + 1), rst_stream(2 * number + 1, ErrorCode.CANCEL))
        if client.transport.is_closed:
            break
    assert await client.goaway_code() == ErrorCode.ENHANCE_YOUR_CALM
    assert len(client.requests) <= module.MAX_NOISE + 1
    assert client.connection.num_streams == 0


async def test_a_client_that_cancels_now_and_then_is_let_be() -> None:
    client = Client()
    for number in range(4000):
        stream_id = 2 * number + 1
        client.send(client.request(stream_id, ends=True))
        if number % 2:
            client.send(rst_stream(stream_id, ErrorCode.CANCEL))
        else:
            client.requests[-1].stream.send_headers(encode([(b":status", b"200")]), ends_stream=True)
    assert not client.transport.is_closed


async def test_no_more_streams_than_were_announced() -> None:
    client = Client()
    for number in range(module.MAX_STREAMS + 1):
        client.send(client.request(2 * number + 1))
    refused = [entry for entry in await client.frames() if entry[0] == FrameType.RST_STREAM]
    assert len(refused) == 1
    assert len(client.requests) == module.MAX_STREAMS


async def test_data_beyond_the_window_ends_the_connection() -> None:
    client = Client()
    client.send(client.request(1))
    # The window is opened as data is taken, so that only one frame too large for it can break it.
    client.requests[0].stream.receive_window = 10
    client.send(_data(1, b"x" * 11))
    assert await client.goaway_code() == ErrorCode.FLOW_CONTROL_ERROR


async def test_a_slow_preface_is_not_waited_for() -> None:
    client = Client(Http2Limits(preface_timeout_s=0.01), preface=PREFACE[:10])
    await asyncio.sleep(0.05)
    assert client.transport.is_closed


async def test_headers_that_do_not_end_are_not_waited_for() -> None:
    client = Client(Http2Limits(preface_timeout_s=0.01))
    client.send(frame(FrameType.HEADERS, 0, 1, b"\x82"))
    await asyncio.sleep(0.05)
    assert client.transport.is_closed


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    client = Client(Http2Limits(write_timeout_s=0.01))
    client.connection.pause_writing()
    await asyncio.sleep(0.05)
    assert client.transport.is_closed


FRAME = st.builds(
    frame,
    st.one_of(st.sampled_from(list(FrameType)), st.integers(0, 255)),
    st.one_of(st.sampled_from([0, 1, 4, 5, 8, 0x20]), st.integers(0, 255)),
    st.one_of(st.sampled_from([0, 1, 3, 5]), st.integers(0, 2**31 - 1)),
    st.one_of(st.binary(max_size=64), st.sampled_from([encode(POST), b"\x00\x00\x00\x01", b"12345678", b"\x83\x86"])),
)


@given(st.lists(FRAME, max_size=30), st.integers(1, 100))
@settings(max_examples=300, deadline=None)
def test_any_frames_in_any_pieces_are_answered_or_end_the_connection(frames: list[bytes], size: int) -> None:
    async def run() -> None:
        client = Client()
        data = b"".join(frames)
        for position in range(0, len(data), size):
            client.connection.data_received(data[position : position + size])
        await client.frames()
        client.connection.connection_lost(None)
        assert client.connection.num_streams == 0

    asyncio.run(run())


async def test_a_client_that_opens_no_window_is_cut_off() -> None:
    client = Client(Http2Limits(write_timeout_s=0.02), preface=PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}))
    client.send(client.request(1, ends=True), client.request(3, ends=True))
    client.requests[0].stream.send_data(b"x")
    await asyncio.sleep(0.01)
    client.send(window_update(3, 10))
    await asyncio.sleep(0.05)
    assert client.transport.is_closed


async def test_a_client_that_reads_slowly_is_waited_for() -> None:
    client = Client(Http2Limits(write_timeout_s=0.1), preface=PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}))
    client.send(client.request(1, ends=True))
    client.requests[0].stream.send_data(b"0123")
    for _ in range(4):
        await asyncio.sleep(0.05)
        client.send(window_update(1, 1))
    await asyncio.sleep(0.15)
    assert not client.transport.is_closed
    assert b"".join(payload for kind, _, _, payload in await client.frames() if kind == FrameType.DATA) == b"0123"


async def test_answers_left_unread_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 1000)
    client = Client(preface=PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}))
    client.send(client.request(1, ends=True), client.request(3, ends=True))
    client.requests[0].stream.send_data(b"x" * 900)
    client.requests[1].stream.send_data(b"x" * 200)
    assert [request.was_reset for request in client.requests] == [False, True]
    assert client.connection.queued_bytes == 900
    client.send(window_update(1, 900))
    assert client.connection.queued_bytes == 0


async def test_a_handler_that_fails_ends_its_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    client = Client()
    client.send(client.request(1), client.request(3))
    client.requests[0].on_data = lambda data: 1 / 0  # type: ignore[assignment, return-value]
    client.send(_data(1, b"x", END), _data(3, b"y", END))
    assert bytes(client.requests[1].data) == b"y"
    assert (FrameType.RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.INTERNAL_ERROR)) in await client.frames()
    assert "a request failed" in caplog.text
    assert [request.was_reset for request in client.requests] == [True, False]
