"""A server process for a benchmark: started, waited for, weighed, ended with all its children."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def process_tree(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def resident_bytes(pid: int) -> int:
    """Proportional set size of the process and all below it: shared pages count once."""
    total = 0
    for each in process_tree(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def cpu_seconds(pid: int) -> float:
    total = 0
    for each in process_tree(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def idle_share(pid: int, seconds: float = 10.0) -> float:
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class Server:
    """A server process that is started, waited for and ended with all its children."""

    def __init__(self, command: str, model: str, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        begin = time.perf_counter()
        with log.open("w") as out:
            words = shlex.split(command.format(model=model, port=self.port))
            self.process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        while not answers(f"{self.url}/v1/models") or not self.models():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended: see {log}")
            time.sleep(0.05)
        self.start_up_s = time.perf_counter() - begin

    def models(self) -> list[str]:
        with urllib.request.urlopen(f"{self.url}/v1/models") as reply:
            return [entry["id"] for entry in json.load(reply)["data"]]

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
