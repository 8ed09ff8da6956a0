"""`trivium doctor`: what is installed here, which devices there are and which fast paths are on."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, cast

import click

from trivium import __version__, env
from trivium.cli.terminal import format_bytes
from trivium.sources.packaged import INSTALL_COMMAND, packaged_model

LIBRARIES: Final = (
    "torch",
    "tokenizers",
    "msgspec",
    "pyzmq",
    "starlette",
    "uvicorn",
    "uvloop",
    "httptools",
    "huggingface-hub",
    "triton",
)
REPORT_TIMEOUT_S: Final = 120


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _torch_report() -> dict[str, Any]:
    """The report of a process that imports torch; `{"error": …}` when it fails."""
    try:
        process = subprocess.run(
            [sys.executable, "-m", "trivium.engine.report"], capture_output=True, text=True, timeout=REPORT_TIMEOUT_S, check=False, env=env.child()
        )
    except subprocess.TimeoutExpired:
        return {"error": f"torch did not answer within {REPORT_TIMEOUT_S} s"}
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        return {"error": lines[-1]}
    return cast(dict[str, Any], json.loads(process.stdout.strip().splitlines()[-1]))


def _memory() -> int | None:
    """Total memory of this machine in bytes, where /proc says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), None)


def collect() -> dict[str, Any]:
    """Everything, as plain data."""
    model = packaged_model()
    return {
        "trivium": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory(),
        "compiler": shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"),
        "libraries": _versions(),
        "device": _torch_report(),
        "packaged_model": str(model) if model is not None else None,
        "cache": str(env.cache_dir()),
        "environment": {
            variable.name: "***" if variable.secret else env.get(variable.name) for variable in env.VARIABLES if env.get(variable.name) is not None
        },
        "settings": {name: "***" if "KEY" in name or "TOKEN" in name else value for name, value in env.settings().items()},
    }


def problems(facts: dict[str, Any]) -> list[str]:
    """What would keep a model from being served, each with its remedy."""
    found: list[str] = []
    if "error" in facts["device"]:
        found.append(f"torch does not work: {facts['device']['error']}")
    for name in ("tokenizers", "msgspec", "pyzmq", "starlette", "uvicorn"):
        if facts["libraries"][name] is None:
            found.append(f"{name} is not installed: pip install {name}")
    if facts["compiler"] is None:
        found.append("no C++ compiler, so that the CPU kernels can't be built and a CPU is several times slower. On Debian: apt-get install -y g++")
    return found


def _device_lines(device: dict[str, Any]) -> list[tuple[str, str]]:
    if "error" in device:
        return [("torch", device["error"])]
    lines = [("torch", f"{device['torch']}, CPU {device['cpu_capability']}, {device['threads']} thread(s)")]
    lines += [("GPU", f"{gpu['name']}, {format_bytes(gpu['memory_bytes'])}, capability {gpu['capability']}") for gpu in device["gpus"]] or [
        ("GPU", "none")
    ]
    for kind in ("cpu", "cuda"):
        paths = device[f"{kind}_fast_paths"]
        if paths is not None:
            text = paths.get("error") or f"attention {paths['attention']}; fast ops: {', '.join(paths['ops']) or 'none'}"
            lines.append((f"{kind} paths", text))
    extension = device["cpu_extension"]
    lines.append(("CPU extension", ", ".join(f"{name}: {_word(value)}" for name, value in extension.items())))
    return lines


def _word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def render(facts: dict[str, Any]) -> str:
    libraries = ", ".join(f"{name} {number}" for name, number in facts["libraries"].items() if number is not None)
    memory = format_bytes(facts["memory_bytes"]) if facts["memory_bytes"] else "unknown"
    lines = [
        ("trivium", f"{facts['trivium']}, Python {facts['python']}, {facts['platform']}"),
        ("machine", f"{facts['cpus']} CPU(s), {memory} of memory"),
        *_device_lines(facts["device"]),
        ("compiler", facts["compiler"] or "none"),
        ("libraries", libraries),
        ("model", facts["packaged_model"] or f"none packaged; {INSTALL_COMMAND}"),
        ("cache", facts["cache"]),
        *[("environment", f"{name}={value}") for name, value in {**facts["environment"], **facts["settings"]}.items()],
    ]
    text = "\n".join(f"{name:<15}{value}" for name, value in lines)
    found = problems(facts)
    return text + "\n\n" + ("\n".join(f"problem: {problem}" for problem in found) if found else "No problem found.")


@click.command(name="doctor", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(*, as_json: bool) -> int:
    """Versions, devices and which fast paths are on. Exit code 1 when something needed is missing or broken."""
    facts = collect()
    click.echo(json.dumps(facts, indent=2) if as_json else render(facts))
    return 1 if problems(facts) else 0
