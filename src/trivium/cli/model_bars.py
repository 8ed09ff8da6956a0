"""Progress of several models that load side by side: a bar for each on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

logger = logging.getLogger("trivium.progress")


class ModelBars:
    """A context manager around the start of a server; what loads later is only logged."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._stages: dict[str, str] = {}

    def __enter__(self) -> ModelBars:
        if self._console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description:<24}"), BarColumn(), TextColumn("{task.fields[stage]}"), TimeElapsedColumn())
            self._bars = Progress(*columns, console=self._console)
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    @contextmanager
    def loading(self, model: str, version: int) -> Generator[None, None, None]:
        """Around the loading of one version."""
        self.update(model, f"loading version {version}", 0, 0)
        try:
            yield
        except BaseException:
            self._end(model, "failed")
            raise
        self._end(model, "ready")

    def update(self, model: str, stage: str, done: int, total: int) -> None:
        """`done` of `total`, 0 when unknown. May be called from any thread."""
        bars = self._bars
        if bars is None:
            if self._stages.get(model) != stage:
                self._stages[model] = stage
                logger.info("%s", stage, extra={"model": model})
            return
        if model not in self._tasks:
            self._tasks[model] = bars.add_task(model, total=None, stage=stage)
        bars.update(self._tasks[model], completed=done, total=total or None, stage=stage)

    def _end(self, model: str, stage: str) -> None:
        self._stages.pop(model, None)
        if self._bars is not None:
            self._bars.update(self._tasks[model], completed=1, total=1, stage=stage)
