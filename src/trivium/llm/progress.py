"""The progress bar of a call."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_COLUMNS: Final = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
_TITLE: Final = "Processed prompts"


@contextmanager
def progress_bar(total: int, wanted: bool | Callable[..., Any]) -> Generator[Callable[[int], object]]:
    """Yields a function that says how many more are done. `wanted` may be a class to use instead of our bar: `tqdm`, or one with its interface."""
    if callable(wanted):
        bar = wanted(total=total, desc=_TITLE)
        try:
            yield bar.update
        finally:
            bar.close()
        return
    with Progress(*_COLUMNS, console=Console(stderr=True), disable=not wanted) as progress:
        task = progress.add_task(_TITLE, total=total)
        yield lambda count: progress.advance(task, count)
