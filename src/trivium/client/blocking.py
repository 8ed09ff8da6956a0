"""`BlockingEngineClient`: one engine process without an event loop, for scripts and `LLM`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import zmq

from trivium.client.process import EngineProcess
from trivium.config import EngineConfig
from trivium.errors import EngineDead, error_from_slug
from trivium.protocol.messages import (
    Abort,
    AddRequest,
    EngineFailed,
    EngineReady,
    FromEngine,
    Hello,
    Probe,
    ProbeReply,
    Progress,
    ResetPrefixCache,
    Shutdown,
    StepOutputs,
    ToEngine,
    TokenOutput,
    decode_from_engine,
    encode,
)

LIVENESS_CHECK_MS = 1000
"""How often a waiting client looks whether the engine still lives; answers themselves are never waited for with a timeout."""


class BlockingEngineClient:
    """Starts an engine and waits until it can run. Raises what it failed with. Not thread-safe."""

    def __init__(self, config: EngineConfig, *, on_progress: Callable[[Progress], None] | None = None) -> None:
        self._process = EngineProcess(config)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._num_probes = 0
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(self._process.address)
        self._send(Hello())
        try:
            self.ready = self._wait_until_ready(on_progress)
        except BaseException:
            self.close()
            raise

    def add(self, request: AddRequest) -> None:
        self._send(request)

    def abort(self, request_ids: list[str]) -> None:
        self._send(Abort(request_ids))

    def give_up(self, request_ids: list[str]) -> None:
        """Abort these, known to the engine or not, and wait until it has heard of it: no output of theirs comes afterwards."""
        self._num_probes += 1
        self.abort(request_ids)
        self._send(Probe(self._num_probes))
        while True:
            message = self._receive()
            if isinstance(message, ProbeReply) and message.nonce == self._num_probes:
                return

    def reset_prefix_cache(self) -> None:
        self._send(ResetPrefixCache())

    def outputs(self) -> Iterator[list[TokenOutput]]:
        """Batches of outputs as they come, for ever; stop iterating when all requests have finished. Raises `EngineDead`."""
        while True:
            message = self._receive()
            if isinstance(message, StepOutputs) and message.outputs:
                yield message.outputs

    def close(self) -> None:
        """Stop the engine. Safe to call twice."""
        if not self._socket.closed:
            if self._process.exit_code is None:
                self._send(Shutdown())
            self._process.stop()
            self._socket.close()
            self._context.term()

    def _send(self, message: ToEngine) -> None:
        self._socket.send(encode(message), zmq.NOBLOCK)

    def _receive(self) -> FromEngine:
        while not self._socket.poll(LIVENESS_CHECK_MS, zmq.POLLIN):
            code = self._process.exit_code
            if code is not None and not self._socket.poll(0, zmq.POLLIN):
                raise EngineDead(f"The engine process ended unexpectedly (exit code {code}).")
        message = decode_from_engine(self._socket.recv())
        if isinstance(message, EngineFailed):
            raise error_from_slug(message.slug, message.message)
        return message

    def _wait_until_ready(self, on_progress: Callable[[Progress], None] | None) -> EngineReady:
        while True:
            message = self._receive()
            if isinstance(message, EngineReady):
                return message
            if isinstance(message, Progress) and on_progress is not None:
                on_progress(message)
