"""`WorkerPool`: the worker processes of one version of a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from trivium.client.worker_context import WorkerSpec
from trivium.client.worker_host import WorkerHost
from trivium.client.worker_plan import plan_processes
from trivium.client.worker_supervisor import WorkerSupervisor
from trivium.errors import ModelLoadError, TriviumError
from trivium.execution import ModelInstance
from trivium.protocol.config_json import config_from_json
from trivium.protocol.model_config import ModelConfig

__all__ = ["WorkerPool", "WorkerSpec"]


class WorkerPool:
    """`completion`: the configuration with what the back end found in the model's files; None if it was not to look."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.completion: ModelConfig | None = None
        self._spec = spec
        self._host = WorkerHost(spec.context)
        self._supervisors = [WorkerSupervisor(spec, plans, self._host) for plans in plan_processes(spec.config)]
        for supervisor in self._supervisors:
            for instance in supervisor.instances:
                instance.on_close = partial(self._close_instance, supervisor)

    @classmethod
    async def start(cls, spec: WorkerSpec) -> WorkerPool:
        """Start every process and wait until its instances can run. Raises `ModelLoadError`; cancelling it stops what was started."""
        if spec.config.backend == "python" and not spec.context.allow_python_models:
            raise ModelLoadError(f"model '{spec.config.name}' runs code of the repository, which needs --allow-python-models")
        pool = cls(spec)
        try:
            loaded = await asyncio.gather(*(supervisor.start() for supervisor in pool._supervisors))
            if spec.context.auto_complete and loaded[0].config_json:
                pool.completion = _read_completion(loaded[0].config_json)
        except BaseException:
            await pool.close()
            raise
        return pool

    @property
    def instances(self) -> Sequence[ModelInstance]:
        return [instance for supervisor in self._supervisors for instance in supervisor.instances]

    @property
    def process_ids(self) -> list[int]:
        """Of the processes that run now."""
        return [supervisor.pid for supervisor in self._supervisors if supervisor.pid]

    @property
    def num_restarts(self) -> int:
        return sum(supervisor.num_restarts for supervisor in self._supervisors)

    async def close(self) -> None:
        """End every process, gently first. Safe to call twice."""
        await asyncio.gather(*(supervisor.close() for supervisor in self._supervisors))
        self._host.close()

    async def _close_instance(self, supervisor: WorkerSupervisor) -> None:
        """The last one of a process ends it, the last one of all the pool."""
        supervisor.num_closed += 1
        if supervisor.num_closed == len(supervisor.instances):
            await supervisor.close()
        if all(found.num_closed == len(found.instances) for found in self._supervisors):
            self._host.close()


def _read_completion(config_json: str) -> ModelConfig:
    try:
        return config_from_json(config_json)
    except TriviumError as error:
        raise ModelLoadError(f"auto_complete_config made a wrong configuration: {error.message}") from None
