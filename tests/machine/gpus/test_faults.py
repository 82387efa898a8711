"""Broken GPUs, as NVML reports them."""

import time
from collections.abc import Iterator

import pytest
from clusterrun.machine.gpus.nvml import GpuProblem, broken_gpus

FAKE_NVML = """
from types import SimpleNamespace
NVML_SUCCESS, NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED = 0, 15, 16
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 274
class NVMLError(Exception):
    def __init__(self, value): self.value = value
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 8
def nvmlDeviceGetHandleByIndex(index):
    if index == 1: raise NVMLError(15)
    if index == 7: raise NVMLError(4)
    return index
def nvmlDeviceGetUUID(index):
    if index == 2: raise NVMLError(16)
    return "GPU"
def nvmlDeviceGetRetiredPagesPendingStatus(index):
    if index != 3: raise NVMLError(3)
    return 1
def nvmlDeviceGetRemappedRows(index): return (9, 9, index == 4, index == 5)
def nvmlDeviceGetFieldValues(index, fields):
    value = SimpleNamespace(uiVal=2 if index == 6 else 0)
    return [SimpleNamespace(nvmlReturn=0, value=value)]
"""
"""GPU 0 is well, 1 is lost, 2 to 6 are broken, and 7 is hidden from this container."""


@pytest.mark.usefixtures("pynvml")
def test_gpu_faults() -> None:
    assert broken_gpus() == (
        "GPU 1 is lost, GPU 2 needs a reset, GPU 3 has memory pages to retire,"
        " GPU 4 has memory rows to remap, GPU 5 has memory rows to remap, GPU 6 needs a reset"
    )


def test_hanging_driver_is_a_fault() -> None:
    """As it does on some broken GPUs."""

    def hangs() -> Iterator[GpuProblem]:
        time.sleep(60)
        yield 0, "is well"

    assert broken_gpus(hangs, 0.1) == "NVML does not answer within 0.1 s"


def test_no_nvml_means_no_faults() -> None:
    def fails() -> Iterator[GpuProblem]:
        raise OSError("no libnvidia-ml.so.1")
        yield

    assert broken_gpus(fails) == ""
