"""What each NVIDIA GPU does now, by NVML: asked for when a user looks, and never waited for.

NVML hangs on a broken GPU, so a child asks it. The next look shows its answer.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from clusterrun.machine.gpus.nvml import (
    SECONDS_TO_DIE,
    Question,
    answered_rows,
    end_child,
    start_child,
)
from clusterrun.policy.looks import GpuState
from clusterrun.processes import status_of

if TYPE_CHECKING:
    from types import ModuleType

SECONDS_TO_ANSWER = 3.0

SECONDS_BETWEEN_QUESTIONS = 5.0
"""A child that imports pynvml and opens the driver costs some hundredths of a second."""

SECONDS_VALID = 8.0
"""A look shows no older figures."""

Row = tuple[str, ...]
"""UUID, per cent, bytes used, all bytes, degrees, watts; "" for what the GPU does not tell."""


class GpuUsage:
    """Asks for the figures of all GPUs that this process may open."""

    def __init__(self, question: Question | None = None) -> None:
        """Take what a child asks; None: NVML."""
        self._question = question or query_usage
        self._child = 0
        self._reading = -1
        self._answer = bytearray()
        self._known: Mapping[str, GpuState] = {}
        self._known_since = 0.0
        self._asked_at = -SECONDS_BETWEEN_QUESTIONS

    def ask(self, now: float) -> None:
        """Start a child, unless one has just asked, or still asks: a hung driver gets no second one."""
        self._read()
        if self._reading >= 0 or now < self._asked_at + SECONDS_BETWEEN_QUESTIONS:
            return
        try:
            self._child, self._reading = start_child(self._question, SECONDS_TO_ANSWER)
        except OSError:
            return
        os.set_blocking(self._reading, False)
        self._asked_at = now

    def latest(self, now: float) -> Mapping[str, GpuState]:
        """Return the figures by UUID: none before the first answer, nor if the last one is old."""
        self._read()
        return self._known if now - self._known_since < SECONDS_VALID else {}

    def close(self) -> None:
        """End the child, if one still asks."""
        self._read()
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1
            # It has not been reaped: the end of its answer has not come.
            end_child(self._child, SECONDS_TO_DIE)
        elif self._child:
            status_of(self._child, SECONDS_TO_DIE)

    def _read(self) -> None:
        try:
            while self._reading >= 0:
                chunk = os.read(self._reading, 1 << 16)
                self._answer += chunk
                if not chunk:
                    self._known = _states(self._answer.decode(errors="replace"))
                    self._known_since = self._asked_at
                    self._ended()
        except BlockingIOError:
            return

    def _ended(self) -> None:
        os.close(self._reading)
        self._reading = -1
        self._answer.clear()
        # If it has not quite ended, the agent reaps it with other orphans.
        status_of(self._child, 0.0)


def _states(answer: str) -> Mapping[str, GpuState]:
    return {
        row[0]: GpuState(*(int(each) if each else None for each in row[1:]))
        for row in answered_rows(answer)
        if len(row) == 6
    }


def query_usage() -> Iterator[Row]:
    """Yield the figures of each GPU; may hang."""
    import pynvml

    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
        except pynvml.NVMLError:
            # Hidden from this container, or lost.
            continue
        yield (
            uuid.decode() if isinstance(uuid, bytes) else uuid,
            *(_figure(pynvml, handle, read) for read in _FIGURES),
        )


def _figure(
    pynvml: "ModuleType", handle: Any, read: Callable[["ModuleType", Any], float]
) -> str:  # a C pointer
    try:
        return str(max(0, round(read(pynvml, handle))))
    except pynvml.NVMLError:
        # One that is split into slices has no use of its own; some have no sensor.
        return ""


def _watts(pynvml: "ModuleType", handle: Any) -> float:
    milliwatts: int = pynvml.nvmlDeviceGetPowerUsage(handle)
    return milliwatts / 1000


_FIGURES: Iterable[Callable[["ModuleType", Any], float]] = (
    lambda pynvml, handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    lambda pynvml, handle: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
    lambda pynvml, handle: pynvml.nvmlDeviceGetMemoryInfo(handle).total,
    lambda pynvml, handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    _watts,
)
