"""Readers of /sys/devices/system/cpu: which CPUs there are, and which of them are one core."""

from typing import NamedTuple

from launcher.domain.cpuset import CpuSet
from launcher.machine.tree import Tree, cpus_of

_CPUS = "sys/devices/system/cpu"


class Processors(NamedTuple):
    """The logical CPUs of a machine, grouped as its ``domain.machine.Machine`` has them."""

    online: CpuSet
    allowed: CpuSet
    cores: tuple[CpuSet, ...]
    cores_known: bool
    packages: tuple[CpuSet, ...]
    caches: tuple[CpuSet, ...]


def read_processors(tree: Tree, allowed: CpuSet | None) -> Processors:
    """Read the CPUs; ``allowed`` is our affinity, None where a captured tree has to tell it."""
    online = online_cpus(tree)
    if allowed is None:
        allowed = _captured_affinity(tree, online)
    # The kernel cuts an affinity with the CPUs that run. What /sys calls online may be another
    # machine's view: lxcfs numbers a container's CPUs from 0.
    online = CpuSet(online | allowed)
    cores, known = _cores(tree, online)
    packages, caches = _packages(tree, cores, online), _caches(tree, online)
    return Processors(online, allowed, cores, known, packages, caches)


def online_cpus(tree: Tree) -> CpuSet:
    """Return the CPUs that run; none where nothing tells."""
    listed = tree.cpu_list(f"{_CPUS}/online")
    if listed:
        return listed
    numbers = (name.removeprefix("cpu") for name in tree.names(_CPUS) if name.startswith("cpu"))
    return CpuSet(int(number) for number in numbers if number.isdecimal())


def _captured_affinity(tree: Tree, online: CpuSet) -> CpuSet:
    for line in tree.text("proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return CpuSet(cpus_of(value) & online) or online
    return online


def _cores(tree: Tree, online: CpuSet) -> tuple[tuple[CpuSet, ...], bool]:
    """Return the CPUs of each core, and whether any CPU told of its core."""
    cores = []
    known = False
    left = set(online)
    for cpu in sorted(online):
        if cpu in left:
            siblings = _siblings(tree, cpu)
            known = known or bool(siblings)
            # Tables of virtual machines may overlap: a CPU belongs to the first core that names it.
            core = CpuSet((siblings & left) | {cpu})
            left -= core
            cores.append(core)
    return tuple(cores), known


def _siblings(tree: Tree, cpu: int) -> CpuSet:
    topology = f"{_CPUS}/cpu{cpu}/topology"
    # thread_siblings_list is the name before Linux 5.3, and still there.
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
        # -1 is the kernel's word for "the firmware doesn't say".
        if number is not None and number >= 0:
            # One CPU tells of its whole package, so that not every core need be asked.
            around = tree.cpu_list(f"{_CPUS}/cpu{first}/topology/core_siblings_list") & left
            left -= around
            packages.setdefault(number, set()).update(core, around)
    return tuple(sorted((CpuSet(cpus) for cpus in packages.values()), key=min))


def _caches(tree: Tree, online: CpuSet) -> tuple[CpuSet, ...]:
    caches = []
    left = set(online)
    for cpu in sorted(online):
        if cpu in left:
            cache = f"{_CPUS}/cpu{cpu}/cache/index3"
            shared = CpuSet(tree.cpu_list(f"{cache}/shared_cpu_list") & left)
            if shared:
                left -= shared
                caches.append(shared)
    return tuple(caches)
