"""The engine's socket: a message of the wrong form is answered and harms nobody."""

from __future__ import annotations

from pathlib import Path

import msgspec
import zmq

from trivium.engine.mailbox import ZmqMailbox
from trivium.protocol.messages import Hello, StepOutputs, decode_from_engine, encode


def test_a_request_of_the_wrong_form_is_told_and_what_follows_is_read(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'engine.sock'}"
    mailbox = ZmqMailbox(address)
    context = zmq.Context()
    client = context.socket(zmq.DEALER)
    client.connect(address)
    try:
        client.send(msgspec.msgpack.encode(["add", "r1", [1, 2], {"temperature": "hot"}, 4]))
        client.send(msgspec.msgpack.encode(["unknown"]))
        client.send(encode(Hello()))
        received: list[object] = []
        while not received:
            received += [message for _, message in mailbox.receive(block=True)]
        assert received == [Hello()]
        answer = decode_from_engine(client.recv())
        assert isinstance(answer, StepOutputs)
        assert [(output.request_id, output.finish_reason, output.error_slug) for output in answer.outputs] == [("r1", "error", "internal_error")]
    finally:
        client.close(0)
        context.term()
        mailbox.close()
