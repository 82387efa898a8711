"""GPUs that are slower than they could be, as NVML reports them."""

import pytest
from clusterrun.machine.gpus.nvml import slow_gpus

FAKE_NVML = """
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
IDLE, AT_POWER_LIMIT = 0x1, 0x4
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 8
def nvmlDeviceGetHandleByIndex(index):
    if index == 7: raise NVMLError
    return index
def nvmlDeviceGetUUID(index): return "GPU"
def nvmlDeviceGetCurrentClocksThrottleReasons(index):
    if index == 6: raise NVMLError
    return IDLE | AT_POWER_LIMIT | {1: 0x8, 2: 0x40 | 0x8, 3: 0x20, 4: 0x80}.get(index, 0)
def nvmlDeviceGetTotalEccErrors(index, kind, counter):
    assert (kind, counter) == (1, 0)
    return 12 if index == 5 else 0
def nvmlDeviceGetMaxPcieLinkGeneration(index): return 4 if index == 6 else 5
def nvmlDeviceGetGpuMaxPcieLinkGeneration(index): return 5
"""
"""GPU 0 is well; 6 has no reasons, and a slow slot; 7 is hidden from this container."""


@pytest.mark.usefixtures("pynvml")
def test_gpu_slowdowns() -> None:
    """An idle GPU and one at its power limit are as they should be."""
    assert slow_gpus(seconds=60.0).split(", ") == [
        "GPU 1 is throttled by its hardware: heat or power",
        "GPU 2 is throttled by its hardware: heat or power",
        "GPU 3 is throttled by its driver: heat",
        "GPU 4 is throttled by the power supply of the machine",
        "GPU 5 has had 12 ECC errors that were not corrected",
        "GPU 6 runs at PCIe 4 in this slot and supports 5",
    ]
