"""Frames between server and worker, whatever pieces they arrive in."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from trivium.client.worker_connection import WorkerConnection
from trivium.infer import DataType, Tensor
from trivium.protocol import worker_messages
from trivium.protocol.shared_region import SharedRegion
from trivium.protocol.worker_messages import (
    Batch,
    BatchDone,
    Cancel,
    FromWorker,
    Loaded,
    Release,
    Shutdown,
    WireRequest,
    WireResponse,
    WireTensor,
    encode_frame,
)
from trivium.worker.link import Link


def batch_of(size: int) -> Batch:
    return Batch(7, [WireRequest(inputs=[WireTensor("x", DataType.UINT8, (size,), memoryview(bytes(range(256)) * (size // 256)))])])


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Link]]:
    ours, theirs = socket.socketpair()
    link = Link(theirs, SharedRegion.create(2**20), SharedRegion.create(2**20))
    yield ours, link
    ours.close()
    theirs.close()


@pytest.mark.parametrize("piece", [1, 3, 7, 1000, 10**9])
def test_a_worker_reads_frames_in_any_pieces(ends: tuple[socket.socket, Link], piece: int) -> None:
    ours, link = ends
    sizes = [256] if piece < 5 else [256, 2**20, 300 * 1024, 0, 4096]
    data = b"".join(bytes(encode_frame(batch_of(size))) for size in sizes) + bytes(encode_frame(Cancel(3))) + bytes(encode_frame(Shutdown()))

    def send() -> None:
        for start in range(0, len(data), piece):
            ours.sendall(data[start : start + piece])

    sender = threading.Thread(target=send)
    sender.start()
    for size in sizes:
        batch = link.next_batch()
        assert batch is not None
        assert batch == batch_of(size)
    assert link.next_batch() is None
    assert link.cancelled == {3}
    sender.join()


def test_the_end_of_the_connection_ends_the_link(ends: tuple[socket.socket, Link]) -> None:
    ours, link = ends
    link.poll()
    ours.sendall(bytes(encode_frame(batch_of(256))))
    link.poll()
    assert len(link.inbox) == 1
    ours.close()
    assert link.next_batch() is not None
    assert link.next_batch() is None
    assert not link.pump(lambda: False)


def test_a_message_that_ends_in_the_middle_is_an_error(ends: tuple[socket.socket, Link]) -> None:
    ours, link = ends
    ours.sendall(struct.pack("<I", 10**6) + bytes(1000))
    ours.close()
    with pytest.raises(EOFError):
        link.next_batch()


def test_a_message_too_long_for_its_length_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_messages, "MAX_FRAME_SIZE", 100)
    with pytest.raises(ValueError, match="too long"):
        encode_frame(batch_of(256))


def feed(connection: WorkerConnection, data: bytes, piece: int) -> None:
    for start in range(0, len(data), piece):
        rest = data[start : start + piece]
        while rest:
            place = connection.get_buffer(-1)
            taken = min(len(place), len(rest))
            place[:taken] = rest[:taken]
            connection.buffer_updated(taken)
            rest = rest[taken:]


@pytest.mark.parametrize("piece", [1, 5, 1000, 10**9])
def test_the_server_reads_frames_in_any_pieces(piece: int) -> None:
    got: list[FromWorker] = []
    connection = WorkerConnection(got.append, lambda: None)
    sizes = [256] if piece < 6 else [256, 2**20, 300 * 1024, 0]
    sent: list[FromWorker] = [Loaded("{}")]
    for size in sizes:
        data = memoryview(bytes(size))
        sent.append(BatchDone(1, [WireResponse(outputs=[WireTensor("y", DataType.UINT8, (size,), data)])], 1, 2))
    feed(connection, b"".join(bytes(encode_frame(message)) for message in sent), piece)
    assert got == sent
    connection.close()


def test_blocks_come_back_and_wrong_ones_end_the_connection() -> None:
    connection = WorkerConnection(lambda message: None, lambda: None)
    wire = connection.pack(Tensor("x", DataType.UINT8, (70_000,), bytes(70_000)))
    assert (wire.offset, wire.size, connection.outbound.num_blocks) == (0, 70_000, 1)
    assert connection.pack(Tensor("x", DataType.UINT8, (10,), bytes(10))).offset == -1
    feed(connection, bytes(encode_frame(Release([0]))), 10**9)
    assert connection.outbound.num_blocks == 0

    class Transport:
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    for nonsense in (bytes(encode_frame(Release([0]))), struct.pack("<I", 3) + b"abc"):
        transport = Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        feed(connection, nonsense, 10**9)
        assert transport.aborted
        connection._filled = 0
    with pytest.raises(ValueError, match="outside"):
        connection.unpack(WireTensor("y", DataType.UINT8, (9,), memoryview(b""), 2**40, 9))
    connection.connection_lost(None)
    connection.close()
