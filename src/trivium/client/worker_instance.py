"""`WorkerInstance`: the `ModelInstance` in front of one instance of a worker process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from trivium.client.worker_connection import WorkerConnection
from trivium.client.worker_host import WorkerHost
from trivium.errors import EngineDead, InternalError, TriviumError, error_from_slug
from trivium.execution import Execution, ExecutionTimes
from trivium.infer import InferRequest, InferResponse
from trivium.protocol.worker_messages import (
    Batch,
    BatchDone,
    Call,
    Cancel,
    CancelCall,
    Control,
    FromWorker,
    Loaded,
    LoadFailed,
    LogLine,
    MetricUpdate,
    Progress,
    Release,
    Response,
    WireRequest,
    WireResponse,
)

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 2


class _RunningBatch:
    """One `execute`, from its call until its worker says that the next may come."""

    __slots__ = ("done", "executions", "first_key", "started_ns")

    def __init__(self, executions: Sequence[Execution], done: asyncio.Future[ExecutionTimes]) -> None:
        self.executions = executions
        self.done = done
        self.first_key = 0
        self.started_ns = time.monotonic_ns()


class WorkerInstance:
    """See `ModelInstance`. If its process dies, the batch that was computed fails, with the open requests of a decoupled model; the next one,
    which the worker had not begun, is sent again to the process that takes its place."""

    def __init__(self, name: str, model: str, version: int, host: WorkerHost, *, is_interactive: bool, execution_limit_s: float) -> None:
        """`is_interactive`: the model can ask whether a request was cancelled. `execution_limit_s`: a batch that takes longer has hung; 0: none."""
        self.name = name
        self.is_alive = False
        self.max_in_flight = MAX_IN_FLIGHT
        self.loaded: asyncio.Future[Loaded] | None = None
        """Of the process being started."""
        self.on_hang: Callable[[], None] = lambda: None
        self.on_close: Callable[[], Awaitable[None]] | None = None
        self._model = model
        self._version = str(version)
        self._host = host
        self._is_interactive = is_interactive
        self._execution_limit_s = execution_limit_s
        self._connection: WorkerConnection | None = None
        self._batches: deque[_RunningBatch] = deque()
        self._doomed: _RunningBatch | None = None
        """What was computed when the process ended."""
        self._open: dict[int, Execution] = {}
        """Requests of a decoupled model, by number, until their final response."""
        self._next_key = 1
        self._alive_waiters: list[asyncio.Future[None]] = []
        self._failure: TriviumError | None = None
        self._hang_timer: asyncio.TimerHandle | None = None

    # -- ModelInstance ------------------------------------------------------------------------------------------------------------

    async def wait_alive(self) -> None:
        while not self.is_alive:
            if self._failure is not None:
                raise self._failure
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._alive_waiters.append(waiter)
            await waiter

    async def execute(self, batch: Sequence[Execution]) -> ExecutionTimes:
        running = _RunningBatch(batch, asyncio.get_running_loop().create_future())
        if self._failure is not None:
            self._fail(running, self._failure)
        else:
            self._batches.append(running)
            if self.is_alive:
                self._send(running)
        return await running.done

    async def close(self) -> None:
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            await on_close()

    # -- the process's life -------------------------------------------------------------------------------------------------------

    def attach(self, connection: WorkerConnection) -> None:
        """A process has been started; its instance will say `Loaded`."""
        self._connection = connection
        self.loaded = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        """The process can run batches."""
        self.is_alive = True
        self._wake()
        for running in list(self._batches):
            self._send(running)

    def suspend(self) -> None:
        """The process can't be reached any more. What comes now waits for the next one."""
        if self.is_alive:
            self.is_alive = False
            self._doomed = self._batches.popleft() if self._batches else None

    def on_lost(self, error: EngineDead) -> None:
        """The process has ended."""
        self.suspend()
        if self._hang_timer is not None:
            self._hang_timer.cancel()
            self._hang_timer = None
        self._connection = None
        self._end_loading(error)
        self._host.forget(self)
        open_, self._open = self._open, {}
        doomed, self._doomed = self._doomed, None
        if doomed is not None:
            self._fail(doomed, error)
        waiting = {id(execution) for running in self._batches for execution in running.executions}
        for execution in open_.values():
            if id(execution) not in waiting:
                execution.fail(error)

    def _end_loading(self, error: TriviumError) -> None:
        if self.loaded is not None and not self.loaded.done():
            self.loaded.set_exception(error)
            self.loaded.exception()  # seen: nobody may be waiting any more

    def give_up(self, error: TriviumError) -> None:
        """No other process will take its place."""
        self._failure = error
        self._wake()
        while self._batches:
            self._fail(self._batches.popleft(), error)

    def _wake(self) -> None:
        waiters, self._alive_waiters = self._alive_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- batches ------------------------------------------------------------------------------------------------------------------

    def _send(self, running: _RunningBatch) -> None:
        connection = self._connection
        assert connection is not None
        running.first_key = self._next_key
        self._next_key += len(running.executions)
        try:
            requests = [_to_wire(execution.request, connection) for execution in running.executions]
        except (TypeError, ValueError) as error:
            self._batches.remove(running)
            self._fail(running, InternalError(f"the batch could not be sent: {error}"))
            return
        connection.send(Batch(running.first_key, requests))
        if self._is_interactive:
            for key, execution in enumerate(running.executions, running.first_key):
                self._open[key] = execution
                execution.on_cancel(partial(self._on_cancel, key))
        if self._execution_limit_s and running is self._batches[0]:
            self._watch()

    def _watch(self) -> None:
        if self._hang_timer is not None:
            self._hang_timer.cancel()
            self._hang_timer = None
        if self._batches and self._execution_limit_s:
            self._hang_timer = asyncio.get_running_loop().call_later(self._execution_limit_s, self._on_limit)

    def _on_limit(self) -> None:
        logger.error("instance '%s' has computed one batch for %g s; its process is killed", self.name, self._execution_limit_s)
        self.on_hang()

    def _on_cancel(self, key: int) -> None:
        if key in self._open and self._connection is not None:
            self._connection.send(Cancel(key))

    def _fail(self, running: _RunningBatch, error: TriviumError) -> None:
        for execution in running.executions:
            execution.fail(error)
        if not running.done.done():
            running.done.set_result(ExecutionTimes(infer_ns=time.monotonic_ns() - running.started_ns))

    # -- what the worker says -----------------------------------------------------------------------------------------------------

    def on_message(self, message: FromWorker) -> None:
        match message:
            case BatchDone():
                self._on_done(message)
            case Response():
                self._on_response(message.key, message.response)
            case Loaded():
                if self.loaded is not None and not self.loaded.done():
                    self.loaded.set_result(message)
            case LoadFailed():
                self._end_loading(error_from_slug(message.slug, message.message))
            case Call():
                assert self._connection is not None
                self._host.call(self, self._connection, message)
            case CancelCall():
                assert self._connection is not None
                self._host.cancel_call(self, self._connection, message.key)
            case Control():
                assert self._connection is not None
                self._host.control(self._connection, message)
            case MetricUpdate():
                assert self._connection is not None
                self._host.update_metric(self._connection, message)
            case LogLine():
                logging.getLogger("trivium.models").log(message.level, "%s", message.message, extra={"model": self._model, "version": self._version})
            case Progress():
                self._host.progress(message.stage)
            case Release():
                pass  # the connection's own

    def _on_done(self, message: BatchDone) -> None:
        running = self._batches[0] if self._batches else None
        if running is None or running.first_key != message.first_key:
            raise ValueError("the worker answered a batch that it was not sent")
        self._batches.popleft()
        for key, (execution, response) in enumerate(zip(running.executions, message.responses, strict=False), running.first_key):
            if response is not None:
                self._answer(execution, response)
            if self._is_interactive:
                self._open.pop(key, None)
        if self._execution_limit_s:
            self._watch()
        if not running.done.done():
            begin_ns = max(message.begin_ns, running.started_ns)
            end_ns = max(message.end_ns, begin_ns)
            times = ExecutionTimes(input_ns=begin_ns - running.started_ns, infer_ns=end_ns - begin_ns, output_ns=max(0, time.monotonic_ns() - end_ns))
            running.done.set_result(times)

    def _on_response(self, key: int, response: WireResponse) -> None:
        execution = self._open.get(key)
        if execution is not None:
            if response.is_final or response.slug:
                del self._open[key]
            self._answer(execution, response)

    def _answer(self, execution: Execution, wire: WireResponse) -> None:
        connection = self._connection
        assert connection is not None
        if wire.slug:
            execution.fail(error_from_slug(wire.slug, wire.message))
            return
        if wire.is_rescheduled:
            execution.reschedule()
            return
        response = InferResponse(
            model=self._model,
            version=self._version,
            id=execution.request.id,
            outputs=[connection.unpack(tensor) for tensor in wire.outputs],
            parameters=wire.parameters,
            is_final=wire.is_final,
            is_null=wire.is_null,
        )
        execution.respond(response)


def _to_wire(request: InferRequest, connection: WorkerConnection) -> WireRequest:
    return WireRequest(
        inputs=[connection.pack(tensor) for tensor in request.inputs],
        outputs=[output.name for output in request.outputs],
        id=request.id,
        parameters=request.parameters,
        correlation_id=request.correlation_id,
        flags=(1 if request.sequence_start else 0) | (2 if request.sequence_end else 0),
        priority=request.priority,
        timeout_us=request.timeout_us,
    )
