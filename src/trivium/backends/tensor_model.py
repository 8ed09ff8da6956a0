"""`ScheduledModel`: one loaded version of a tensor model. Requests wait in its scheduler; each instance has a task that takes batches from it.

Nothing polls: an instance's task looks for work when it becomes free and sleeps otherwise. It is woken by an arrival that makes a batch, or by
the one timer, which is set to the moment at which the clock alone would change a decision.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from trivium.backends.tensor_adapters import Adapter
from trivium.backends.tensor_base import Inference, ModelSignature
from trivium.backends.tensor_checks import RequestChecker, log_prefix
from trivium.backends.tensor_gate import Gate
from trivium.backends.tensor_inference import Stage, TensorInference, no_response
from trivium.backends.tensor_timer import Timer
from trivium.batching.model_metrics import Latencies
from trivium.batching.rate_limiter import Permit
from trivium.batching.scheduler import BatchScheduler
from trivium.batching.statistics import FailureReason, ModelStatistics
from trivium.errors import DeadlineExceeded, GenerationFailed, InternalError, NotReady, Overloaded, TriviumError
from trivium.execution import ExecutionTimes, ModelInstance
from trivium.infer import InferRequest, InferResponse

logger = logging.getLogger(__name__)
_clock_ns = time.monotonic_ns


class _Runner:
    """A place where a batch can run: an instance, or one of the two of an instance that takes batches ahead."""

    __slots__ = ("index", "instance", "task", "waiter")

    def __init__(self, index: int, instance: ModelInstance) -> None:
        self.index = index
        self.instance = instance
        self.task: asyncio.Task[None] | None = None
        self.waiter: asyncio.Future[None] | None = None


class ScheduledModel:
    """See `TensorModel`. Belongs to the event loop it is made in."""

    def __init__(
        self,
        signature: ModelSignature,
        instances: Sequence[ModelInstance],
        scheduler: BatchScheduler[TensorInference],
        *,
        batches: bool = True,
        preserves_order: bool = False,
        takes_ahead: bool = False,
        adapters: Sequence[Adapter] = (),
        permits: Sequence[Permit | None] = (),
        close_instances: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`takes_ahead`: an instance may get its next batch before it has done the last, if it can. `permits` are the instances' places at the
        rate limiter; none: nothing limits them. `close_instances` ends whatever they run in; by default each is closed."""
        assert instances
        self._signature = signature
        self._statistics = ModelStatistics(signature.name, signature.version)
        self._checker = RequestChecker(signature, batches=batches)
        self._scheduler = scheduler
        self._instances = tuple(instances)
        self._adapters = tuple(adapters)
        self._permits = tuple(permits) or (None,) * len(instances)
        self._close_instances = close_instances
        self.latencies: Latencies | None = None
        """Set where each request's own times are wanted."""
        self.on_close: Callable[[], None] = lambda: None
        self.gate = Gate() if preserves_order else None
        """What lets responses out in order; None: they leave as they come."""
        self._takes_ahead = takes_ahead and len(instances) == 1 and instances[0].max_in_flight > 1
        self._last_finish_ns = 0
        self._running: dict[TensorInference, None] = {}
        self._timer = Timer(self._on_timer)
        self._is_closed = False
        self._idle: deque[_Runner] = deque()
        self._runners = [
            _Runner(index, instance) for index, instance in enumerate(instances) for _ in range(instance.max_in_flight if self._takes_ahead else 1)
        ]
        for runner in self._runners:
            runner.task = asyncio.create_task(self._run(runner), name=f"instance-{runner.instance.name}")

    @property
    def signature(self) -> ModelSignature:
        return self._signature

    @property
    def statistics(self) -> ModelStatistics:
        return self._statistics

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and any(instance.is_alive for instance in self._instances)

    @property
    def num_pending(self) -> int:
        return len(self._scheduler)

    def infer(self, request: InferRequest) -> Inference:
        if self._is_closed:
            raise NotReady(f"Request for unknown model: '{request.model}' has no available versions")
        if not self._runners:
            raise NotReady(f"no instance of model '{request.model}' is left")
        arrival_ns = _clock_ns()
        statistics = self._statistics
        try:
            batch_size, shape_key = self._checker.check(request)
            for adapter in self._adapters:
                adapter.check(request)
            inference = TensorInference(self, request, arrival_ns=arrival_ns, batch_size=batch_size, shape_key=shape_key)
            self._scheduler.add(inference, arrival_ns)
        except TriviumError as error:
            is_full = isinstance(error, Overloaded)
            statistics.count_failure(FailureReason.REJECTED if is_full else FailureReason.OTHER, _clock_ns() - arrival_ns)
            if is_full:
                raise Overloaded(log_prefix(request) + error.message) from None
            raise
        if self.gate is not None:
            self.gate.enter(inference)
        self._dispatch(arrival_ns)
        return inference

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._timer.close()
        tasks = [runner.task for runner in self._runners if runner.task is not None]
        for task in tasks:
            task.cancel()
        error = NotReady(f"model '{self._signature.name}' is being unloaded")
        for inference in [*self._scheduler.clear(), *self._running]:
            inference.end_with(error, FailureReason.OTHER)
        await asyncio.gather(*tasks, return_exceptions=True)
        for permit in self._permits:
            if permit is not None:
                permit.close()
        self.on_close()
        if self._close_instances is None:
            await asyncio.gather(*(instance.close() for instance in self._instances))
        else:
            await self._close_instances()

    # -- what an inference tells its model ----------------------------------------------------------------------------------------

    def withdraw(self, inference: TensorInference) -> None:
        self._scheduler.remove(inference)

    def reschedule(self, inference: TensorInference) -> None:
        if self._signature.is_sequence:
            inference.stage = Stage.WAITING
            inference.request = inference.original
            self._scheduler.reschedule(inference)
        else:
            inference.fail(GenerationFailed(f"model '{self._signature.name}' has no iterative sequences"))

    def transform(self, inference: TensorInference, response: InferResponse) -> InferResponse:
        for adapter in self._adapters:
            response = adapter.restore(inference, response)
        wanted = inference.original.outputs
        if wanted and len(wanted) < len(response.outputs):
            names = {output.name for output in wanted}
            response.outputs = [tensor for tensor in response.outputs if tensor.name in names]
        return response

    def on_response(self, inference: TensorInference, response: InferResponse) -> None:
        if self._signature.is_decoupled:
            self._count_response(inference, response)
        if self.latencies is not None and inference.num_responses == 0:
            self.latencies.observe_first_response(_clock_ns() - inference.arrival_ns)

    def on_end(self, inference: TensorInference, reason: FailureReason | None) -> None:
        # With `times`, its instance was free before the request had all its responses.
        times = inference.times
        if times is not None:
            del self._running[inference]
        if reason is not None:
            self._statistics.count_failure(reason, inference.ended_ns - inference.arrival_ns)
        elif times is not None:
            self._count_success(inference, times)

    # -- scheduling ---------------------------------------------------------------------------------------------------------------

    def _dispatch(self, now_ns: int) -> None:
        """Wake the first idle runner for which there is a batch; it wakes the next."""
        scheduler = self._scheduler
        for runner in self._idle:
            if scheduler.is_ready(runner.index, now_ns):
                self._idle.remove(runner)
                waiter = runner.waiter
                assert waiter is not None
                if not waiter.done():
                    waiter.set_result(None)
                break
        self._set_timer(now_ns)

    def _set_timer(self, now_ns: int) -> None:
        event_ns = self._scheduler.next_event_ns(now_ns)
        if event_ns:
            self._timer.set(event_ns)

    def _on_timer(self) -> None:
        now_ns = _clock_ns()
        for inference in self._scheduler.expire(now_ns):
            inference.end_with(DeadlineExceeded("Request timeout expired"), FailureReason.REJECTED)
        self._dispatch(now_ns)

    async def _run(self, runner: _Runner) -> None:
        instance = runner.instance
        loop = asyncio.get_running_loop()
        while True:
            if not instance.is_alive:
                try:
                    await instance.wait_alive()
                except TriviumError as error:
                    self._give_up(runner, error)
                    return
            permit = self._permits[runner.index]
            if permit is not None and self._scheduler.is_ready(runner.index, _clock_ns()):
                await _granted(permit)
            started_ns = _clock_ns()
            batch = self._scheduler.take(runner.index, started_ns)
            if batch:
                if self._idle:
                    self._dispatch(started_ns)
                await self._execute(runner, batch, started_ns)
            if permit is not None:
                permit.release(has_run=bool(batch))
            if not batch:
                runner.waiter = loop.create_future()
                self._idle.append(runner)
                self._set_timer(started_ns)
                await runner.waiter

    def _give_up(self, runner: _Runner, error: TriviumError) -> None:
        logger.error("Instance %s is given up: %s", runner.instance.name, error.message)
        self._runners.remove(runner)
        if not self._runners:
            for inference in self._scheduler.clear():
                inference.end_with(error, FailureReason.BACKEND)

    async def _execute(self, runner: _Runner, batch: list[TensorInference], started_ns: int) -> None:
        rows = 0
        for inference in batch:
            inference.stage = Stage.RUNNING
            inference.started_ns = started_ns
            rows += inference.batch_size
            self._running[inference] = None
            for adapter in self._adapters:
                adapter.prepare(inference)
        try:
            times = await runner.instance.execute(batch)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("Instance %s broke its promise never to raise.", runner.instance.name)
            for inference in batch:
                inference.fail(InternalError(f"{type(error).__name__}: {error}"))
            times = ExecutionTimes()
        self._finish(runner, batch, rows, times)

    def _finish(self, runner: _Runner, batch: list[TensorInference], rows: int, times: ExecutionTimes) -> None:
        self._statistics.count_execution(rows, times, time.time_ns() // 1_000_000)
        is_decoupled = self._signature.is_decoupled
        if self._takes_ahead:
            times = self._without_wait(batch, times)
        for inference in batch:
            if inference.stage is Stage.ENDED:
                del self._running[inference]
                if inference.num_responses and not inference.is_cancelled:
                    self._count_success(inference, times)
            elif inference.stage is Stage.WAITING:
                del self._running[inference]
            elif is_decoupled:
                inference.times = times
            else:
                del self._running[inference]
                inference.fail(no_response(inference))
        self._scheduler.finish(runner.index, batch, _clock_ns())

    def _without_wait(self, batch: list[TensorInference], times: ExecutionTimes) -> ExecutionTimes:
        """A batch that was sent ahead began when the one before it ended; until then it was in a queue, whoever's."""
        before_ns, self._last_finish_ns = self._last_finish_ns, _clock_ns()
        wait_ns = min(before_ns - batch[0].started_ns, times.input_ns)
        if wait_ns <= 0:
            return times
        for inference in batch:
            inference.started_ns += wait_ns
        return ExecutionTimes(input_ns=times.input_ns - wait_ns, infer_ns=times.infer_ns, output_ns=times.output_ns)

    # -- statistics ---------------------------------------------------------------------------------------------------------------

    def _count_success(self, inference: TensorInference, times: ExecutionTimes) -> None:
        if self._signature.is_decoupled:
            infer_ns = inference.ended_ns - inference.started_ns - times.input_ns
            times = ExecutionTimes(input_ns=times.input_ns, infer_ns=max(infer_ns, times.infer_ns), output_ns=times.output_ns)
        total_ns = inference.ended_ns - inference.arrival_ns
        queue_ns = inference.started_ns - inference.arrival_ns
        self._statistics.count_success(rows=inference.batch_size, total_ns=total_ns, queue_ns=queue_ns, times=times)
        if self.latencies is not None:
            self.latencies.observe_success(total_ns, queue_ns, times.input_ns, times.infer_ns, times.output_ns)

    def _count_response(self, inference: TensorInference, response: InferResponse) -> None:
        found = self._statistics.response(inference.num_responses)
        now_ns = _clock_ns()
        passed_ns = now_ns - (inference.ended_ns or inference.started_ns)
        inference.ended_ns = now_ns
        found.compute_infer.add(passed_ns)
        if response.is_null:
            found.empty_response.add(passed_ns)
        else:
            found.compute_output.add(0)
            found.success.add(passed_ns)


async def _granted(permit: Permit) -> None:
    granted = asyncio.get_running_loop().create_future()
    permit.acquire(lambda: None if granted.done() else granted.set_result(None))
    await granted
