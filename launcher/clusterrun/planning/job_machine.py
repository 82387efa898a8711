"""The machine as one job may use it, and how many workers the job has there.

``--numa-map`` replaces the NUMA nodes of GPUs that the machine's tables have (docs/binding.md S3.1),
``--devices`` chooses GPUs, and a platform may have assigned a NUMA node.
"""

from collections.abc import Sequence
from typing import assert_never

from msgspec.structs import replace

from clusterrun.bounds import MOST_WORKERS
from clusterrun.cpuset import CpuSet, runs
from clusterrun.errors import UsageError
from clusterrun.job.declaring import Fact
from clusterrun.job.job import Job
from clusterrun.job.values import MappedGpu, WorkerCount
from clusterrun.machine.machine import Gpu, Machine
from clusterrun.planning.variables import goes_by_id

ONE_SLICE = "CUDA shows a process one MIG slice, and no other GPU"


def machine_for(job: Job, machine: Machine) -> Machine:
    """Return the inspected ``machine`` as ``job`` may use it; every plan is made from that.

    Raises:
        UsageError: --numa-map or --devices names a GPU, a node or a CPU that is not on the machine.

    """
    machine = with_map(machine, job.fact("numa_map"))
    return _on_assigned_node(job, _with_devices(machine, job.fact("devices")))


def with_map(machine: Machine, numa_map: Fact[tuple[MappedGpu, ...]]) -> Machine:
    """Return the machine with its GPUs placed as the user's map has them.

    Raises:
        UsageError: the map names a GPU, a node or a CPU that is not on the machine.

    """
    for entry in numa_map.value:
        devices = _devices(machine, entry, numa_map.origin)
        machine = _with_entry(machine, entry, devices, numa_map.origin)
    return machine


def _devices(machine: Machine, entry: MappedGpu, origin: str) -> frozenset[str]:
    found = {gpu.device for gpu in machine.gpus if _is_named(gpu, entry.gpu)}
    # A map of the whole machine may also name GPUs that a container hides.
    found |= {gpu.bdf for gpu in machine.pci_gpus if _is_address(entry.gpu, gpu.bdf)}
    if not found:
        known = ", ".join(f"{gpu.index} ({gpu.device})" for gpu in machine.gpus) or "none"
        raise UsageError(
            f"{origin}: this machine has no GPU {entry.gpu}",
            f"give a GPU by index, PCI address or UUID; this machine has: {known}",
        )
    return frozenset(found)


def _is_named(gpu: Gpu, name: str) -> bool:
    if name.isdecimal():
        return gpu.index == int(name)
    is_uuid = bool(gpu.uuid) and name.lower() in {gpu.uuid.lower(), gpu.parent.lower()}
    return is_uuid or _is_address(name, gpu.bdf)


def _is_address(name: str, bdf: str) -> bool:
    # NVML and nvidia-smi write eight digits of domain, lspci often none.
    whole = name.lower() if name.count(":") == 2 else f":{name.lower()}"
    return whole.lstrip("0") == bdf.lstrip("0")


def _with_entry(
    machine: Machine, entry: MappedGpu, devices: frozenset[str], origin: str
) -> Machine:
    place = entry.place
    if isinstance(place, int):
        node = _expect_node(machine, entry, place, origin)
        cpus = CpuSet()
    else:
        node, cpus = None, _expect_cpus(machine, entry, place, origin)

    def moved(gpu: Gpu) -> Gpu:
        if gpu.device not in devices:
            return gpu
        return replace(gpu, numa_node=node, mapped_cpus=cpus, node_source=origin)

    return replace(
        machine,
        gpus=tuple(map(moved, machine.gpus)),
        visible=tuple(map(moved, machine.visible)),
        pci_gpus=tuple(
            replace(gpu, numa_node=node) if gpu.bdf in devices else gpu for gpu in machine.pci_gpus
        ),
    )


def _expect_node(machine: Machine, entry: MappedGpu, number: int, origin: str) -> int:
    with_cpus = [node.id for node in machine.nodes if node.cpus]
    if number not in with_cpus:
        known = ",".join(runs(with_cpus)) or "none"
        raise UsageError(
            f"{origin}: {entry}, but this machine has no NUMA node {number} with CPUs",
            f"give a NUMA node that has CPUs ({known}), or the CPUs themselves",
        )
    return number


def _expect_cpus(machine: Machine, entry: MappedGpu, cpus: CpuSet, origin: str) -> CpuSet:
    known = CpuSet.union_of([*machine.cores, machine.allowed])
    unknown = CpuSet(cpus - known)
    if unknown:
        raise UsageError(
            f"{origin}: {entry}, but this machine has no CPUs {unknown}",
            f"give CPUs of this machine ({known}); for a node, type {entry.gpu}=node0",
        )
    return cpus


def _with_devices(machine: Machine, chosen: Fact[tuple[str, ...]]) -> Machine:
    """Return the machine with only the GPUs of ``--devices`` visible, if any (docs/binding.md S2).

    GPUs keep their names: of 4,5,6,7 one may choose 6,4. Intel's runtime keeps the bus order.
    """
    if not chosen.value:
        return machine
    gpus = [_named(machine, name, chosen) for name in chosen.value]
    for at, name in enumerate(chosen.value):
        if gpus[at] in gpus[:at]:
            raise UsageError(
                f"{chosen.origin}: {name} names a GPU twice",
                f"give each GPU once: --devices {_that_work(machine, chosen.value)}",
            )
    if gpus[0].vendor == "intel":
        gpus.sort(key=lambda gpu: gpu.index)
    visible_remark = machine.visible_remark
    if goes_by_id(machine, gpus):
        # The runtime finds them by UUID, in whichever order it would number them.
        known = {gpu.uuid: gpu for gpu in machine.gpus}
        gpus, visible_remark = [known.get(gpu.uuid, gpu) for gpu in gpus], ""
    origin = f"{chosen.origin} {','.join(chosen.value)}"
    return replace(
        machine, visible=tuple(gpus), visible_origin=origin, visible_remark=visible_remark
    )


def _named(machine: Machine, name: str, chosen: Fact[tuple[str, ...]]) -> Gpu:
    origin = chosen.origin
    if not machine.visible:
        raise UsageError(
            f"{origin}: no GPU is visible ({why_none(machine)})",
            f"leave {origin} out; to choose GPUs that clusterrun does not find, set their variable:\n"
            "  --env CUDA_VISIBLE_DEVICES=0,1 --nproc-per-node 2",
        )
    found = _gpus_of(machine, name)
    if len(found) == 1:
        return found[0]
    wrong = "is the beginning of several UUIDs" if found else "is not visible"
    kind = "GPU " if name.isdecimal() else ""
    raise UsageError(
        f"{origin}: {kind}{name} {wrong}",
        f"give some of {_names(_choice(machine))} ({machine.visible_origin}),"
        f" as in --devices {_that_work(machine, chosen.value)}",
    )


def _choice(machine: Machine) -> list[Gpu]:
    ids = {gpu.uuid for gpu in machine.visible}
    # CUDA shows a whole GPU by its number, and finds its slices by their names.
    return [*machine.visible, *(gpu for gpu in machine.gpus if gpu.parent in ids - {""})]


def _gpus_of(machine: Machine, name: str) -> list[Gpu]:
    choice = _choice(machine)
    return [gpu for gpu in choice if gpu.uuid == name] or [gpu for gpu in choice if _is(gpu, name)]


def _that_work(machine: Machine, chosen: Sequence[str]) -> str:
    """Return a value for ``--devices``: of what was chosen the names that are right, else one GPU."""
    right: dict[Gpu, str] = {}
    for name in chosen:
        gpus = _gpus_of(machine, name)
        if len(gpus) == 1:
            right.setdefault(gpus[0], name)
    return ",".join(right.values()) or _names(machine.visible[:1])


def _is(gpu: Gpu, name: str) -> bool:
    if name.isdecimal():
        return not gpu.parent and gpu.index == int(name)
    return gpu.uuid.lower().startswith(name.lower())


def _names(gpus: Sequence[Gpu]) -> str:
    numbers = runs(gpu.index for gpu in gpus if not gpu.parent)
    return ",".join([*numbers, *(gpu.uuid for gpu in gpus if gpu.parent)])


def why_none(machine: Machine) -> str:
    return (
        machine.visible_remark
        or machine.visible_origin
        or machine.accelerators
        or "no driver and no file in /sys shows one"
    )


def _on_assigned_node(job: Job, machine: Machine) -> Machine:
    """Leave the job the CPUs of the NUMA node that its platform assigned to it.

    Every worker belongs to that node, wherever its GPU is: the CPUs of the other nodes are another
    job's. A node that does not exist, or of which no CPU is allowed, is ignored.
    """
    node = next((node for node in machine.nodes if node.id == job.numa_node), None)
    allowed = CpuSet(node.cpus & machine.allowed) if node else CpuSet()
    if node is None or not allowed:
        return machine
    visible = tuple(replace(gpu, numa_node=node.id) for gpu in machine.visible)
    return replace(machine, allowed=allowed, visible=visible)


def local_size(job: Job, machine: Machine) -> int:
    """Return the number of workers on this node; ``machine`` is the node as the job may use it.

    Raises:
        UsageError: the number depends on GPUs and none is visible; there are too few GPUs for the
            workers, or too many workers; or the job allows one worker only (``--exec``, a script on
            standard input, unclear ranks), and there would be several.

    """
    workers = _wanted(job, machine)
    if workers > MOST_WORKERS:
        raise UsageError(
            f"nproc_per_node is {job.fact('nproc_per_node')}: a node starts {MOST_WORKERS} workers"
            " at most",
            "give as many as there are GPUs, or CPUs",
        )
    _expect_gpus(job, machine, workers)
    if job.unclear and workers != 1:
        raise UsageError(
            f"{job.origin('node_rank')} is {job.workers.node_rank} and {job.origin('nnodes')}"
            f" {job.nnodes}, which may count nodes or processes, and there would be {workers}"
            f" workers here (nproc_per_node: {job.origin('nproc_per_node')})",
            job.unclear,
        )
    if job.script.is_standard_input and workers != 1:
        raise UsageError(
            f"the script is read from standard input ({job.script.name}), which only one worker can"
            f" do, and there would be {workers} (nproc_per_node: {job.origin('nproc_per_node')})",
            "save it to a file and give that, or type --nproc-per-node 1",
        )
    if job.starting.exec and workers != 1:
        raise UsageError(
            f"{job.origin('exec')}: one process can't become {workers} workers"
            f" (nproc_per_node: {job.origin('nproc_per_node')})",
            "give --nproc-per-node 1, or have one task for each worker:\n"
            f"  srun --ntasks-per-node={workers} clusterrun {job.origin('exec')} ...",
        )
    return workers


def count_shown(job: Job, machine: Machine) -> int:
    """Return how many of the visible GPUs a process can use.

    A process to which CUDA shows a MIG slice sees no other slice, and no other GPU (docs/binding.md,
    decision 3). If each worker sees only its own, all of them can be used.
    """
    visible = machine.visible
    if job.placing.virtual_local_rank or not split_gpus(machine):
        return len(visible)
    return 1


def as_cuda_shows(job: Job, machine: Machine, workers: int) -> Machine:
    """Return the machine with the visible GPUs as ``workers`` meet them, by their rank.

    If one is split, CUDA shows each worker the first slice, and no other GPU. With
    ``--virtual-local-rank`` a worker sees its own GPU only.
    """
    split = split_gpus(machine)
    if job.placing.virtual_local_rank or not split:
        return machine
    rest = (gpu for gpu in machine.visible if gpu != split[0])
    # More workers than GPUs are not bound, nor tasks that see too few: these stay too few.
    copies = workers if workers <= len(machine.visible) else 1
    return replace(machine, visible=(*split[:1] * copies, *rest))


def split_gpus(machine: Machine) -> tuple[Gpu, ...]:
    """Return those of the visible GPUs that are MIG slices, or are split into some."""
    parents = {gpu.parent for gpu in machine.gpus} - {""}
    return tuple(gpu for gpu in machine.visible if gpu.parent or gpu.uuid in parents)


def _wanted(job: Job, machine: Machine) -> int:
    wanted = job.workers.nproc_per_node
    visible = count_shown(job, machine)
    if visible:
        # At least one: ``_expect_gpus`` then refuses it.
        visible = max(1, visible // (job.placing.gpus_per_worker or 1))
    match wanted:
        case int():
            return wanted
        case WorkerCount.PER_GPU:
            return visible or 1
        case WorkerCount.AUTO:
            return visible or _usable_cpus(machine)
        case WorkerCount.GPU:
            return visible or _no_gpu(job, machine)
        case WorkerCount.CPU:
            return _usable_cpus(machine)
        case _:
            assert_never(wanted)


def _usable_cpus(machine: Machine) -> int:
    """Return how many CPUs a job can keep busy: the cgroup's quota may be of fewer than are allowed."""
    count, quota = len(machine.allowed), machine.cpu_quota
    return count if quota is None else max(1, min(count, int(quota)))


def _expect_gpus(job: Job, machine: Machine, workers: int) -> None:
    each, visible = job.fact("gpus_per_worker"), len(machine.visible)
    if each.value is None:
        _expect_gpu_each(job, machine, workers)
    if not each.value:
        return
    if each.value > 1 and split_gpus(machine):
        raise UsageError(
            f"gpus_per_worker is {each}, but {ONE_SLICE}",
            "leave gpus_per_worker out, and add --virtual-local-rank: each worker gets one",
        )
    if workers * each.value <= visible:
        return
    needed = "1 worker needs" if workers == 1 else f"{workers} workers need"
    there = "1 is" if visible == 1 else f"{visible or 'none'} {'are' if visible else 'is'}"
    raise UsageError(
        f"gpus_per_worker is {each}: {needed} {workers * each.value} GPUs, but {there} visible",
        "give fewer workers (--nproc-per-node), or fewer GPUs to each (--gpus-per-worker)",
    )


def _expect_gpu_each(job: Job, machine: Machine, workers: int) -> None:
    """Refuse more workers than GPUs if the number of workers was set (docs/binding.md, decision 3)."""
    shown = count_shown(job, machine)
    if not shown or workers <= shown or not isinstance(job.workers.nproc_per_node, int):
        return
    asked = f"nproc_per_node is {job.fact('nproc_per_node')}"
    shared = "or, if workers share GPUs or use none, add --gpus-per-worker 0"
    if shown < len(machine.visible):
        raise UsageError(
            f"{asked}, but {ONE_SLICE}",
            f"give each worker its own: add --virtual-local-rank\n{shared}",
        )
    are = "GPU is" if shown == 1 else "GPUs are"
    raise UsageError(
        f"{asked}, but {shown} {are} visible ({machine.visible_origin})",
        f"give --nproc-per-node {shown}\n{shared}",
    )


def _no_gpu(job: Job, machine: Machine) -> int:
    raise UsageError(
        f"nproc_per_node is gpu ({job.origin('nproc_per_node')}), but no GPU is visible"
        f" ({why_none(machine)})",
        "give a number, as in --nproc-per-node 2, or --nproc-per-node cpu",
    )
