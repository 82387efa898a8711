"""GPUs that work, and are slower or less sound than others, as NVML reports them.

A GPU at its power limit, or one without work, has lower clocks, too: that is its usual state, and
no slowdown here. The speed of a PCIe link falls while it is idle: what card and slot could have is
compared, not what they have now.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from clusterrun.machine.gpus.nvml import ask_in_child, named_gpus

if TYPE_CHECKING:
    from types import ModuleType

SECONDS_TO_ANSWER = 5.0

REASONS = {
    0x8 | 0x40: "is slowed down by its hardware: heat or power",
    0x20: "is slowed down by its driver: heat",
    0x80: "is slowed down by the power supply of the machine",
}
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons (NVIDIA, nvml.h: HwSlowdown,
HwThermalSlowdown; SwThermalSlowdown; HwPowerBrakeSlowdown)."""

Slowdown = tuple[str, str]
"""The number of a GPU and what is wrong with it."""


def slow_gpus(
    question: Callable[[], Iterable[Slowdown]] | None = None, timeout: float = SECONDS_TO_ANSWER
) -> str:
    """Return which NVIDIA GPUs are slowed down, such as ``GPU 3 is ...``; "" for none.

    Args:
        question: what is asked, in a child process; None: NVML.
        timeout: seconds, after which the answer is "".

    """
    return named_gpus(ask_in_child(question or query_slowdowns, timeout))


def query_slowdowns() -> Iterator[Slowdown]:
    """Yield the slowdowns of all GPUs that this process may open; may hang."""
    import pynvml

    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        with suppress(pynvml.NVMLError):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            for read in (_clocks, _memory_errors, _link):
                # This GPU, this driver or this pynvml may not be able to tell.
                with suppress(pynvml.NVMLError, AttributeError):
                    yield from ((str(index), words) for words in read(pynvml, handle))


def _clocks(pynvml: "ModuleType", handle: Any) -> Iterator[str]:  # a C pointer
    reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    yield from (words for bits, words in REASONS.items() if reasons & bits)


def _memory_errors(pynvml: "ModuleType", handle: Any) -> Iterator[str]:  # a C pointer
    kind, since_boot = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    if count := pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since_boot):
        yield f"has had {count} ECC errors that were not corrected"


def _link(pynvml: "ModuleType", handle: Any) -> Iterator[str]:  # a C pointer
    here = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
    most = pynvml.nvmlDeviceGetGpuMaxPcieLinkGeneration(handle)
    if here < most:
        yield f"has PCIe {here} in this slot and can do {most}"
