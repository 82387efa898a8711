"""The machine as one job may use it: the user's NUMA map, the chosen GPUs and the assigned node applied."""

from collections.abc import Sequence

from msgspec.structs import replace

from clusterrun.domain.cpuset import CpuSet, runs
from clusterrun.domain.facts import Fact
from clusterrun.domain.machine import Gpu, Machine
from clusterrun.errors import UsageError
from clusterrun.job.job import Job
from clusterrun.planning.variables.gpu_variables import goes_by_id


def machine_for(job: Job, machine: Machine) -> Machine:
    """Return the inspected ``machine`` as ``job`` may use it; every plan is made from that.

    Raises:
        UsageError: --numa-map or --devices names a GPU, a node or a CPU that is not on the machine.

    """
    if job.placing.numa_map:
        from clusterrun.planning.binding.numa_map import with_map

        machine = with_map(machine, job.fact("numa_map"))
    return _on_assigned_node(job, _with_devices(machine, job.fact("devices")))


def _with_devices(machine: Machine, chosen: Fact[tuple[str, ...]]) -> Machine:
    """Return the machine with only the GPUs of ``--devices`` visible, if any (docs/binding.md S2).

    GPUs keep their names: of 4,5,6,7 one may choose 6,4. Intel's runtime keeps the bus order.

    Raises:
        UsageError: one of them is not visible, or is listed twice.

    """
    if not chosen.value:
        return machine
    gpus = [_named(machine, name, chosen.origin) for name in chosen.value]
    for at, name in enumerate(chosen.value):
        if gpus[at] in gpus[:at]:
            raise UsageError(f"{chosen.origin}: {name} names a GPU twice", "give each GPU once")
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


def _named(machine: Machine, name: str, origin: str) -> Gpu:
    visible = machine.visible
    if not visible:
        raise UsageError(
            f"{origin}: no GPU is visible ({why_none(machine)})",
            f"leave {origin} out; to choose GPUs that clusterrun does not find, set their variable:\n"
            "  --env CUDA_VISIBLE_DEVICES=0,1 --nproc-per-node 2",
        )
    ids = {gpu.uuid for gpu in visible}
    # CUDA shows a whole GPU by its number, and finds its slices by their names.
    slices = [gpu for gpu in machine.gpus if gpu.parent in ids - {""}]
    choice = [*visible, *slices]
    found = [gpu for gpu in choice if gpu.uuid == name] or [gpu for gpu in choice if _is(gpu, name)]
    if len(found) == 1:
        return found[0]
    wrong = "is the beginning of several UUIDs" if found else "is not visible"
    kind = "GPU " if name.isdecimal() else ""
    raise UsageError(
        f"{origin}: {kind}{name} {wrong}",
        f"choose from {_names(choice)} ({machine.visible_origin})",
    )


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
