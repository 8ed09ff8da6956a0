"""What torch, its devices and the fast paths are like here: `python -m trivium.engine.report` prints it as one line of JSON.

`trivium doctor` runs this as a process, since the command itself never imports torch.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import torch

from trivium.ops.attention import resolve_attention_backend
from trivium.ops.dispatch import load_fast_paths


def _gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {"name": properties.name, "memory_bytes": properties.total_memory, "capability": f"{properties.major}.{properties.minor}"}


def _fast_paths(device_type: str) -> dict[str, Any]:
    try:
        names = sorted(load_fast_paths(device_type))
        return {"ops": names, "attention": resolve_attention_backend("auto", torch.device(device_type))}
    except Exception as error:
        # A broken extension is what the doctor is for: it is reported, not raised.
        return {"error": f"{type(error).__name__}: {error}"}


def _cpu_extension() -> dict[str, Any]:
    """What `trivium.ops.cpu` says about its compiled library, if it says anything."""
    try:
        module = importlib.import_module("trivium.ops.cpu")
    except ImportError as error:
        return {"available": False, "reason": str(error)}
    describe = getattr(module, "describe", None)
    return describe() if describe is not None else {"available": bool(module.fast_paths())}


def collect() -> dict[str, Any]:
    has_cuda = torch.cuda.is_available()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": [_gpu(index) for index in range(torch.cuda.device_count())] if has_cuda else [],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cpu_fast_paths": _fast_paths("cpu"),
        "cpu_extension": _cpu_extension(),
        "cuda_fast_paths": _fast_paths("cuda") if has_cuda else None,
    }


if __name__ == "__main__":
    print(json.dumps(collect()))  # noqa: T201
