"""Poll control: follow the folders of a repository, and never serve one that is still being written.

A folder counts as changed once two looks at it, a while apart, found the same files and nobody has one of them open for writing. What is
loaded is looked at once more before it is swapped in (`Loader.load`). A load that failed is tried again when the folder changes again.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from trivium.repository.layout import ModelFolder, Stamp, find_models, stamp

logger = logging.getLogger(__name__)

SETTLE_S: Final = 2.0
"""Shortest time between the two looks."""
_PARTIAL: Final = re.compile(r".*\.(part|partial|tmp|crdownload|filepart)|\.[^.].*\.[^.]+\.[A-Za-z0-9]{6}")
"""Names under which programs that copy keep what is not complete; the last is rsync's, `.model.onnx.Ab12Cd`."""


class Repository(Protocol):
    async def sync(self, changed: Mapping[str, Sequence[ModelFolder]], removed: Sequence[str]) -> None: ...


Look = dict[str, tuple[list[ModelFolder], tuple[Stamp, ...]]]


class Poller:
    """Decides, from one look at the disk to the next, what has changed and is complete."""

    def __init__(self, tried: Look) -> None:
        self._tried = {name: stamps for name, (_, stamps) in tried.items()}
        self._before: dict[str, tuple[Stamp, ...]] = {}
        self.is_waiting = False
        """Something changed and is to be looked at again before it is loaded."""

    def compare(self, look: Look) -> tuple[dict[str, list[ModelFolder]], list[str]]:
        """Models to load, and models that have gone. Each is told once."""
        changed: dict[str, list[ModelFolder]] = {}
        self.is_waiting = False
        for name, (folders, stamps) in look.items():
            if stamps == self._tried.get(name):
                continue
            if stamps == self._before.get(name) and not any(
                is_being_written(folder.path, part) for folder, part in zip(folders, stamps, strict=True)
            ):
                changed[name] = folders
                self._tried[name] = stamps
            else:
                self.is_waiting = True
        removed = [name for name in self._tried if name not in look]
        for name in removed:
            del self._tried[name]
        self._before = {name: stamps for name, (_, stamps) in look.items()}
        return changed, removed


def look_at(paths: Sequence[Path]) -> Look:
    return {name: (folders, tuple(stamp(folder.path) for folder in folders)) for name, folders in find_models(paths).items()}


def is_being_written(folder: Path, stamps: Stamp) -> bool:
    """Whether a file has the name of an incomplete copy, or is open for writing as far as this machine can tell."""
    files = [name for name, *_ in stamps if not name.endswith("/")]
    return any(_is_partial(name) or _is_open_for_writing(folder / name) for name in files)


def _is_partial(name: str) -> bool:
    return _PARTIAL.fullmatch(name.rpartition("/")[2]) is not None


def _is_open_for_writing(path: Path) -> bool:
    """Linux grants a read lease on a file only while nobody has it open for writing; file systems without leases can't tell."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        # Should a writer come in this instant, the kernel sends this signal; the default, SIGIO, would end the process.
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


async def follow(repository: Repository, paths: Sequence[Path], poll_s: float, tried: Look) -> None:
    """Runs until it is cancelled. `tried`: what has been loaded, or couldn't be. Models that take long to load hold up no other one."""
    poller = Poller(tried)
    tasks: set[asyncio.Task[None]] = set()
    try:
        while True:
            await asyncio.sleep(min(poll_s, SETTLE_S) if poller.is_waiting else poll_s)
            changed, removed = await asyncio.to_thread(lambda: poller.compare(look_at(paths)))
            if changed or removed:
                logger.info("the repository changed: %s", ", ".join([*changed, *(f"{name} is gone" for name in removed)]))
                task = asyncio.create_task(repository.sync(changed, removed), name="repository-sync")
                tasks.add(task)
                task.add_done_callback(tasks.discard)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
