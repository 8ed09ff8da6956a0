"""A process that can be lost: one JSON line in, one JSON line out, for work on what users wrote."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Final, cast

GRACE_SECONDS: Final = 1.0


class WorkerProcess:
    """Started when first asked, again when it was lost. Thread-safe; one request at a time."""

    def __init__(self, file: Path, arguments: list[str]) -> None:
        self._file = file
        self._arguments = arguments
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, str]:
        """The answer, or `{"error": "limit", "message": …}` where there is none. Raises `ValueError`, `TypeError` or `RecursionError` for what is
        no JSON."""
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = b""
            if answer:
                return cast("dict[str, str]", json.loads(answer))
            self._process = None
            return {"error": "limit", "message": _how_it_ended(process)}

    def start(self) -> None:
        """Begin to start the process, so that the next `ask` waits less."""
        with self._lock:
            self._running()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            # -P keeps the file's folder out of the module path; a group of its own keeps it out of reach of the terminal's Ctrl-C.
            command = [sys.executable, "-P", str(self._file), *self._arguments]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0)
            weakref.finalize(self, _end, self._process)
        return self._process

    def close(self) -> None:
        """An `ask` under way ends without an answer; a later one starts another process."""
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            if self._process is not None:
                _end(self._process)
                self._process = None


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    """A process that let go of its pipes is about to end; one that doesn't is made to."""
    try:
        code = process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    return "out of time" if code == -signal.SIGPROF else f"its process ended with {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End of its input ends it, unless it is busy: then it is killed."""
    process.kill()
    process.communicate()
