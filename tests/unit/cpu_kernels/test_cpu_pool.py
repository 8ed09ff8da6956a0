"""The kernels' threads under stress, with the compiler's race detector where it runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trivium.ops.cpu import build, library

pytestmark = pytest.mark.skipif(library.kernels() is None, reason="no C++ compiler")

STRESS = Path(__file__).parent / "pool_stress.cpp"


def compile_stress(tmp_path: Path, *flags: str) -> Path:
    program = tmp_path / "stress"
    command = [build.find_compiler(), "-std=c++20", "-O1", "-g", "-pthread", *flags, f"-I{build.SOURCES}", str(STRESS), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and flags:
        pytest.skip(f"this compiler can't: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr
    return program


def test_jobs_from_several_callers_are_all_done_right(tmp_path: Path) -> None:
    done = subprocess.run([compile_stress(tmp_path), "5000"], timeout=100, check=False)
    assert done.returncode == 0


def test_there_are_no_races(tmp_path: Path) -> None:
    program = compile_stress(tmp_path, "-fsanitize=thread")
    # Without randomized addresses: older runtimes of the detector can't map their memory otherwise.
    done = subprocess.run(["setarch", "-R", program, "500"], capture_output=True, text=True, timeout=100, check=False)
    if "FATAL: ThreadSanitizer" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("the race detector can't run here")
    assert done.returncode == 0, done.stderr[-4000:]
