"""Starts an engine process and owns what it leaves behind: a private socket folder, its pipe, its exit."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

import msgspec

from trivium import env
from trivium.config import EngineConfig

TERMINATE_TIMEOUT_S = 5.0

ENVIRONMENT: Final = {"GOMP_SPINCOUNT": "1000"}
"""torch's OpenMP threads sleep when they have nothing to do, in place of spinning for milliseconds on cores that the CPU kernels' threads need."""


class EngineProcess:
    """One `python -m trivium.engine`.

    The engine reads its config from standard input and takes the end of that pipe as the death of its parent: whatever way this process
    ends, the engine does not outlive it. The socket lies in a folder only this user can enter.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="trivium-"))
        self.address = f"ipc://{self.folder / 'engine.sock'}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trivium.engine", self.address],
            stdin=subprocess.PIPE,
            env=env.child(ENVIRONMENT),
            start_new_session=True,  # Ctrl-C is for the server, which drains before it stops the engine
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once; whoever watches it sees the exit
            self._process.stdin.write(msgspec.json.encode(config) + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def watch(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        """Resolves to the exit code the moment the process ends."""
        exited: asyncio.Future[int] = loop.create_future()

        def resolve(code: int) -> None:
            if not exited.done():
                exited.set_result(code)

        def wait() -> None:
            code = self._process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever would want to know
                loop.call_soon_threadsafe(resolve, code)

        threading.Thread(target=wait, name="engine-watch", daemon=True).start()
        return exited

    def kill(self) -> None:
        """At once, whatever it does; also when it is stopped."""
        self._process.kill()

    def stop(self) -> None:
        """End the process, gently first. Safe to call twice."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(TERMINATE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
