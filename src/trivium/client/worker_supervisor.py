"""`WorkerSupervisor`: one worker process, started, watched and started again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from trivium.client.worker_connection import WorkerConnection
from trivium.client.worker_context import WorkerSpec
from trivium.client.worker_host import WorkerHost
from trivium.client.worker_instance import WorkerInstance
from trivium.client.worker_plan import InstancePlan, execution_limit_s, interpreter_of
from trivium.client.worker_process import TERMINATE_TIMEOUT_S, WorkerProcess
from trivium.errors import EngineDead, ModelLoadError, TriviumError
from trivium.metrics.catalogue import WORKER_RESTARTS
from trivium.protocol.config_json import config_to_json
from trivium.protocol.worker_messages import InstanceSetup, Loaded, Setup, Shutdown

logger = logging.getLogger(__name__)

FIRST_RESTART_DELAY_S: Final = 0.05
MAX_RESTART_DELAY_S: Final = 1.0
"""Of a process that had been ready: a request that kills it whenever it comes must not keep others waiting for long."""
MAX_FAILED_START_DELAY_S: Final = 8.0
MAX_FAILED_STARTS: Final = 5
"""Restarts in a row that never became ready before the instances are given up."""
STABLE_S: Final = 10.0
"""Who lives longer is started again at once."""
LOST_TIMEOUT_S: Final = 0.5
"""How long a process that has closed its connection may take to end by itself."""


class WorkerSupervisor:
    """One process and its instances, over as many lives as it takes."""

    def __init__(self, spec: WorkerSpec, plans: Sequence[InstancePlan], host: WorkerHost) -> None:
        config = spec.config
        self.pid = 0
        self.num_restarts = 0
        self.num_closed = 0
        """Instances that are not wanted any more."""
        self._spec = spec
        self._plans = plans
        self._config_json = config_to_json(config)
        self._interpreter = interpreter_of(config, spec.context.model_path)
        self._auto_complete = spec.context.auto_complete
        self._process: WorkerProcess | None = None
        self._is_closing = False
        self._became_ready = False
        self._task: asyncio.Task[None] | None = None
        self._closing_event = asyncio.Event()
        self._first_ready: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        self.instances = [
            WorkerInstance(
                plan.name,
                config.name,
                spec.version,
                host,
                is_interactive=config.backend == "python",
                execution_limit_s=execution_limit_s(config),
            )
            for plan in plans
        ]
        for instance in self.instances:
            instance.on_hang = self._kill

    def start(self) -> asyncio.Future[Loaded]:
        """Resolves when its instances can run, with what the first one's load told; or to the `ModelLoadError`."""
        self._task = asyncio.create_task(self._supervise(), name=f"worker-{self._spec.config.name}")
        return self._first_ready

    async def close(self) -> None:
        self._is_closing = True
        self._closing_event.set()
        if self._task is not None:
            await self._task
        if not self._first_ready.done():
            self._first_ready.cancel()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    # -- lives of the process -----------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        num_failed, delay_s = 0, FIRST_RESTART_DELAY_S
        error: TriviumError = EngineDead("The instance was stopped.")
        while not self._is_closing:
            begin = time.monotonic()
            try:
                error = await self._live()
            except OSError as failure:
                error = ModelLoadError(f"the process of model '{self._spec.config.name}' could not be started: {failure}")
            if self._is_closing:
                break
            if not self._first_ready.done():
                # A first start that failed is the operator's to mend.
                self._first_ready.set_exception(error)
                break
            logger.error("model '%s': %s", self._spec.config.name, error.message)
            if self._became_ready:
                is_stable = time.monotonic() - begin > STABLE_S
                num_failed, delay_s = 0, FIRST_RESTART_DELAY_S if is_stable else min(2 * delay_s, MAX_RESTART_DELAY_S)
            else:
                num_failed, delay_s = num_failed + 1, min(2 * delay_s, MAX_FAILED_START_DELAY_S)
                if num_failed >= MAX_FAILED_STARTS:
                    logger.error("model '%s': its process could not be started %d times in a row; giving up", self._spec.config.name, num_failed)
                    break
            try:
                await asyncio.wait_for(self._closing_event.wait(), delay_s)
            except TimeoutError:
                self.num_restarts += 1
                self._spec.context.registry.counter(WORKER_RESTARTS, self._spec.config.name, str(self._spec.version)).inc()
        for instance in self.instances:
            instance.give_up(error)

    async def _live(self) -> TriviumError:
        """One life of the process; what it ended with."""
        self._became_ready = False
        lost = asyncio.Event()
        connections: list[WorkerConnection] = []
        try:
            connections.extend(WorkerConnection(instance.on_message, partial(_lose, instance, lost)) for instance in self.instances)
            process = self._process = await asyncio.to_thread(WorkerProcess, connections, self._interpreter)
        except OSError:
            for connection in connections:
                connection.close()
            raise
        self.pid = process.pid
        for instance, connection in zip(self.instances, connections, strict=True):
            await connection.open()
            instance.attach(connection)
        connections[0].send(self._setup())
        waiting = [instance.loaded for instance in self.instances if instance.loaded is not None]
        ends = [asyncio.create_task(event.wait()) for event in (lost, self._closing_event)]
        failure = await self._wait_until_loaded(waiting, ends)
        if failure is None:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        exit_code = await self._end(process, connections, is_lost=lost.is_set())
        return self._after_end(exit_code, failure)

    async def _wait_until_loaded(self, waiting: Sequence[asyncio.Future[Loaded]], ends: Sequence[asyncio.Task[bool]]) -> TriviumError | None:
        """None once the instances run, or when the process ended or is to end; else what loading failed with."""
        loading = asyncio.create_task(asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION))
        await asyncio.wait([loading, *ends], return_when=asyncio.FIRST_COMPLETED)
        loading.cancel()
        failure = next((error for future in waiting if future.done() and (error := future.exception()) is not None), None)
        if failure is not None:
            return failure if isinstance(failure, TriviumError) else ModelLoadError(str(failure))
        if not all(future.done() for future in waiting):
            return None
        loaded = [future.result() for future in waiting]
        # A process started later gets what was found the first time.
        self._config_json, self._auto_complete = loaded[0].config_json or self._config_json, False
        self._became_ready = True
        for instance in self.instances:
            instance.resume()
        if not self._first_ready.done():
            self._first_ready.set_result(loaded[0])
        return None

    def _setup(self) -> Setup:
        spec, context = self._spec, self._spec.context
        backend = spec.config.backend
        settings = {**context.backend_settings.get("", {}), **context.backend_settings.get(backend, {})}
        return Setup(
            model=spec.config.name,
            version=spec.version,
            backend=backend,
            config_json=self._config_json,
            version_path=str(spec.path.resolve()),
            model_path=str(context.model_path.resolve()),
            instances=[InstanceSetup(name=plan.name, kind=plan.kind, device=plan.device) for plan in self._plans],
            auto_complete=self._auto_complete,
            default_max_batch_size=context.default_max_batch_size,
            settings=settings,
            allow_code=context.allow_python_models,
        )

    async def _end(self, process: WorkerProcess, connections: Sequence[WorkerConnection], *, is_lost: bool) -> int:
        """Its exit code. One that is lost is ending already; one that runs is asked to; one that loads is killed."""
        if is_lost:
            timeout_s = LOST_TIMEOUT_S
        elif self._became_ready:
            timeout_s = TERMINATE_TIMEOUT_S
            for connection in connections:
                connection.send(Shutdown())
        else:
            timeout_s = 0.0
        exit_code = await asyncio.to_thread(process.wait, timeout_s)
        self._process, self.pid = None, 0
        for connection in connections:
            connection.close()
        return exit_code

    def _after_end(self, exit_code: int, failure: TriviumError | None) -> TriviumError:
        how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        what = "was stopped" if self._is_closing else f"ended unexpectedly ({how})"
        for instance in self.instances:
            instance.on_lost(EngineDead(f"The process of model instance '{instance.name}' {what}."))
        if failure is None and not self._first_ready.done():
            return ModelLoadError(f"the process that loads model '{self._spec.config.name}' {what}")
        return failure or EngineDead(f"The process of model instance '{self.instances[0].name}' {what}.")


def _lose(instance: WorkerInstance, lost: asyncio.Event) -> None:
    instance.suspend()
    lost.set()
