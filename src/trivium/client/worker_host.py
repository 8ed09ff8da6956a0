"""What a model in a worker process asks of the server: other models, the repository, metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from trivium.client.worker_connection import WorkerConnection
from trivium.client.worker_context import Answer, WorkerContext
from trivium.errors import InvalidRequest, RequestCancelled, TriviumError
from trivium.infer import InferRequest, InferResponse, RequestedOutput, Tensor
from trivium.metrics.custom import CustomMetrics
from trivium.protocol.worker_messages import Call, CallResponse, Control, ControlReply, MetricUpdate, WireRequest, WireResponse

logger = logging.getLogger(__name__)


class WorkerHost:
    """One a model version, shared by its instances. Belongs to the event loop."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._calls: dict[tuple[object, int], Answer] = {}
        """Calls in progress, by the instance that made them and its number."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._metrics = CustomMetrics.of(context.registry)

    def progress(self, stage: str) -> None:
        self._context.on_progress(stage, 0, 0)

    # -- calls --------------------------------------------------------------------------------------------------------------------

    def call(self, owner: object, connection: WorkerConnection, message: Call) -> None:
        key = message.key

        def on_response(response: InferResponse) -> None:
            if response.is_final:
                self._calls.pop((owner, key), None)
            outputs = [connection.pack(tensor) for tensor in response.outputs]
            wire = WireResponse(outputs=outputs, parameters=response.parameters, is_final=response.is_final, is_null=response.is_null)
            connection.send(CallResponse(key, wire))

        def on_error(error: TriviumError) -> None:
            self._calls.pop((owner, key), None)
            connection.send(CallResponse(key, WireResponse(slug=error.slug, message=error.message)))

        inputs = [connection.unpack(tensor) for tensor in message.request.inputs]
        try:
            answer = self._context.caller.infer(_to_request(message.request, inputs))
        except TriviumError as error:
            on_error(error)
            return
        self._calls[owner, key] = answer
        answer.deliver_to(on_response, on_error)

    def cancel_call(self, owner: object, connection: WorkerConnection, key: int) -> None:
        answer = self._calls.pop((owner, key), None)
        if answer is not None:
            answer.cancel()
            connection.send(CallResponse(key, WireResponse(slug=RequestCancelled.slug, message="the call was cancelled")))

    def forget(self, owner: object) -> None:
        """The instance's process has gone, and with it whoever waits for its calls."""
        for found in [found for found in self._calls if found[0] is owner]:
            self._calls.pop(found).cancel()

    # -- the repository -----------------------------------------------------------------------------------------------------------

    def control(self, connection: WorkerConnection, message: Control) -> None:
        control = self._context.control
        if message.action == "is_ready":
            connection.send(ControlReply(message.key, float(control.is_ready(message.model, message.version))))
            return
        if message.action == "load":
            action = control.load(message.model, config_json=message.config_json, files=message.files)
        else:
            action = control.unload(message.model, unload_dependents=message.unload_dependents)
        task = asyncio.get_running_loop().create_task(self._answer_control(connection, message.key, action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_control(self, connection: WorkerConnection, key: int, action: Coroutine[Any, Any, None]) -> None:
        try:
            await action
        except TriviumError as error:
            connection.send(ControlReply(key, slug=error.slug, message=error.message))
        else:
            connection.send(ControlReply(key))

    # -- metrics ------------------------------------------------------------------------------------------------------------------

    def update_metric(self, connection: WorkerConnection, message: MetricUpdate) -> None:
        try:
            series = self._metrics.series(self, message.name, message.kind, message.help, message.labels, message.buckets)
        except InvalidRequest as error:
            logger.warning("a model's metric '%s' is refused: %s", message.name, error.message)
            if message.key:
                connection.send(ControlReply(message.key, slug=error.slug, message=error.message))
            return
        match message.action:
            case "increment":
                series.value += message.amount
            case "set":
                series.value = message.amount
            case "observe" if series.histogram is not None:
                series.histogram.observe(message.amount)
            case _:
                pass
        if message.key:
            connection.send(ControlReply(message.key, series.value))

    def close(self) -> None:
        """The model is gone."""
        self._metrics.forget(self)


def _to_request(wire: WireRequest, inputs: list[Tensor]) -> InferRequest:
    return InferRequest(
        model=wire.model,
        version=wire.version,
        id=wire.id,
        inputs=inputs,
        outputs=[RequestedOutput(name=name) for name in wire.outputs],
        parameters=wire.parameters,
        correlation_id=wire.correlation_id,
        sequence_start=bool(wire.flags & 1),
        sequence_end=bool(wire.flags & 2),
        priority=wire.priority,
        timeout_us=wire.timeout_us,
    )
