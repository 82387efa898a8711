"""The CPUs and which of them form cores, packages and caches, from /sys/devices/system/cpu."""

from msgspec import Struct

from clusterrun.domain.cpuset import CpuSet
from clusterrun.machine.numa_nodes import cpus_of_nodes
from clusterrun.machine.tree import Tree

_CPUS = "sys/devices/system/cpu"


class Processors(Struct, frozen=True):
    """The logical CPUs of a machine, grouped as its ``domain.machine.Machine`` has them."""

    online: CpuSet
    allowed: CpuSet
    cores: tuple[CpuSet, ...]
    cores_known: bool
    packages: tuple[CpuSet, ...]
    caches: tuple[CpuSet, ...]


def read_processors(tree: Tree, allowed: CpuSet | None) -> Processors:
    """Read the CPUs; ``allowed`` is our affinity, None: the captured tree's."""
    online = online_cpus(tree)
    if allowed is None:
        allowed = _captured_affinity(tree, online)
    # An affinity has only CPUs that run, even if a container's /sys does not list them as online.
    online = CpuSet(online | allowed)
    cores, known = _cores(tree, online)
    packages, caches = _packages(tree, cores, online), _caches(tree, online)
    return Processors(online, allowed, cores, known, packages, caches)


def online_cpus(tree: Tree) -> CpuSet:
    """Return the CPUs that run, including those that a container hides; none if unknown."""
    listed = tree.cpu_list(f"{_CPUS}/online")
    if listed:
        return CpuSet(listed | _hidden(tree, listed))
    return CpuSet(tree.numbers(_CPUS, "cpu"))


def _hidden(tree: Tree, online: CpuSet) -> CpuSet:
    """Return the CPUs that run, but that a container's /sys does not list as online.

    Lxcfs (LXC, Proxmox) lists a container's own CPUs there, and leaves the lists of nodes alone.
    Without the others, a node that other containers share would seem to be ours alone.
    """
    listed = CpuSet(cpus_of_nodes(tree) - online)
    if not listed:
        return listed
    # Old kernels, and trees that were edited, list CPUs of a node that are offline or absent.
    present = tree.cpu_list(f"{_CPUS}/present") or listed
    existing = listed & present - tree.cpu_list(f"{_CPUS}/offline")
    return CpuSet(cpu for cpu in existing if tree.text(f"{_CPUS}/cpu{cpu}/online") != "0")


def _captured_affinity(tree: Tree, online: CpuSet) -> CpuSet:
    allowed = tree.own_status("Cpus_allowed_list")
    if allowed:
        return CpuSet(allowed & online) or online
    # A captured container may use what its /sys lists as online.
    return tree.cpu_list(f"{_CPUS}/online") or online


def _cores(tree: Tree, online: CpuSet) -> tuple[tuple[CpuSet, ...], bool]:
    """Return the CPUs of each core, and whether /sys shows the core of any CPU."""
    cores = []
    known = False
    left = set(online)
    for cpu in sorted(online):
        if cpu in left:
            siblings = _siblings(tree, cpu)
            known = known or bool(siblings)
            # Tables of virtual machines may overlap: a CPU belongs to the first core that lists it.
            core = CpuSet((siblings & left) | {cpu})
            left -= core
            cores.append(core)
    return tuple(cores), known


def _siblings(tree: Tree, cpu: int) -> CpuSet:
    topology = f"{_CPUS}/cpu{cpu}/topology"
    # thread_siblings_list is the name before Linux 5.3, and still exists.
    return (
        tree.cpu_list(f"{topology}/thread_siblings_list")
        or tree.cpu_list(f"{topology}/core_cpus_list")
        or tree.cpu_map(f"{topology}/thread_siblings")
    )


def _packages(tree: Tree, cores: tuple[CpuSet, ...], online: CpuSet) -> tuple[CpuSet, ...]:
    packages: dict[int, set[int]] = {}
    left = set(online)
    for core in cores:
        first = min(core)
        if first not in left:
            continue
        left -= core
        number = tree.integer(f"{_CPUS}/cpu{first}/topology/physical_package_id")
        # -1: the firmware does not know.
        if number is not None and number >= 0:
            # One CPU lists its whole package, so the files of its other cores are not read.
            around = tree.cpu_list(f"{_CPUS}/cpu{first}/topology/core_siblings_list") & left
            left -= around
            packages.setdefault(number, set()).update(core, around)
    return tuple(sorted((CpuSet(cpus) for cpus in packages.values()), key=min))


def _caches(tree: Tree, online: CpuSet) -> tuple[CpuSet, ...]:
    caches = []
    left = set(online)
    for cpu in sorted(online):
        if cpu in left:
            shared = CpuSet(_sharing_l3(tree, cpu) & left)
            if shared:
                left -= shared
                caches.append(shared)
    return tuple(caches)


def _sharing_l3(tree: Tree, cpu: int) -> CpuSet:
    """Return the CPUs that share the L3 cache of ``cpu``; none if it has none."""
    # The number of an index is no level: s390 has the instructions of L2 at 3, and L3 at 4.
    for name in tree.names(f"{_CPUS}/cpu{cpu}/cache"):
        cache = f"{_CPUS}/cpu{cpu}/cache/{name}"
        if tree.text(f"{cache}/level") == "3" and tree.text(f"{cache}/type") != "Instruction":
            return tree.cpu_list(f"{cache}/shared_cpu_list")
    return CpuSet()
