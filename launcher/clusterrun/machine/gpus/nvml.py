"""Queries NVML for NVIDIA's GPUs, their usage, and which of them are broken or slow.

The library hangs on a broken GPU, so a child process queries it, which can be killed. The child
answers in JSON, so a partial answer is not mistaken for a whole one.

The driver reports errors as Xids in the kernel's log, which only root may read. Those for broken
hardware leave a state that every user can query: the GPU is lost (Xid 79), it needs a reset, or it has
memory to replace (Xid 48, 63, 64, 94, 95; NVIDIA, "GPU Memory Error Management"). Xids that a program
causes, such as 13 and 31, leave no such state and are not reported.

Lower clocks at the power limit or without work are normal, not a slowdown. A PCIe link slows down
while it is idle, so the maximum speeds of card and slot are compared, not the current ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import MsgspecError, json
from msgspec.structs import replace

from clusterrun.cpuset import CpuSet
from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.gpus import HUNG
from clusterrun.machine.machine import Gpu, GpuState, Hints
from clusterrun.processes import TimeLimitedChild

if TYPE_CHECKING:
    from types import ModuleType

SECONDS_TO_LIST = 10.0

SECONDS_TO_CHECK = 5.0
"""NVML needs a second where no other process keeps the driver initialised."""

SECONDS_BETWEEN_QUERIES = 5.0
"""A child that imports pynvml and opens the driver takes some hundredths of a second of CPU time."""

SECONDS_VALID = 8.0
"""Older measurements are not shown."""

SECONDS_UNTIL_HUNG = 60.0
"""A child that measures usage is killed after this. If it survives that, no other is started."""

SLOWDOWNS = {
    0x8 | 0x40: "is throttled by its hardware: heat or power",
    0x20: "is throttled by its driver: heat",
    0x80: "is throttled by the power supply of the machine",
}
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons (NVIDIA, nvml.h: HwSlowdown,
HwThermalSlowdown; SwThermalSlowdown; HwPowerBrakeSlowdown)."""

_WORDS = 64
"""64-bit words of an affinity mask: 4096 CPUs or NUMA nodes, the most that Linux can have."""

_Handle = Any
"""A C pointer of pynvml."""

RowT = TypeVar("RowT")
NvmlQuery = Callable[[], Iterable[RowT]]
"""Runs in the child and yields rows that msgspec can encode. It may raise anything, and may hang."""

GpuProblem = tuple[int, str]
"""The number of a GPU, and what is wrong with it."""


def run_query(query: NvmlQuery[Any] | None = None, seconds: float = SECONDS_TO_LIST) -> str:
    """Run a query in a child, which is killed after ``seconds``, and return its rows as JSON.

    Args:
        query: None for ``query_gpus``.
        seconds: the time limit.

    Returns:
        "" if NVML is missing or fails, or no process can be started; ``HUNG`` if it takes too long.

    """
    try:
        child = TimeLimitedChild(partial(_encoded, query or query_gpus), seconds)
    except OSError:
        return ""
    answer = child.wait()
    return HUNG if child.is_late else answer.decode(errors="replace")


def gpus_in(answer: str) -> tuple[Gpu, ...]:
    """Return the GPUs of an answer: whole GPUs in NVML's order, then the slices."""
    gpus = _decoded(answer, list[Gpu]) or []
    wholes = {gpu.uuid for gpu in gpus if not gpu.parent}
    # In an edited capture, a slice may belong to no GPU.
    known = (
        replace(gpu, bdf=pci.normalised(gpu.bdf) or "")
        for gpu in gpus
        if not gpu.parent or gpu.parent in wholes
    )
    return tuple(sorted(known, key=lambda gpu: bool(gpu.parent)))


def broken_gpus(
    query: NvmlQuery[GpuProblem] | None = None, seconds: float = SECONDS_TO_CHECK
) -> str:
    """Return which NVIDIA GPUs are broken and how, such as ``GPU 3 is lost``; "" for none.

    NVML itself counts as broken if it takes more than ``seconds``.
    """
    answer = run_query(query or query_faults, seconds)
    return f"NVML does not answer within {seconds:g} s" if answer == HUNG else _as_text(answer)


def slow_gpus(query: NvmlQuery[GpuProblem] | None = None, seconds: float = SECONDS_TO_CHECK) -> str:
    """Return which NVIDIA GPUs are slowed down and why, such as ``GPU 3 is ...``; "" for none."""
    return _as_text(run_query(query or query_slowdowns, seconds))


class GpuUsage:
    """Measures all GPUs that this process may open, on request.

    Nothing waits for a measurement: the next request shows it.
    """

    def __init__(self, query: NvmlQuery[tuple[str, GpuState]] | None = None) -> None:
        """``query``: None for ``query_usage``."""
        self._query = query or query_usage
        self._child: TimeLimitedChild | None = None
        self._is_running = False
        """Whether the child has not answered. It stays True if the child survives SIGKILL."""
        self._known: Mapping[str, GpuState] = {}
        self._known_since = 0.0
        self._started_at = -SECONDS_BETWEEN_QUERIES

    def ask(self, now: float) -> None:
        """Start a measurement, unless one is running or has just been started."""
        self._read(now)
        if self._is_running or now < self._started_at + SECONDS_BETWEEN_QUERIES:
            return
        if self._child:
            self._child.end(0.0)
            self._child = None
        with suppress(OSError):
            query = partial(_encoded, self._query)
            self._child = TimeLimitedChild(query, SECONDS_UNTIL_HUNG, now=now)
            self._is_running, self._started_at = True, now

    def latest(self, now: float) -> Mapping[str, GpuState]:
        """Return the last measurement by UUID; {} before the first one, or if the last one is old."""
        self._read(now)
        return self._known if now - self._known_since < SECONDS_VALID else {}

    def close(self) -> None:
        if self._child:
            self._child.end()
            self._child = None

    def _read(self, now: float) -> None:
        child = self._child
        if child is None or not self._is_running:
            return
        answer = child.answer(now)
        if answer is None or (child.is_late and not child.has_ended):
            return
        self._is_running = False
        self._known = dict(_decoded(answer, list[tuple[str, GpuState]]) or ())
        self._known_since = self._started_at


def _encoded(query: NvmlQuery[Any]) -> bytes:
    return json.encode(list(query()))


def _decoded(answer: str | bytes, kind: type[RowT]) -> RowT | None:
    try:
        return json.decode(answer, type=kind)
    # ValueError: an edited capture may contain half a character.
    except (MsgspecError, ValueError):
        return None


def _as_text(answer: str) -> str:
    rows = _decoded(answer, list[GpuProblem]) or ()
    return ", ".join(f"GPU {index} {words}" for index, words in rows)


def query_gpus() -> Iterator[Gpu]:
    """Yield the GPUs, each followed by its slices."""
    import pynvml

    # GPUs that are lost or hidden from this container are not numbered: CUDA does not number them either.
    for number, (_, handle, uuid) in enumerate(_handles(pynvml)):
        nvml = _Device(pynvml, handle)
        info = nvml.get("nvmlDeviceGetPciInfo")
        gpu = Gpu(
            number,
            "" if info is None else _text(info.busId),
            uuid,
            vendor="nvidia",
            model=_text(nvml.get("nvmlDeviceGetName") or ""),
            listed_by="NVML",
            hints=Hints(
                nvml.affinity("nvmlDeviceGetCpuAffinityWithinScope"),
                nvml.affinity("nvmlDeviceGetMemoryAffinity"),
            ),
        )
        yield gpu
        yield from _slices(nvml, gpu)


def _slices(nvml: "_Device", gpu: Gpu) -> Iterator[Gpu]:
    enabled, _ = nvml.get("nvmlDeviceGetMigMode") or (0, 0)
    for index in range(nvml.get("nvmlDeviceGetMaxMigDeviceCount") or 0 if enabled else 0):
        part = _Device(nvml.pynvml, nvml.get("nvmlDeviceGetMigDeviceHandleByIndex", index))
        uuid = None if part.handle is None else part.get("nvmlDeviceGetUUID")
        # An index may have no slice, or one that this container may not use.
        if uuid:
            instances = ("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId")
            yield replace(
                gpu,
                uuid=_text(uuid),
                model=_text(part.get("nvmlDeviceGetName") or ""),
                parent=gpu.uuid,
                legacy_name="/".join([f"MIG-{gpu.uuid}", *(str(part.get(it)) for it in instances)]),
            )


def query_usage() -> Iterator[tuple[str, GpuState]]:
    """Yield the UUID and state of each GPU."""
    import pynvml

    for _, handle, uuid in _handles(pynvml):
        nvml = _Device(pynvml, handle)
        # A GPU that is split into slices has no utilization, and some GPUs have no sensors.
        rates = nvml.get("nvmlDeviceGetUtilizationRates")
        memory = _memory(nvml)
        milliwatts = nvml.get("nvmlDeviceGetPowerUsage")
        yield (
            uuid,
            GpuState(
                use=_count(rates and rates.gpu),
                memory=_count(memory and memory.used),
                all_memory=_count(memory and memory.total),
                temperature=_count(
                    nvml.get("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
                ),
                power=_count(None if milliwatts is None else milliwatts / 1000),
            ),
        )


def _memory(nvml: "_Device") -> Any:  # as pynvml has it
    # Version 1 counts the driver's reservation as used: some hundred MiB on an idle GPU.
    version = getattr(nvml.pynvml, "nvmlMemory_v2", None)
    second = version and nvml.get("nvmlDeviceGetMemoryInfo", version)
    return second or nvml.get("nvmlDeviceGetMemoryInfo")


def query_faults() -> Iterator[GpuProblem]:
    """Yield the faults of all GPUs that this process may open."""
    import pynvml

    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            # This fails for a lost GPU that still has a handle.
            pynvml.nvmlDeviceGetUUID(handle)
        except pynvml.NVMLError as error:
            lost = {
                pynvml.NVML_ERROR_GPU_IS_LOST: "is lost",
                pynvml.NVML_ERROR_RESET_REQUIRED: "needs a reset",
            }
            if error.value in lost:
                yield index, lost[error.value]
            continue
        for read in (_pages, _rows, _recovery):
            yield from _problems(pynvml, index, handle, read)


def query_slowdowns() -> Iterator[GpuProblem]:
    """Yield the slowdowns of all GPUs that this process may open."""
    import pynvml

    for index, handle, _ in _handles(pynvml):
        for read in (_clocks, _memory_errors, _link):
            yield from _problems(pynvml, index, handle, read)


def _handles(pynvml: "ModuleType") -> Iterator[tuple[int, _Handle, str]]:
    """Yield number, handle and UUID of each GPU that NVML lets us use."""
    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError:
            continue
        yield index, handle, uuid


class _Device:
    """One GPU or slice."""

    def __init__(self, pynvml: "ModuleType", handle: _Handle) -> None:
        self.pynvml = pynvml
        self.handle = handle

    def get(self, function: str, *args: Any) -> Any:  # as pynvml has it
        """Call a function of NVML; return None if GPU, driver or container do not support it."""
        try:
            return getattr(self.pynvml, function)(self.handle, *args)
        except self.pynvml.NVMLError:
            return None

    def affinity(self, function: str) -> str:
        """Return the CPUs or NUMA nodes of an affinity, in list form."""
        words = self.get(function, _WORDS, self.pynvml.NVML_AFFINITY_SCOPE_NODE) or ()
        return str(
            CpuSet(
                64 * index + bit
                for index, word in enumerate(words)
                for bit in range(64)
                if word >> bit & 1
            )
        )


def _text(answer: str | bytes) -> str:
    # Old versions of pynvml return bytes.
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    return " ".join(text.split())


def _count(figure: float | None) -> int | None:
    return None if figure is None else max(0, round(figure))


def _problems(
    pynvml: "ModuleType",
    index: int,
    handle: _Handle,
    read: Callable[["ModuleType", _Handle], Iterator[str]],
) -> Iterator[GpuProblem]:
    # GPU, driver or pynvml may not support the function.
    with suppress(pynvml.NVMLError, AttributeError):
        yield from ((index, words) for words in read(pynvml, handle))


def _pages(pynvml: "ModuleType", handle: _Handle) -> Iterator[str]:
    if pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle):
        yield "has memory pages to retire"


def _rows(pynvml: "ModuleType", handle: _Handle) -> Iterator[str]:
    _, _, is_pending, has_failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    if is_pending or has_failed:
        yield "has memory rows to remap"


def _recovery(pynvml: "ModuleType", handle: _Handle) -> Iterator[str]:
    [field] = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    # Anything but 0 ("no action") is a reset or a reboot.
    if field.nvmlReturn == pynvml.NVML_SUCCESS and field.value.uiVal != 0:
        yield "needs a reset"


def _clocks(pynvml: "ModuleType", handle: _Handle) -> Iterator[str]:
    reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    yield from (words for bits, words in SLOWDOWNS.items() if reasons & bits)


def _memory_errors(pynvml: "ModuleType", handle: _Handle) -> Iterator[str]:
    kind, since_boot = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    if count := pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since_boot):
        yield f"has had {count} ECC errors that were not corrected"


def _link(pynvml: "ModuleType", handle: _Handle) -> Iterator[str]:
    here = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
    most = pynvml.nvmlDeviceGetGpuMaxPcieLinkGeneration(handle)
    if here < most:
        yield f"runs at PCIe {here} in this slot and supports {most}"
