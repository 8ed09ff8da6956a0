"""`EngineClient`: the asyncio face of one engine process, which it starts, watches and restarts."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import zmq
import zmq.asyncio

from trivium.client.process import EngineProcess
from trivium.client.stream import OutputStream
from trivium.config import EngineConfig
from trivium.errors import EngineDead, NotReady, TriviumError, error_from_slug
from trivium.protocol.messages import (
    Abort,
    AddRequest,
    EngineFailed,
    EngineReady,
    EngineStats,
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

logger = logging.getLogger(__name__)

ProgressCallback = Callable[[Progress], None]

FIRST_RESTART_DELAY_S: Final = 0.25
MAX_RESTART_DELAY_S: Final = 8.0
MAX_FAILED_STARTS: Final = 5
"""Restarts in a row that never became ready before the client gives up."""


class EngineClient:
    """Submit sequences, get their tokens back. Belongs to the event loop it was started in.

    If the engine dies, everything in flight fails with `EngineDead`, `ready` is None until the restarted engine answers, and new requests are
    refused with `NotReady`. An engine that shows no sign of life for `config.hang_timeout_s` is killed, and then goes the same way. After
    `MAX_FAILED_STARTS` starts in a row that came to nothing `is_dead` stays true and `on_give_up` is called.
    """

    def __init__(self, config: EngineConfig, on_progress: ProgressCallback | None = None) -> None:
        self.config = config
        self.ready: EngineReady | None = None
        self.is_dead = False
        self.failure: TriviumError | None = None
        self.num_restarts = 0
        self.on_give_up: Callable[[], None] | None = None
        """Called when the engine died and could not be started again."""
        self._on_progress = on_progress
        self._streams: dict[str, OutputStream] = {}
        self._stats = EngineStats()
        self._stats_listeners: list[Callable[[EngineStats], None]] = []
        self._probes: dict[int, asyncio.Future[EngineStats]] = {}
        self._nonces = itertools.count(1)
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._process: EngineProcess | None = None
        self._is_closing = False
        self._heard_at = 0.0
        self._first_ready: asyncio.Future[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: EngineConfig, *, on_progress: ProgressCallback | None = None) -> EngineClient:
        """Start an engine and wait until it can run. Raises what it failed with (`ModelLoadError`, `ConfigError`, …)."""
        client = cls(config, on_progress)
        client._first_ready = asyncio.get_running_loop().create_future()
        client._supervisor = asyncio.create_task(client._supervise(), name="engine-supervisor")
        try:
            await client._first_ready
        except BaseException:
            await client.close()
            raise
        return client

    # -- requests -----------------------------------------------------------------------------------------------------------------

    async def submit(self, request: AddRequest) -> AsyncIterator[TokenOutput]:
        """Outputs of the request until one has a finish reason. Closing the iterator early aborts the request.

        Raises `NotReady` when no engine runs, `EngineDead` when it dies on the way.
        """
        if self.ready is None:
            raise self._not_ready()
        assert request.request_id not in self._streams, f"request id {request.request_id} is in use"
        stream = self._streams[request.request_id] = OutputStream()
        is_finished = False
        try:
            self._send(request)
            while not is_finished:
                output = await stream.get()
                is_finished = output.finish_reason is not None
                yield output
        except EngineDead:
            is_finished = True
            raise
        finally:
            self._streams.pop(request.request_id, None)
            if not is_finished:
                self.abort([request.request_id])

    def abort(self, request_ids: list[str]) -> None:
        """Takes effect before the engine's next step. Unknown ids are ignored."""
        if self.ready is not None:
            self._send(Abort(request_ids))

    async def probe(self, timeout_s: float) -> EngineStats:
        """Proof that the engine's loop turns. Raises `NotReady` when it does not answer in time."""
        if self.ready is None:
            raise self._not_ready()
        nonce = next(self._nonces)
        reply = self._probes[nonce] = asyncio.get_running_loop().create_future()
        self._send(Probe(nonce))
        try:
            return await asyncio.wait_for(reply, timeout_s)
        except TimeoutError:
            raise NotReady(f"The engine did not answer a probe within {timeout_s:g} s.") from None
        finally:
            self._probes.pop(nonce, None)

    def stats(self) -> EngineStats:
        """As last reported by the engine."""
        return self._stats

    def add_stats_listener(self, listener: Callable[[EngineStats], None]) -> None:
        """Called with every report, in order: the way to see each report's `step_tokens` once."""
        self._stats_listeners.append(listener)

    def reset_prefix_cache(self) -> None:
        self._send(ResetPrefixCache())

    async def close(self) -> None:
        """Stop the engine. Requests still in flight fail with `EngineDead`."""
        self._is_closing = True
        if self.ready is not None:
            self._send(Shutdown())
        process = self._process
        if process is not None:
            await asyncio.to_thread(process.stop)
        if self._supervisor is not None:
            await self._supervisor
        self._context.destroy(linger=0)

    # -- the process --------------------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        failed_starts = 0
        delay = FIRST_RESTART_DELAY_S
        while not self._is_closing:
            became_ready = await self._run_once()
            if self._is_closing:
                break
            if became_ready:
                failed_starts, delay = 0, FIRST_RESTART_DELAY_S
            else:
                failed_starts += 1
            if self._first_ready is not None and not self._first_ready.done():
                # A start that never worked is the operator's to mend; only an engine that once ran is restarted.
                self.is_dead = True
                self._first_ready.set_exception(self.failure or EngineDead("The engine process ended before it was ready."))
                return
            if failed_starts >= MAX_FAILED_STARTS:
                logger.error("the engine failed to start %d times in a row; giving up", failed_starts)
                if self.on_give_up is not None:
                    self.on_give_up()
                return
            logger.warning("restarting the engine in %.2f s", delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_RESTART_DELAY_S)
            self.num_restarts += 1

    async def _run_once(self) -> bool:
        """One life of the process. Returns whether it ever became ready."""
        process = self._process = EngineProcess(self.config)
        exited = process.watch(asyncio.get_running_loop())
        socket = self._socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(process.address)
        self._send(Hello())
        became_ready = asyncio.Event()
        receiver = asyncio.create_task(self._receive(socket, became_ready), name="engine-receiver")
        watchdog = asyncio.create_task(self._watch_for_hangs(process), name="engine-watchdog")
        exit_code = await exited
        for task in (receiver, watchdog):
            task.cancel()
        await asyncio.gather(receiver, watchdog, return_exceptions=True)
        await self._drain(socket, became_ready)
        self._on_exit(exit_code)
        socket.close()
        await asyncio.to_thread(process.stop)
        return became_ready.is_set()

    def _on_exit(self, exit_code: int) -> None:
        self.ready = None
        self._socket = None
        self.is_dead = True
        how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        error = EngineDead("The engine was stopped." if self._is_closing else f"The engine process ended unexpectedly ({how}).")
        has_run = self._first_ready is not None and self._first_ready.done()
        if not self._is_closing and (has_run or self.failure is None):  # a start that failed is reported by whoever asked for it
            logger.error("engine process ended: %s; %d requests fail", how, len(self._streams))
        for stream in self._streams.values():
            stream.fail(error)
        for probe in self._probes.values():
            if not probe.done():
                probe.set_exception(error)
        self._stats = EngineStats()

    async def _receive(self, socket: zmq.asyncio.Socket, became_ready: asyncio.Event) -> None:
        while True:
            self._handle(decode_from_engine(await socket.recv()), became_ready)

    async def _drain(self, socket: zmq.asyncio.Socket, became_ready: asyncio.Event) -> None:
        while await socket.poll(0):
            self._handle(decode_from_engine(await socket.recv()), became_ready)

    async def _watch_for_hangs(self, process: EngineProcess) -> None:
        """An engine that is silent is asked; one that stays silent is killed. Does not look at one that still loads."""
        timeout_s = self.config.hang_timeout_s
        while True:
            await asyncio.sleep(timeout_s / 4)
            silence_s = time.monotonic() - self._heard_at
            if self.ready is None or silence_s < timeout_s / 2:
                continue
            if silence_s >= timeout_s:
                logger.error("the engine has shown no sign of life for %.0f s; it is killed", silence_s)
                process.kill()
                return
            self._send(Probe(0))

    def _handle(self, message: FromEngine, became_ready: asyncio.Event) -> None:
        self._heard_at = time.monotonic()
        match message:
            case StepOutputs():
                for output in message.outputs:
                    stream = self._streams.get(output.request_id)
                    if stream is not None:
                        stream.put(output)
                if message.stats is not None:
                    self._on_stats(message.stats)
            case ProbeReply():
                if message.stats is not None:
                    self._on_stats(message.stats)
                probe = self._probes.get(message.nonce)
                if probe is not None and not probe.done():
                    probe.set_result(message.stats or self._stats)
            case Progress():
                if self._on_progress is not None:
                    self._on_progress(message)
            case EngineReady():
                self.ready = message
                self.is_dead = False
                self.failure = None
                became_ready.set()
                if self._first_ready is not None and not self._first_ready.done():
                    self._first_ready.set_result(None)
            case EngineFailed():
                self.failure = error_from_slug(message.slug, message.message)

    def _on_stats(self, stats: EngineStats) -> None:
        self._stats = stats
        for listener in self._stats_listeners:
            listener(stats)

    def _not_ready(self) -> TriviumError:
        if self.failure is not None:
            return NotReady(f"The engine failed: {self.failure.message}")
        return NotReady("The engine is being restarted.")

    def _send(self, message: ToEngine) -> None:
        # A DEALER without a high-water mark takes a message at once: the future is done when `send` returns, and the order is kept.
        if self._socket is not None:
            self._socket.send(encode(message), zmq.NOBLOCK)
