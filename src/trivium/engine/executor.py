"""How plans reach a runner: in the engine's own thread for devices that queue work themselves, in a second thread for the CPU."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import Protocol

from trivium.scheduling.step import StepPlan, StepResult


class StepHandle(Protocol):
    """A launched step."""

    def result(self) -> StepResult:
        """Waits until the step is done. Raises what the step raised: the engine can't go on then."""
        ...


class StepRunner(Protocol):
    """What runs a plan; `engine.runner.Runner`, or a script in tests."""

    def launch(self, plan: StepPlan) -> StepHandle:
        """Enqueue the step on the device. Plans must be launched in the order they were scheduled."""
        ...


class Executor(Protocol):
    def submit(self, plan: StepPlan) -> StepHandle: ...

    def close(self) -> None: ...


class InlineExecutor:
    """Launches at once: the device's stream is the queue."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner

    def submit(self, plan: StepPlan) -> StepHandle:
        return self._runner.launch(plan)

    def close(self) -> None:
        pass


class ThreadExecutor:
    """Runs steps one after the other in a thread of its own, so that the host's work overlaps with a CPU's forward pass.

    The compute kernels release the interpreter lock; what is left of Python in them is small beside the step.
    """

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._plans: queue.SimpleQueue[tuple[StepPlan, Future[StepResult]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="trivium-steps", daemon=True)
        self._thread.start()

    def submit(self, plan: StepPlan) -> StepHandle:
        future: Future[StepResult] = Future()
        self._plans.put((plan, future))
        return future

    def close(self) -> None:
        self._plans.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._plans.get()) is not None:
            plan, future = item
            try:
                future.set_result(self._runner.launch(plan).result())
            except BaseException as error:  # handed to whoever waits for the step
                future.set_exception(error)


class PlanSink(Protocol):
    """Whoever else must run the same plans; `engine.ranks.RankProcesses`."""

    def send(self, plan: StepPlan) -> None: ...

    def close(self) -> None: ...


class BroadcastExecutor:
    """Sends each plan to the other ranks before this one runs it."""

    def __init__(self, own: Executor, others: PlanSink) -> None:
        self._own = own
        self._others = others

    def submit(self, plan: StepPlan) -> StepHandle:
        self._others.send(plan)
        return self._own.submit(plan)

    def close(self) -> None:
        self._own.close()
        self._others.close()
