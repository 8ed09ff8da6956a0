"""A server process around the scripted engine, and raw HTTP for what no client library would send."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import openai

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "serve_fake.py"


class ServerProcess:
    """Started when made; `stop` ends it."""

    def __init__(self, **options: Any) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, "-W", "error", str(SCRIPT), json.dumps(options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.log: list[str] = []
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read_log, args=(self.process.stderr,), daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self._reader.join()
            raise AssertionError("the server did not start:\n" + "".join(self.log))
        self.port = int(line)
        self.url = f"http://127.0.0.1:{self.port}"

    def _read_log(self, stream: Any) -> None:
        self.log.extend(stream)

    def http(self, **kwargs: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, **kwargs)

    def openai(self, **kwargs: Any) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "unused", "max_retries": 0, "timeout": 20, **kwargs})

    def metrics(self) -> dict[str, float]:
        """Every sample by its name and labels as Prometheus writes them."""
        text = httpx.get(f"{self.url}/metrics", timeout=20).text
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and not line.startswith("#")}

    def raw(self, data: bytes = b"", *, timeout_s: float = 10) -> RawConnection:
        connection = RawConnection(self.port, timeout_s)
        if data:
            connection.socket.sendall(data)
        return connection

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 20) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(5)
        return code

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class RawConnection:
    def __init__(self, port: int, timeout_s: float) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_until_closed(self) -> bytes:
        received = b""
        try:
            while chunk := self.socket.recv(65536):
                received += chunk
        except ConnectionResetError:
            pass
        return received

    def read_until(self, mark: bytes) -> bytes:
        received = b""
        while mark not in received:
            chunk = self.socket.recv(65536)
            assert chunk, f"closed before {mark!r}: {received!r}"
            received += chunk
        return received


def post_bytes(path: str, body: dict[str, Any]) -> bytes:
    """A request as bytes on the wire."""
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(data), data)


def events(text: str) -> list[Any]:
    """Payloads of a server-sent event stream, `[DONE]` as it is."""
    found: list[Any] = []
    for block in text.split("\n\n"):
        if block:
            assert block.startswith("data: "), block
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found
