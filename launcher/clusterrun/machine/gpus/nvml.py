"""NVML's list of GPUs, queried in a child that can be killed: the library hangs on a broken GPU."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterrun.domain.cpuset import CpuSet
from clusterrun.processes import close_all_but, forked, status_of

if TYPE_CHECKING:
    from types import ModuleType

SECONDS_TO_DIE = 1.0
"""How long the child is waited for after SIGKILL."""

_END = "end"
HUNG = "hung"
"""Stands for an answer that is late: opening any GPU may hang."""

_WORDS = 64
"""Room for 4096 CPUs or nodes: as many as Linux can have."""


class NvmlGpu(NamedTuple):
    """A GPU or a MIG slice; a slice follows the GPU that it is a part of."""

    address: str
    """PCI address as NVML writes it: ``00000000:17:00.0``; "" of a GPU on no PCI bus."""
    uuid: str
    model: str = ""
    cpus: str = ""
    """The local CPUs, in list form."""
    nodes: str = ""
    """The local NUMA nodes, in list form."""
    parent: str = ""
    """Of a slice, the UUID of its GPU."""
    legacy_name: str = ""
    """Of a slice, ``MIG-GPU-<UUID>/<GPU instance>/<compute instance>``."""


Question = Callable[[], Iterable[tuple[str, ...]]]
"""Returns rows of words without tabs and line ends."""


def ask_in_child(question: Question | None = None, timeout: float = 10.0) -> str:
    """Return NVML's answer, which ``gpus_in`` and ``answered_rows`` decode.

    Args:
        question: what the child does; None: it queries NVML.
        timeout: seconds, after which the child is killed.

    Returns:
        "", or half an answer, if NVML is missing or fails, or no process can be started; ``HUNG``
        if it takes too long.

    """
    try:
        child, reading = start_child(question or query_nvml, timeout)
    except OSError:
        return ""
    try:
        answer = _read_until_end(reading, time.monotonic() + timeout)
        return HUNG if answer is None else answer.decode(errors="replace")
    finally:
        os.close(reading)
        end_child(child, SECONDS_TO_DIE)


def start_child(question: Question, timeout: float) -> tuple[int, int]:
    """Start a child that asks, and ends itself a second after ``timeout``.

    Returns:
        Its process id, and the pipe with its answer.

    Raises:
        OSError: no process can be started.

    """
    reading, writing = os.pipe()
    try:
        return forked(partial(_answer, writing, question, timeout)), reading
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)


def end_child(child: int, seconds: float) -> None:
    """Kill a child, and wait for its end: one that is stuck in the driver outlives SIGKILL."""
    os.kill(child, signal.SIGKILL)
    status_of(child, seconds)


def gpus_in(answer: str) -> tuple[NvmlGpu, ...]:
    """Return each GPU that NVML lets us use, in NVML's order; () for half an answer."""
    rows = answered_rows(answer)
    return tuple(NvmlGpu(*fields) for fields in rows if len(fields) == len(NvmlGpu._fields))


def named_gpus(answer: str) -> str:
    """Return "GPU 3 is lost, GPU 5 ..." for rows of an index and what is wrong; "" for none."""
    return ", ".join(f"GPU {row[0]} {row[1]}" for row in answered_rows(answer) if len(row) == 2)


def answered_rows(answer: str) -> tuple[tuple[str, ...], ...]:
    """Return the rows that a question has yielded; () for half an answer."""
    *lines, last = answer.split("\n")
    return tuple(tuple(line.split("\t")) for line in lines) if last == _END else ()


def _answer(writing: int, question: Question, timeout: float) -> None:
    # Our connections must close when this process exits: a hung child must not hold them open.
    close_all_but({0, 1, 2, writing})
    # If our parent dies meanwhile, no other process ends a child that hangs.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, timeout + 1)
    lines = ["\t".join(gpu) for gpu in question()]
    os.write(writing, "\n".join([*lines, _END]).encode())


def _read_until_end(reading: int, deadline: float) -> bytes | None:
    answer = b""
    waiter = select.poll()
    waiter.register(reading, select.POLLIN)
    while waiter.poll(max(0.0, deadline - time.monotonic()) * 1000):
        chunk = os.read(reading, 65536)
        if not chunk:
            return answer
        answer += chunk
    return None


def query_nvml() -> Iterable[NvmlGpu]:
    """Yield the GPUs, each followed by its slices; may hang."""
    import pynvml

    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError:
            # Hidden from this container, or lost: CUDA does not count it either.
            continue
        query = _Query(pynvml, handle)
        gpu = query.gpu(uuid)
        yield gpu
        yield from query.slices(gpu)


class _Query:
    """Queries one GPU; a fact that its driver or this container does not support is empty."""

    def __init__(self, pynvml: "ModuleType", handle: Any) -> None:  # a C pointer
        self._pynvml = pynvml
        self._handle = handle

    def gpu(self, uuid: str) -> NvmlGpu:
        info = self._optional("nvmlDeviceGetPciInfo", self._handle)
        return NvmlGpu(
            address="" if info is None else _text(info.busId),
            uuid=uuid,
            model=_text(self._optional("nvmlDeviceGetName", self._handle) or ""),
            cpus=self._affinity("nvmlDeviceGetCpuAffinityWithinScope"),
            nodes=self._affinity("nvmlDeviceGetMemoryAffinity"),
        )

    def slices(self, gpu: NvmlGpu) -> Iterable[NvmlGpu]:
        enabled, _ = self._optional("nvmlDeviceGetMigMode", self._handle) or (0, 0)
        if not enabled:
            return
        for place in range(self._optional("nvmlDeviceGetMaxMigDeviceCount", self._handle) or 0):
            handle = self._optional("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, place)
            uuid = "" if handle is None else self._optional("nvmlDeviceGetUUID", handle)
            # Places may have no slice, and a container may use only some of them.
            if uuid:
                model = _text(self._optional("nvmlDeviceGetName", handle) or "")
                yield gpu._replace(
                    uuid=_text(uuid),
                    model=model,
                    parent=gpu.uuid,
                    legacy_name=self._legacy_name(gpu, handle),
                )

    def _legacy_name(self, gpu: NvmlGpu, handle: Any) -> str:  # a C pointer
        instance = self._optional("nvmlDeviceGetGpuInstanceId", handle)
        compute = self._optional("nvmlDeviceGetComputeInstanceId", handle)
        return f"MIG-{gpu.uuid}/{instance}/{compute}"

    def _affinity(self, function: str) -> str:
        scope = self._pynvml.NVML_AFFINITY_SCOPE_NODE
        words = self._optional(function, self._handle, _WORDS, scope) or ()
        return str(_bits(words))

    def _optional(self, function: str, *args: Any) -> Any:  # as pynvml has it
        try:
            return getattr(self._pynvml, function)(*args)
        except self._pynvml.NVMLError:
            return None


def _text(answer: str | bytes) -> str:
    # Old versions of pynvml answer in bytes.
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    return " ".join(text.split())


def _bits(words: Iterable[int]) -> CpuSet:
    return CpuSet(
        64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1
    )
