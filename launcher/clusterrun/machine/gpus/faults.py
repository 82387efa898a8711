"""GPUs that are broken, as NVML reports them when a worker has failed.

The driver writes an Xid to the kernel's log, which only root may read. Of those that name broken
hardware something stays that NVML tells everybody: the GPU is lost (Xid 79), it needs a reset, or
it has memory to replace (Xid 48, 63, 64, 94, 95; NVIDIA, "GPU Memory Error Management"). Those
that a program causes by itself, such as Xid 13 and 31, leave nothing behind, and do not count.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from clusterrun.machine.gpus.nvml import HUNG, ask_in_child, named_gpus

if TYPE_CHECKING:
    from types import ModuleType

SECONDS_TO_ANSWER = 5.0
"""NVML needs a second where no other process keeps the driver initialised."""

Fault = tuple[str, str]
"""The number of a GPU and what is wrong with it."""


def broken_gpus(
    question: Callable[[], Iterable[Fault]] | None = None, timeout: float = SECONDS_TO_ANSWER
) -> str:
    """Return what is wrong with this machine's NVIDIA GPUs, such as ``GPU 3 is lost``; "" for nothing.

    Args:
        question: what is asked, in a child process; None: NVML.
        timeout: seconds, after which NVML itself is what is wrong.

    """
    answer = ask_in_child(question or query_faults, timeout)
    if answer == HUNG:
        return f"NVML does not answer within {timeout:g} s"
    return named_gpus(answer)


def query_faults() -> Iterator[Fault]:
    """Yield the faults of all GPUs that this process may open; may hang."""
    import pynvml

    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            # A lost GPU may still have a handle.
            pynvml.nvmlDeviceGetUUID(handle)
        except pynvml.NVMLError as error:
            lost = {
                pynvml.NVML_ERROR_GPU_IS_LOST: "is lost",
                pynvml.NVML_ERROR_RESET_REQUIRED: "needs a reset",
            }
            if error.value in lost:
                yield str(index), lost[error.value]
            continue
        yield from ((str(index), fault) for fault in _faults_of(pynvml, handle))


def _faults_of(pynvml: "ModuleType", handle: Any) -> Iterator[str]:  # a C pointer
    for fault, is_there in (
        ("has memory pages to retire", _retires_pages),
        ("has memory rows to remap", _remaps_rows),
        ("needs a reset", _needs_recovery),
    ):
        try:
            found = is_there(pynvml, handle)
        except (pynvml.NVMLError, AttributeError):
            # This GPU, this driver or this pynvml cannot tell.
            continue
        if found:
            yield fault


def _retires_pages(pynvml: "ModuleType", handle: Any) -> bool:  # a C pointer
    return bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))


def _remaps_rows(pynvml: "ModuleType", handle: Any) -> bool:  # a C pointer
    _, _, is_pending, has_failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return bool(is_pending or has_failed)


def _needs_recovery(pynvml: "ModuleType", handle: Any) -> bool:  # a C pointer
    """Return whether the driver asks for a reset or a reboot; 0 is "no action"."""
    [field] = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return bool(field.nvmlReturn == pynvml.NVML_SUCCESS and field.value.uiVal != 0)
