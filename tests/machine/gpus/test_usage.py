"""The usage of GPUs from NVML; callers never wait for it."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from clusterrun.machine.gpus.nvml import (
    SECONDS_BETWEEN_QUERIES,
    SECONDS_UNTIL_HUNG,
    SECONDS_VALID,
    GpuUsage,
)
from clusterrun.machine.machine import GpuState

from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_child_left")

FAKE_NVML = """
from types import SimpleNamespace
NVML_TEMPERATURE_GPU = 0
nvmlMemory_v2 = 0x2000028
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 3
def nvmlDeviceGetHandleByIndex(index):
    if index == 1: raise NVMLError("Insufficient Permissions")
    return index
def nvmlDeviceGetUUID(index): return {0: "GPU-a", 2: b"GPU-c"}[index]
def nvmlDeviceGetUtilizationRates(index):
    if index == 2: raise NVMLError("Not Supported")
    return SimpleNamespace(gpu=87, memory=40)
def nvmlDeviceGetMemoryInfo(index, version=None):
    if version is None: return SimpleNamespace(used=6 << 30, total=80 << 30)
    if index == 2: raise NVMLError("Function Not Found")
    return SimpleNamespace(used=5 << 30, reserved=1 << 30, total=80 << 30)
def nvmlDeviceGetTemperature(index, sensor): return 60 + sensor
def nvmlDeviceGetPowerUsage(index): return 412_600
"""
"""GPU 1 is hidden from this container, and GPU 2 is split into slices.

Version 1 of the memory's figures, the only one for GPU 2, has what the driver reserves in ``used``.
"""


def answered(usage: GpuUsage, now: float) -> dict[str, GpuState]:
    """Return the next answer."""
    usage.ask(now)
    return dict(wait_until(lambda: usage.latest(now), "an answer"))


@pytest.mark.usefixtures("pynvml")
def test_usage_from_nvml() -> None:
    """What a GPU does not report is None; a GPU that we may not open is excluded."""
    usage = GpuUsage()

    found = answered(usage, 100.0)

    usage.close()
    assert found == {
        "GPU-a": GpuState(87, 5 << 30, 80 << 30, 60, 413),
        "GPU-c": GpuState(None, 6 << 30, 80 << 30, 60, 413),
    }


@pytest.mark.usefixtures("pynvml")
def test_usage_with_an_older_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has version 1 only."""
    monkeypatch.delattr("pynvml.nvmlMemory_v2")
    usage = GpuUsage()

    found = answered(usage, 100.0)

    usage.close()
    assert {state.memory for state in found.values()} == {6 << 30}


def test_old_measurements_are_not_shown() -> None:
    """They are as old as the question; the next one brings new figures."""
    usage = GpuUsage(lambda: [("GPU-a", GpuState(1, 2, 3, 4, 5))])
    first = answered(usage, 100.0)
    usage.ask(100.0 + SECONDS_BETWEEN_QUERIES / 2)

    assert first == usage.latest(100.0 + SECONDS_VALID / 2)
    assert usage.latest(100.0 + SECONDS_VALID) == {}
    assert answered(usage, 200.0) == first
    usage.close()


def test_hanging_driver_leaves_one_child(tmp_path: Path) -> None:
    """No other child is started until this one has been killed and reaped."""
    is_well = tmp_path / "is_well"

    def asks() -> Iterator[tuple[str, GpuState]]:
        if not is_well.exists():
            time.sleep(600)
        yield "GPU-a", GpuState(1, 2, 3, 4, 5)

    before = len(psutil.Process().children())
    usage = GpuUsage(asks)
    for now in (100.0, 110.0, 120.0):
        usage.ask(now)
        assert usage.latest(now) == {}

    assert len(psutil.Process().children()) == before + 1
    is_well.touch()

    def is_known() -> bool:
        usage.ask(100.0 + SECONDS_UNTIL_HUNG)
        assert len(psutil.Process().children()) <= before + 1
        return bool(usage.latest(100.0 + SECONDS_UNTIL_HUNG))

    wait_until(is_known, "the figures")
    usage.close()


def test_usage_without_nvml() -> None:
    def fails() -> Iterator[tuple[str, GpuState]]:
        raise OSError("no libnvidia-ml.so.1")
        yield

    usage = GpuUsage(fails)
    usage.ask(100.0)
    usage.close()

    assert usage.latest(100.0) == {}
