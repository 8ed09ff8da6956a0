"""The machine as Triton shows it: CPU and memory from /proc, GPUs from the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trivium.metrics import triton as c
from trivium.metrics.instruments import Registry
from trivium.metrics.nvml import Nvml
from trivium.metrics.triton import Point, TritonMetric

_PROC: Final = Path("/proc")


class HostMetrics:
    """A source of `Registry.triton_sources`, one per server. What the machine can't tell is left out."""

    def __init__(self, registry: Registry, *, proc: Path = _PROC, nvml: Nvml | None = None) -> None:
        self._proc = proc
        self._nvml = nvml or Nvml()
        self._ticks = self._cpu_ticks()
        self._first_energy = {gpu.uuid: gpu.energy_j for gpu in self._nvml.figures()}
        registry.triton_sources.append(self._points)

    def _points(self) -> list[Point]:
        return [*self._cpu_points(), *self._memory_points(), *self._gpu_points()]

    def _cpu_points(self) -> list[Point]:
        """The share of time that was not idle since the last reading."""
        before, now = self._ticks, self._cpu_ticks()
        if before is None or now is None:
            return []
        self._ticks = now
        passed = now[1] - before[1]
        return [Point(c.CPU_UTILIZATION, (), (now[0] - before[0]) / passed if passed > 0 else 0.0)]

    def _memory_points(self) -> list[Point]:
        sizes = self._memory_sizes()
        if not {"MemTotal", "MemAvailable"} <= sizes.keys():
            return []
        total = sizes["MemTotal"]
        return [Point(c.CPU_MEMORY_TOTAL, (), total), Point(c.CPU_MEMORY_USED, (), total - sizes["MemAvailable"])]

    def _gpu_points(self) -> list[Point]:
        points: list[Point] = []
        for gpu in self._nvml.figures():
            energy, first = gpu.energy_j, self._first_energy.get(gpu.uuid)
            figures: list[tuple[TritonMetric, float | None]] = [
                (c.GPU_UTILIZATION, gpu.utilization),
                (c.GPU_MEMORY_TOTAL, gpu.memory_total),
                (c.GPU_MEMORY_USED, gpu.memory_used),
                (c.GPU_POWER_USAGE, gpu.power_usage_w),
                (c.GPU_POWER_LIMIT, gpu.power_limit_w),
                (c.ENERGY, None if energy is None or first is None else energy - first),
            ]
            points += [Point(metric, (("gpu_uuid", gpu.uuid),), value) for metric, value in figures if value is not None]
        return points

    def _cpu_ticks(self) -> tuple[int, int] | None:
        """Busy and all, since the machine started; user, nice, system, idle, iowait, irq, softirq, steal are the first eight (proc(5))."""
        try:
            words = (self._proc / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()
            ticks = [int(word) for word in words[1:9]]
        except (OSError, ValueError):
            return None
        return sum(ticks) - sum(ticks[3:5]), sum(ticks)

    def _memory_sizes(self) -> dict[str, int]:
        """Bytes by name of /proc/meminfo."""
        try:
            lines = (self._proc / "meminfo").read_text(encoding="ascii").splitlines()
            return {name: int(rest.split()[0]) * 1024 for name, colon, rest in (line.partition(":") for line in lines) if colon and rest.split()}
        except (OSError, ValueError):
            return {}
