"""Starts worker processes: one `python -m trivium.worker` with the descriptors of its instances."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trivium
from trivium import env
from trivium.client.worker_connection import WorkerConnection

TERMINATE_TIMEOUT_S = 10.0

ENVIRONMENT: Final = {"GOMP_SPINCOUNT": "1000", "HF_TOKEN": None}
"""OpenMP threads sleep when they have nothing to do. A model's code has no business with the hub's token, nor with the server's settings,
which hold its keys."""


_BOOTSTRAP: Final = """
import importlib.util, sys
folder = sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("trivium", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["trivium"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from trivium.worker.host import main
main()
"""
"""In another Python environment: takes this package from where it lies, and nothing else from the server's environment."""


class WorkerProcess:
    """The worker takes the end of its standard input as the death of its parent: however this process ends, the worker doesn't outlive it."""

    def __init__(self, connections: Sequence[WorkerConnection], interpreter: Path | None = None) -> None:
        """`interpreter`: of another environment, which needs msgspec and numpy. Raises `OSError` if it can't be started."""
        start = [sys.executable, "-P", "-m", "trivium.worker"]
        if interpreter is not None:
            start = [str(interpreter), "-P", "-c", _BOOTSTRAP, str(Path(trivium.__file__).parent)]
        arguments = [",".join(map(str, connection.descriptors)) for connection in connections]
        self._process = subprocess.Popen(
            [*start, *arguments],
            stdin=subprocess.PIPE,
            env=env.child({**ENVIRONMENT, **dict.fromkeys(env.settings())}),
            pass_fds=[descriptor for connection in connections for descriptor in connection.descriptors],
            start_new_session=True,  # Ctrl-C is for the server, which drains before it stops its workers
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """At once, whatever it does."""
        self._process.kill()

    def wait(self, timeout_s: float) -> int:
        """Its exit code once it has ended, negative for a signal. It is killed after `timeout_s`."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
