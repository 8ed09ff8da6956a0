"""What the terminal shows while something long runs: bars for people, one line each ten per cent elsewhere. Always standard error."""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

logger = logging.getLogger("trivium.progress")

LINE_STEP: Final = 10
"""Per cent between two lines where there is no terminal."""


def format_bytes(count: int) -> str:
    """Binary units with one decimal: 1.5 GiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_amount(done: int, total: int, unit: str) -> str:
    if unit == "bytes":
        return f"{format_bytes(done)} of {format_bytes(total)}" if total else format_bytes(done)
    return f"{done} of {total} {unit}".strip() if total else f"{done} {unit}".strip()


class _AmountColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        if task.total is None and not task.completed:
            return Text("")
        return Text(format_amount(int(task.completed), int(task.total or 0), str(task.fields["unit"])))


class Steps:
    """Long steps by name, each with how much of it is done. A context manager; `update` may be called from any thread."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars = self._make_bars() if self._console.is_terminal else None
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._shown: dict[str, int] = {}

    def _make_bars(self) -> Progress:
        columns = (SpinnerColumn(), TextColumn("{task.description:<28}"), BarColumn(), _AmountColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self._console)

    def __enter__(self) -> Steps:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._bars is not None:
            for name, task in self._tasks.items():
                if kind is None:
                    self._finish_bar(name, task)
            self._bars.stop()

    def update(self, name: str, done: int, total: int, unit: str = "") -> None:
        """`done` of `total` units of step `name`; `total` 0 when unknown. A new name ends the step before it."""
        if self._bars is None:
            self._log(name, done, total, unit)
            return
        if name not in self._tasks:
            for earlier, task in self._tasks.items():
                self._finish_bar(earlier, task)
            self._tasks[name] = self._bars.add_task(name, total=total or None, unit=unit)
        self._bars.update(self._tasks[name], completed=done, total=total or None)

    def _finish_bar(self, name: str, task_id: TaskID) -> None:
        assert self._bars is not None
        task = next(task for task in self._bars.tasks if task.id == task_id)
        if not task.finished:
            total = task.total or task.completed or 1
            self._bars.update(task_id, completed=total, total=total)

    def _log(self, name: str, done: int, total: int, unit: str) -> None:
        is_new = name not in self._started
        self._started.setdefault(name, time.monotonic())
        step = min(100, 100 * done // total) // LINE_STEP if total else -1
        if not is_new and step <= self._shown[name]:
            return
        self._shown[name] = step
        elapsed = time.monotonic() - self._started[name]
        if total:
            logger.info("%s: %d %% (%s, %.1f s)", name, min(100, 100 * done // total), format_amount(done, total, unit), elapsed)
        else:
            logger.info("%s", name)
