"""Compiles the kernels with the system's C++ compiler, at install (`python -m trivium.ops.cpu.build`) or at first use, once per CPU and source.

The result lies in Trivium's cache folder under a name that is a hash of everything it depends on. Two processes that need it at once don't
both build it: the second waits for the first. A build that was cut off leaves only a temporary file.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trivium import env

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "kernels"
MAIN = SOURCES / "kernels.cpp"
COMPILERS = ("g++", "c++")
FLAGS = (
    *("-O3", "-march=native", "-std=c++20", "-pthread", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"),
    *("-Wall", "-Wextra", "-Wno-psabi", "-Wno-maybe-uninitialized"),
)
TIMEOUT_S = 300


class BuildError(Exception):
    """The library can't be built here; the message says why and what would help."""


def build(*, extra_flags: tuple[str, ...] = ()) -> Path:
    """Path of the library, built now if it isn't there. Raises `BuildError`."""
    compiler = find_compiler()
    folder = _private_folder(env.cache_dir() / "kernels")
    target = folder / f"trivium-cpu-{_key(compiler, extra_flags)}.so"
    if target.is_file():
        return target
    with _locked(folder / "lock"):
        if not target.is_file():  # else the process that held the lock has built it
            _compile(compiler, extra_flags, target)
    return target


def find_compiler() -> str:
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise BuildError("there is no C++ compiler; install one (Debian: apt-get install g++)")


def _key(compiler: str, extra_flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=TIMEOUT_S, check=False).stdout
    digest.update(version)
    digest.update(" ".join((*FLAGS, *extra_flags, platform.machine(), *_cpu_flags())).encode())
    return digest.hexdigest()[:20]


def _cpu_flags() -> list[str]:
    """What -march=native looks at: model and instruction sets."""
    kept = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    lines: list[str] = []
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if not line.strip():
            break
        if line.split(":")[0].strip() in kept:
            lines.append(line)
    return lines


def _compile(compiler: str, extra_flags: tuple[str, ...], target: Path) -> None:
    log.info("Compiling the CPU kernels for this machine (once, some seconds)")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / "kernels.so"
        _run([compiler, *FLAGS, *extra_flags, str(MAIN), "-o", str(built)])
        os.replace(built, target)
    log.info("Compiled the CPU kernels in %.1f s", time.monotonic() - started)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the compiler didn't finish: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"the compiler failed with exit code {done.returncode}: {done.stderr.strip()[-2000:]}")


def _private_folder(path: Path) -> Path:
    """A folder that only this user can write to: what lies in it is loaded and run."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = path.stat()
    except OSError as error:
        raise BuildError(f"the cache folder {path} can't be used: {error}; set TRIVIUM_CACHE to one that can") from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise BuildError(f"the cache folder {path} can be written by others than its owner; set TRIVIUM_CACHE to a private one")
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # closing unlocks


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        log.info("CPU kernels: %s", build())
    except BuildError as error:
        log.warning("The CPU kernels were not built: %s. Models run on plain torch, more slowly.", error)
        sys.exit(1)
