"""GPUs of this machine, told without loading CUDA."""

from __future__ import annotations

import re
from pathlib import Path

from trivium import env


def visible_gpus() -> tuple[int, ...]:
    """Indices that instance groups may name: NVIDIA's device files, as many as `CUDA_VISIBLE_DEVICES` leaves."""
    found = [path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    visible = env.get("CUDA_VISIBLE_DEVICES")
    count = len(found) if visible is None else min(len(found), len([index for index in visible.split(",") if index.strip() not in ("", "-1")]))
    return tuple(range(count))
