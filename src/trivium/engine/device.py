"""What device there is, and how torch is set up for it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from trivium.config import EngineConfig
from trivium.engine.resolve import DeviceInfo
from trivium.errors import ConfigError


def detect_device(config: EngineConfig, rank: int = 0) -> tuple[torch.device, DeviceInfo]:
    """Raises `ConfigError` when a GPU is asked for and there is none."""
    has_gpu = torch.cuda.is_available()
    if config.device == "cuda" and not has_gpu:
        raise ConfigError("device cuda was asked for, but torch sees no GPU.", param="device")
    if has_gpu and config.device != "cpu":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        free, total = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        info = DeviceInfo(
            type="cuda",
            name=name,
            total_memory=total,
            free_memory=free,
            has_bf16=torch.cuda.is_bf16_supported(including_emulation=False),
            has_fp8=torch.cuda.get_device_capability(device) >= (8, 9),
        )
        return device, info
    free = available_host_memory()
    flags = _cpu_flags()
    return torch.device("cpu"), DeviceInfo(
        type="cpu",
        name="this CPU",
        total_memory=free,
        free_memory=free,
        has_bf16="avx512_bf16" in flags or "amx_bf16" in flags or "bf16" in flags,
        num_cores=len(os.sched_getaffinity(0)),
    )


def available_host_memory() -> int:
    """Bytes this process may still take: the machine's free memory, or its control group's if that is less."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
    except OSError:
        return available
    return available if limit == "max" else min(available, int(limit) - int(used))


def _cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return set(line.split(":", 1)[1].split())
    return set()
