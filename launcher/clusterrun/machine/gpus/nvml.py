"""What NVML says of NVIDIA's GPUs: which there are, what they do, and which are broken or slow.

A child asks it, which can be killed: the library hangs on a broken GPU. Its answer is JSON, of which
half is not an answer.

The driver writes an Xid to the kernel's log, which only root may read. Of those that name broken
hardware something stays that NVML tells everybody: the GPU is lost (Xid 79), it needs a reset, or
it has memory to replace (Xid 48, 63, 64, 94, 95; NVIDIA, "GPU Memory Error Management"). Those
that a program causes by itself, such as Xid 13 and 31, leave nothing behind, and do not count.

A GPU at its power limit, or one without work, has lower clocks: that is its usual state, and no
slowdown. The speed of a PCIe link falls while it is idle: what card and slot could have is compared,
not what they have now.
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

SECONDS_BETWEEN_QUESTIONS = 5.0
"""A child that imports pynvml and opens the driver costs some hundredths of a second."""

SECONDS_VALID = 8.0
"""A look shows no older figures."""

SECONDS_UNTIL_HUNG = 60.0
"""A child that asks for figures is killed then; it might outlive that, and so would the next."""

SLOWDOWNS = {
    0x8 | 0x40: "is throttled by its hardware: heat or power",
    0x20: "is throttled by its driver: heat",
    0x80: "is throttled by the power supply of the machine",
}
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons (NVIDIA, nvml.h: HwSlowdown,
HwThermalSlowdown; SwThermalSlowdown; HwPowerBrakeSlowdown)."""

_WORDS = 64
"""Room for 4096 CPUs or nodes: as many as Linux can have."""

_Handle = Any
"""A C pointer of pynvml."""

RowT = TypeVar("RowT")
Question = Callable[[], Iterable[RowT]]
"""Is called in the child, and yields rows that msgspec can encode; may raise anything, and hang."""

Wrong = tuple[int, str]
"""The number of a GPU, and what is wrong with it."""


def ask(question: Question[Any] | None = None, seconds: float = SECONDS_TO_LIST) -> str:
    """Return NVML's answer as JSON.

    Args:
        question: what the child asks; None: which GPUs there are.
        seconds: after which the child is killed.

    Returns:
        "" if NVML is missing or fails, or no process can be started; ``HUNG`` if it takes too long.

    """
    try:
        child = TimeLimitedChild(partial(_encoded, question or query_gpus), seconds)
    except OSError:
        return ""
    answer = child.wait()
    return HUNG if child.is_late else answer.decode(errors="replace")


def gpus_in(answer: str) -> tuple[Gpu, ...]:
    """Return the whole GPUs in NVML's order, which numbers them, and after them their slices."""
    gpus = _decoded(answer, list[Gpu]) or []
    wholes = {gpu.uuid for gpu in gpus if not gpu.parent}
    # In an edited answer a slice may belong to no GPU.
    known = (
        replace(gpu, bdf=pci.normalised(gpu.bdf) or "")
        for gpu in gpus
        if not gpu.parent or gpu.parent in wholes
    )
    return tuple(sorted(known, key=lambda gpu: bool(gpu.parent)))


def broken_gpus(question: Question[Wrong] | None = None, seconds: float = SECONDS_TO_CHECK) -> str:
    """Return what is wrong with this machine's NVIDIA GPUs, such as ``GPU 3 is lost``; "" for nothing.

    ``seconds`` is the time, after which NVML itself is what is wrong.
    """
    answer = ask(question or query_faults, seconds)
    return f"NVML does not answer within {seconds:g} s" if answer == HUNG else _named(answer)


def slow_gpus(question: Question[Wrong] | None = None, seconds: float = SECONDS_TO_CHECK) -> str:
    """Return which NVIDIA GPUs are slowed down, such as ``GPU 3 is ...``; "" for none."""
    return _named(ask(question or query_slowdowns, seconds))


class GpuUsage:
    """The figures of all GPUs that this process may open, which a user's look asks for.

    It is never waited for: the next look shows its answer.
    """

    def __init__(self, question: Question[tuple[str, GpuState]] | None = None) -> None:
        """Take what a child asks; None: NVML."""
        self._question = question or query_usage
        self._child: TimeLimitedChild | None = None
        self._asks = False
        """Whether the child has not answered; one that outlives its end never does: it is the last."""
        self._known: Mapping[str, GpuState] = {}
        self._known_since = 0.0
        self._asked_at = -SECONDS_BETWEEN_QUESTIONS

    def ask(self, now: float) -> None:
        """Start a child, unless one has just asked, or still asks."""
        self._read(now)
        if self._asks or now < self._asked_at + SECONDS_BETWEEN_QUESTIONS:
            return
        if self._child:
            self._child.end(0.0)
            self._child = None
        with suppress(OSError):
            question = partial(_encoded, self._question)
            self._child = TimeLimitedChild(question, SECONDS_UNTIL_HUNG, now=now)
            self._asks, self._asked_at = True, now

    def latest(self, now: float) -> Mapping[str, GpuState]:
        """Return the figures by UUID: none before the first answer, nor if the last one is old."""
        self._read(now)
        return self._known if now - self._known_since < SECONDS_VALID else {}

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child:
            self._child.end()
            self._child = None

    def _read(self, now: float) -> None:

        child = self._child
        if child is None or not self._asks:
            return
        answer = child.answer(now)
        if answer is None or (child.is_late and not child.has_ended):
            return
        self._asks = False
        self._known = dict(_decoded(answer, list[tuple[str, GpuState]]) or ())
        self._known_since = self._asked_at


def _encoded(question: Question[Any]) -> bytes:
    return json.encode(list(question()))


def _decoded(answer: str | bytes, kind: type[RowT]) -> RowT | None:
    try:
        return json.decode(answer, type=kind)
    # ValueError: an edited answer may have half of a character.
    except (MsgspecError, ValueError):
        return None


def _named(answer: str) -> str:
    rows = _decoded(answer, list[Wrong]) or ()
    return ", ".join(f"GPU {index} {words}" for index, words in rows)


def query_gpus() -> Iterator[Gpu]:
    """Yield the GPUs, each followed by its slices."""
    import pynvml

    # CUDA does not count one that is lost, or hidden from this container, either.
    for number, (_, handle, uuid) in enumerate(_handles(pynvml)):
        nvml = _Facts(pynvml, handle)
        info = nvml.get("nvmlDeviceGetPciInfo")
        gpu = Gpu(
            number,
            "" if info is None else _text(info.busId),
            uuid,
            vendor="nvidia",
            model=_text(nvml.get("nvmlDeviceGetName") or ""),
            listed_by="NVML",
            hints=Hints(
                nvml.near("nvmlDeviceGetCpuAffinityWithinScope"),
                nvml.near("nvmlDeviceGetMemoryAffinity"),
            ),
        )
        yield gpu
        yield from _slices(nvml, gpu)


def _slices(nvml: "_Facts", gpu: Gpu) -> Iterator[Gpu]:
    enabled, _ = nvml.get("nvmlDeviceGetMigMode") or (0, 0)
    for place in range(nvml.get("nvmlDeviceGetMaxMigDeviceCount") or 0 if enabled else 0):
        part = _Facts(nvml.pynvml, nvml.get("nvmlDeviceGetMigDeviceHandleByIndex", place))
        uuid = None if part.handle is None else part.get("nvmlDeviceGetUUID")
        # Places may have no slice, and a container may use only some of them.
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
    """Yield each GPU's UUID and figures."""
    import pynvml

    for _, handle, uuid in _handles(pynvml):
        nvml = _Facts(pynvml, handle)
        # One that is split into slices has no use of its own; some have no sensor.
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


def _memory(nvml: "_Facts") -> Any:  # as pynvml has it
    # Version 1 counts what the driver reserves as used: some hundred MiB of an idle GPU.
    version = getattr(nvml.pynvml, "nvmlMemory_v2", None)
    second = version and nvml.get("nvmlDeviceGetMemoryInfo", version)
    return second or nvml.get("nvmlDeviceGetMemoryInfo")


def query_faults() -> Iterator[Wrong]:
    """Yield the faults of all GPUs that this process may open."""
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
                yield index, lost[error.value]
            continue
        for read in (_pages, _rows, _recovery):
            yield from _wrong(pynvml, index, handle, read)


def query_slowdowns() -> Iterator[Wrong]:
    """Yield the slowdowns of all GPUs that this process may open."""
    import pynvml

    for index, handle, _ in _handles(pynvml):
        for read in (_clocks, _memory_errors, _link):
            yield from _wrong(pynvml, index, handle, read)


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


class _Facts:
    """One GPU's facts; None is one that it, its driver or this container does not support."""

    def __init__(self, pynvml: "ModuleType", handle: _Handle) -> None:
        self.pynvml = pynvml
        self.handle = handle

    def get(self, function: str, *args: Any) -> Any:  # as pynvml has it
        try:
            return getattr(self.pynvml, function)(self.handle, *args)
        except self.pynvml.NVMLError:
            return None

    def near(self, function: str) -> str:
        """Return the CPUs or nodes of an affinity, in list form."""
        words = self.get(function, _WORDS, self.pynvml.NVML_AFFINITY_SCOPE_NODE) or ()
        return str(
            CpuSet(
                64 * place + bit
                for place, word in enumerate(words)
                for bit in range(64)
                if word >> bit & 1
            )
        )


def _text(answer: str | bytes) -> str:
    # Old versions of pynvml answer in bytes.
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    return " ".join(text.split())


def _count(figure: float | None) -> int | None:
    return None if figure is None else max(0, round(figure))


def _wrong(
    pynvml: "ModuleType",
    index: int,
    handle: _Handle,
    read: Callable[["ModuleType", _Handle], Iterator[str]],
) -> Iterator[Wrong]:
    # This GPU, this driver or this pynvml may not be able to tell.
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
    # The driver asks for a reset or a reboot; 0 is "no action".
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
