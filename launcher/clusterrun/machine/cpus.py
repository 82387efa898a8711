"""Reads from /sys the CPUs and how they form cores, packages, L3 caches and NUMA nodes."""

from collections.abc import Mapping

from msgspec import Struct

from clusterrun.cpuset import CpuSet
from clusterrun.machine.machine import NumaNode
from clusterrun.machine.tree import Tree, parse_number

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


class Processors(Struct, frozen=True):
    """The logical CPUs of a machine. The fields are those of ``Machine``."""

    online: CpuSet
    allowed: CpuSet
    isolated: CpuSet
    excluded_cpus: CpuSet
    cores: tuple[CpuSet, ...]
    cores_known: bool
    packages: tuple[CpuSet, ...]
    caches: tuple[CpuSet, ...]


def read_processors(tree: Tree, allowed: CpuSet | None) -> Processors:
    """Read the CPUs; ``allowed`` is our affinity, or None for that in the captured tree."""
    online = _online(tree)
    if allowed is None:
        allowed = _captured_affinity(tree, online)
    # A CPU in the affinity is online, even if a container's /sys does not list it.
    online = CpuSet(online | allowed)
    # The kernel never moves a thread from or to an isolated CPU, so all threads of a worker would share one.
    unbalanced = CpuSet(online & tree.cpu_list(f"{_CPUS}/isolated"))
    if allowed <= unbalanced:
        # The user has chosen isolated CPUs on purpose.
        isolated, excluded_cpus = CpuSet(), CpuSet(online - unbalanced)
    else:
        isolated, excluded_cpus = CpuSet(allowed & unbalanced), unbalanced
    cores, known = _cores(tree, online)
    packages, caches = _packages(tree, cores, online), _caches(tree, online)
    return Processors(
        online=online,
        allowed=CpuSet(allowed - isolated),
        isolated=isolated,
        excluded_cpus=excluded_cpus,
        cores=cores,
        cores_known=known,
        packages=packages,
        caches=caches,
    )


def read_nodes(tree: Tree, online: CpuSet) -> tuple[NumaNode, ...]:
    """Return the online NUMA nodes, sorted by id, with their CPUs that are in ``online``.

    Ids may be sparse, and ``possible`` may list nodes that do not exist. A kernel without NUMA lists
    no nodes.
    """
    ids = _ids(tree)
    memory = {number: _memory(tree, number) for number in ids}
    with_memory = _with_memory(tree, memory)
    return tuple(
        NumaNode(
            number,
            CpuSet(_cpus_of_node(tree, number) & online),
            _distances(tree, number, ids),
            number in with_memory,
            memory[number],
        )
        for number in ids
    )


def _online(tree: Tree) -> CpuSet:
    """Return the online CPUs, including those that a container hides; empty if unknown."""
    listed = tree.cpu_list(f"{_CPUS}/online")
    if listed:
        return CpuSet(listed | _hidden(tree, listed))
    return CpuSet(tree.numbers(_CPUS, "cpu"))


def _hidden(tree: Tree, online: CpuSet) -> CpuSet:
    """Return the CPUs that are online but not listed as online in a container's /sys.

    LXCFS (LXC, Proxmox) lists only the container's own CPUs as online, but all CPUs of a NUMA node.
    Without the others, a NUMA node shared with other containers would seem to be ours alone.
    """
    of_nodes = CpuSet.union_of(_cpus_of_node(tree, number) for number in _ids(tree))
    listed = CpuSet(of_nodes - online)
    if not listed:
        return listed
    # Old kernels and edited trees also list CPUs of a node that are offline or absent.
    present = tree.cpu_list(f"{_CPUS}/present") or listed
    existing = listed & present - tree.cpu_list(f"{_CPUS}/offline")
    return CpuSet(cpu for cpu in existing if tree.text(f"{_CPUS}/cpu{cpu}/online") != "0")


def _captured_affinity(tree: Tree, online: CpuSet) -> CpuSet:
    allowed = tree.status_cpus("Cpus_allowed_list")
    if allowed:
        return CpuSet(allowed & online) or online
    # A captured container may use the CPUs that its /sys lists as online.
    return tree.cpu_list(f"{_CPUS}/online") or online


def _cores(tree: Tree, online: CpuSet) -> tuple[tuple[CpuSet, ...], bool]:
    """Return the CPUs of each core, and whether /sys shows the core of any CPU."""
    cores = []
    known = False
    left = set(online)
    for cpu in sorted(online):
        if cpu in left:
            # thread_siblings is the name from before Linux 5.3 and still exists.
            siblings = _listed(tree, cpu, "thread_siblings", "core_cpus")
            known = known or bool(siblings)
            # In virtual machines cores may overlap. A CPU belongs to the first core that lists it.
            core = CpuSet((siblings & left) | {cpu})
            left -= core
            cores.append(core)
    return tuple(cores), known


def _listed(tree: Tree, cpu: int, *names: str) -> CpuSet:
    """Return the CPUs in the first of these topology files of a CPU, ``NAME_list`` or the mask ``NAME``."""
    paths = (f"{_CPUS}/cpu{cpu}/topology/{name}" for name in names)
    found = (tree.cpu_list(f"{path}_list") or tree.cpu_map(path) for path in paths)
    return next(filter(None, found), CpuSet())


def _packages(tree: Tree, cores: tuple[CpuSet, ...], online: CpuSet) -> tuple[CpuSet, ...]:
    packages: dict[int, set[int]] = {}
    left = set(online)
    for core in cores:
        first = min(core)
        if first not in left:
            continue
        left -= core
        number = tree.integer(f"{_CPUS}/cpu{first}/topology/physical_package_id")
        # -1 means that the firmware does not know it.
        if number is not None and number >= 0:
            # One CPU lists its whole package, so the files of the other cores are not read.
            around = CpuSet(_listed(tree, first, "core_siblings", "package_cpus") & left)
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
    """Return the CPUs that share the L3 cache of ``cpu``; empty if it has none.

    CPUs without an L3 cache exist beside others that have one: low-power cores of Intel's Arrow Lake.
    """
    # The index is not the level: on s390, index3 is the L2 instruction cache and index4 the L3.
    for name in tree.names(f"{_CPUS}/cpu{cpu}/cache"):
        cache = f"{_CPUS}/cpu{cpu}/cache/{name}"
        if tree.text(f"{cache}/level") == "3" and tree.text(f"{cache}/type") != "Instruction":
            return tree.cpu_list(f"{cache}/shared_cpu_list") or tree.cpu_map(
                f"{cache}/shared_cpu_map"
            )
    return CpuSet()


def _ids(tree: Tree) -> tuple[int, ...]:
    present = set(tree.numbers(_NODES, "node"))
    listed = tree.cpu_list(f"{_NODES}/online")
    return tuple(sorted(present & listed if listed else present))


def _cpus_of_node(tree: Tree, number: int) -> CpuSet:
    directory = f"{_NODES}/node{number}"
    return tree.cpu_list(f"{directory}/cpulist") or tree.cpu_map(f"{directory}/cpumap")


def _distances(tree: Tree, number: int, ids: tuple[int, ...]) -> dict[int, int]:
    columns = [
        parse_number(column) for column in tree.text(f"{_NODES}/node{number}/distance").split()
    ]
    known = [column for column in columns if column is not None]
    # There is a column for each online node, by id. Other numbers of columns can't be matched.
    return dict(zip(ids, known, strict=True)) if len(ids) == len(columns) == len(known) else {}


def _with_memory(tree: Tree, memory: Mapping[int, int | None]) -> frozenset[int]:
    """Return the NUMA nodes with memory that our cpuset lets us use."""
    if len(memory) == 1:
        # The only node has all the memory.
        return frozenset(memory)
    allowed = tree.status_cpus("Mems_allowed_list") or CpuSet(memory)
    listed = tree.cpu_list(f"{_NODES}/has_memory")
    known = {number for number, size in memory.items() if size is not None}
    others = listed - known if listed else allowed - known
    return frozenset(number for number in allowed if memory.get(number) or number in others)


def _memory(tree: Tree, number: int) -> int | None:
    # Lines read "Node 0 MemTotal: 8386704 kB".
    facts = tree.facts(f"{_NODES}/node{number}/meminfo", ":")
    size = parse_number(facts.get(f"Node {number} MemTotal", "").removesuffix(" kB"))
    return None if size is None else size << 10
