"""Runs the ranks of a tensor-parallel set, each as a process of `helpers_rank.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parents[3] / "src"


def run_ranks(size: int, store: Path, cases: Path) -> None:
    """Until all have written the logits of every case in `cases`; an error of one is an assertion's."""
    command = [sys.executable, str(Path(__file__).parent / "helpers_rank.py")]
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*command, str(rank), str(size), str(store), str(cases)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=100)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
