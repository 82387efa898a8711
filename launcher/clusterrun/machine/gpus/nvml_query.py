"""Which GPUs NVML lists, each with what NVML has of it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterrun.domain.cpuset import CpuSet

if TYPE_CHECKING:
    from types import ModuleType

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
    """One GPU; what its driver, or this container, does not support is left empty."""

    def __init__(self, pynvml: "ModuleType", handle: Any) -> None:  # noqa: ANN401 - a C pointer
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

    def _legacy_name(self, gpu: NvmlGpu, handle: Any) -> str:  # noqa: ANN401 - a C pointer
        instance = self._optional("nvmlDeviceGetGpuInstanceId", handle)
        compute = self._optional("nvmlDeviceGetComputeInstanceId", handle)
        return f"MIG-{gpu.uuid}/{instance}/{compute}"

    def _affinity(self, function: str) -> str:
        scope = self._pynvml.NVML_AFFINITY_SCOPE_NODE
        words = self._optional(function, self._handle, _WORDS, scope) or ()
        return str(_bits(words))

    def _optional(self, function: str, *args: Any) -> Any:  # noqa: ANN401 - as pynvml has it
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
