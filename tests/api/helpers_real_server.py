"""`trivium serve` as a user starts it: the packaged model, a real engine process, a real socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import openai

ROOT = Path(__file__).parents[2]
MODEL = "SmolLM2-135M-Instruct"
START_TIMEOUT_S = 90


class RealServer:
    """Ready when made. `stop` ends it and everything it started."""

    def __init__(self, *flags: str, command: str = "serve") -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._is_told = False
        self.url = f"http://127.0.0.1:{self.port}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        line = [sys.executable, "-m", "trivium", command, "--port", str(self.port), *flags]
        # A pipe that nobody reads would fill up and stop the server.
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115
        self.process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=self._log, env=environment)
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> float:
        """Seconds it took."""
        begin = time.monotonic()
        while time.monotonic() - begin < timeout_s:
            if self.process.poll() is not None:
                raise AssertionError(f"exit code {self.process.returncode}: {self.log()}")
            if self.readiness() == 200:
                return time.monotonic() - begin
            time.sleep(0.05)
        raise AssertionError(f"not ready after {timeout_s} s")

    def readiness(self) -> int:
        """Status of /readyz, 0 when nobody listens yet."""
        try:
            return httpx.get(f"{self.url}/readyz", timeout=20).status_code
        except httpx.TransportError:
            return 0

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def openai(self, **kwargs: Any) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "unused", "max_retries": 0, "timeout": 60, **kwargs})

    def metrics(self) -> dict[str, float]:
        text = httpx.get(f"{self.url}/metrics", timeout=20).text
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and not line.startswith("#")}

    def gauge(self, name: str) -> float:
        return sum(value for key, value in self.metrics().items() if key.split("{")[0] == name)

    def engine_pid(self) -> int:
        """The one child that runs `trivium.engine`."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        for pid in {int(word) for listing in children for word in listing.read_text().split()}:
            if b"trivium.engine" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError("no engine process")

    def terminate(self) -> None:
        """Once: a second signal means "at once", and cuts off what is still being answered."""
        if not self._is_told and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._is_told = True

    def stop(self) -> int:
        """Exit code after SIGTERM."""
        self.terminate()
        try:
            code = self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self.last_log = self.log()
            self._log.close()
        return code
