"""The few figures of NVIDIA's management library that Triton shows, by ctypes: no package is needed beside the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

LIBRARY: Final = "libnvidia-ml.so.1"
_UUID_SIZE: Final = 96


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


@dataclass(frozen=True, kw_only=True)
class GpuFigures:
    """What one GPU says now; None: it can't tell (older cards, slices of a card)."""

    uuid: str
    utilization: float | None
    """0 to 1."""
    memory_total: int | None
    memory_used: int | None
    power_usage_w: float | None
    power_limit_w: float | None
    energy_j: float | None
    """Since the driver was loaded."""


class Nvml:
    """`load` is for tests. Without the library, or without a GPU, there are no figures."""

    def __init__(self, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._devices: list[tuple[ctypes.c_void_p, str]] = []
        try:
            self._library: Any = load(LIBRARY)
            if self._library.nvmlInit_v2() == 0:
                self._devices = self._find()
        except (OSError, AttributeError):
            pass

    def __len__(self) -> int:
        return len(self._devices)

    def figures(self) -> list[GpuFigures]:
        return [self._figures(handle, uuid) for handle, uuid in self._devices]

    def _find(self) -> list[tuple[ctypes.c_void_p, str]]:
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        found: list[tuple[ctypes.c_void_p, str]] = []
        for index in range(count.value):
            handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_SIZE)
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
                continue
            if self._library.nvmlDeviceGetUUID(handle, uuid, _UUID_SIZE) == 0:
                found.append((handle, uuid.value.decode()))
        return found

    def _figures(self, handle: ctypes.c_void_p, uuid: str) -> GpuFigures:
        memory, utilization = _Memory(), _Utilization()
        has_memory = self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
        has_utilization = self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilization)) == 0
        usage = self._number("nvmlDeviceGetPowerUsage", handle, ctypes.c_uint())
        limit = self._number("nvmlDeviceGetPowerManagementLimit", handle, ctypes.c_uint())
        energy = self._number("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.c_ulonglong())
        return GpuFigures(
            uuid=uuid,
            utilization=utilization.gpu / 100 if has_utilization else None,
            memory_total=memory.total if has_memory else None,
            memory_used=memory.used if has_memory else None,
            power_usage_w=None if usage is None else usage / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            energy_j=None if energy is None else energy / 1000,
        )

    def _number(self, function: str, handle: ctypes.c_void_p, value: ctypes.c_uint | ctypes.c_ulonglong) -> int | None:
        """Milliwatts or millijoules."""
        return value.value if getattr(self._library, function)(handle, ctypes.byref(value)) == 0 else None
