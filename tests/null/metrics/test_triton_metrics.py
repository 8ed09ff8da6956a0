"""Metrics under Triton's names: the text, the machine's figures, the driver's."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trivium.metrics import triton as c
from trivium.metrics.exposition import Exposition
from trivium.metrics.host import HostMetrics
from trivium.metrics.instruments import Registry
from trivium.metrics.nvml import Nvml
from trivium.metrics.triton import Point, Summary, TritonMetric, render

MODEL = (("model", "m"), ("version", "1"))


def test_each_metric_has_one_heading_whatever_the_number_of_sources() -> None:
    registry = Registry()
    registry.triton_sources += [lambda: [Point(c.SUCCESS, MODEL, 3), Point(c.PENDING, MODEL, 0)], lambda: [Point(c.SUCCESS, (("model", "n"),), 4.5)]]
    page = Exposition(registry).render().decode()
    assert page.count("# TYPE nv_inference_request_success counter\n") == 1
    own = page[page.index("# HELP nv_") :].splitlines()
    assert own[2:4] == ['nv_inference_request_success{model="m",version="1"} 3', 'nv_inference_request_success{model="n"} 4.5']
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert families["nv_inference_pending_request_count"].type == "gauge"


def test_label_values_can_not_break_the_page() -> None:
    page = render([Point(c.SUCCESS, (("model", 'a"\\\nb'),), 1)]).decode()
    [family] = text_string_to_metric_families(page)
    assert family.samples[0].labels == {"model": 'a"\\\nb'}


@pytest.mark.parametrize("metric", [value for value in vars(c).values() if isinstance(value, TritonMetric)], ids=lambda metric: metric.name)
def test_names_and_kinds_are_tritons(metric: TritonMetric) -> None:
    assert metric.name.startswith("nv_") and not metric.name.endswith("_total") and metric.doc


def test_numbers_are_written_as_numbers() -> None:
    lines = render([Point(c.SUCCESS, (), value) for value in (1e15, 0.25, math.nan, 0)]).decode().splitlines()[2:]
    assert [line.split()[1] for line in lines] == ["1000000000000000", "0.25", "NaN", "0"]


def test_a_summary_knows_the_quantiles_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(c.time, "monotonic", lambda: now)
    summary = Summary()
    assert all(math.isnan(value) for value in summary.quantiles((0.5, 0.99)))
    summary.observe(10**6)
    now += 61
    for value in range(1, 101):
        summary.observe(value)
    assert summary.quantiles((0.5, 0.9, 0.99, 1.0)) == [50, 90, 99, 100]
    assert (summary.count, summary.total) == (101, 10**6 + 5050)


def fake_proc(folder: Path, busy: int, idle: int) -> None:
    (folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\n")
    (folder / "meminfo").write_text("MemTotal:       1000 kB\nMemFree: 10 kB\nMemAvailable:    400 kB\nHugePages_Total:       0\n")


def values(registry: Registry) -> dict[str, float]:
    return {point.metric.name: point.value for source in registry.triton_sources for point in source()}


def no_library(name: str) -> Any:
    raise OSError(name)


def test_cpu_and_memory_of_the_machine(tmp_path: Path) -> None:
    fake_proc(tmp_path, busy=100, idle=100)
    registry = Registry()
    HostMetrics(registry, proc=tmp_path, nvml=Nvml(no_library))
    fake_proc(tmp_path, busy=130, idle=110)
    expected = {"nv_cpu_utilization": 0.75, "nv_cpu_memory_total_bytes": 1_024_000, "nv_cpu_memory_used_bytes": 614_400}
    assert values(registry) == expected
    assert values(registry) == expected | {"nv_cpu_utilization": 0}


def test_a_machine_that_tells_nothing_has_no_metrics(tmp_path: Path) -> None:
    registry = Registry()
    HostMetrics(registry, proc=tmp_path, nvml=Nvml(no_library))
    assert values(registry) == {}


class FakeDriver:
    """Two GPUs, the second of which can't measure power."""

    def __init__(self, name: str) -> None:
        self.energy = 5000

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, uuid: Any, size: int) -> int:
        uuid.value = b"GPU-%d" % (handle.value or 0)
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total, memory._obj.used = 2000, 500
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: ctypes.c_void_p, utilization: Any) -> int:
        utilization._obj.gpu = 40
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: ctypes.c_void_p, value: Any) -> int:
        value._obj.value = 70_500
        return 0 if handle.value == 1 else 3

    nvmlDeviceGetPowerManagementLimit = nvmlDeviceGetPowerUsage

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: ctypes.c_void_p, value: Any) -> int:
        value._obj.value = self.energy
        return 0 if handle.value == 1 else 3


def test_gpus_of_the_driver(tmp_path: Path) -> None:
    driver = FakeDriver("")
    registry = Registry()
    HostMetrics(registry, proc=tmp_path, nvml=Nvml(lambda name: driver))
    driver.energy += 2500
    page = render(point for source in registry.triton_sources for point in source()).decode()
    assert 'nv_gpu_memory_used_bytes{gpu_uuid="GPU-2"} 500' in page
    assert 'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.4' in page
    assert 'nv_gpu_power_usage{gpu_uuid="GPU-1"} 70.5' in page
    assert 'nv_energy_consumption{gpu_uuid="GPU-1"} 2.5' in page
    assert 'power_usage{gpu_uuid="GPU-2"}' not in page
