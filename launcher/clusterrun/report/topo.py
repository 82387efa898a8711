"""What ``clusterrun topo`` prints: the machine by packages and NUMA nodes, and its workers."""

from collections.abc import Iterator, Sequence

from clusterrun.domain.counts import counted
from clusterrun.domain.cpuset import CpuSet, runs
from clusterrun.domain.machine import Gpu, Machine, NumaNode, nearest_with_cpus
from clusterrun.domain.plan import NodePlan
from clusterrun.report.cpu_numbers import siblings, strided
from clusterrun.report.distances import describe_distances
from clusterrun.report.drawing import (
    DIM,
    GOOD,
    NAME,
    STRONG,
    Cell,
    Row,
    Style,
    draw_lines,
    draw_tree,
)
from clusterrun.report.json_output import identity
from clusterrun.report.worker_table import remarks_in, worker_table

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"))


def topo_text(name: str, machine: Machine, plan: NodePlan, style: Style) -> str:
    """Return the drawing, without a trailing newline; ``name`` is the machine's title."""
    title = f"workers, GPUs by {plan.visible_origin}" if plan.visible_origin else "workers"
    table = draw_lines((f"  {line}" for line in worker_table(plan)), style)
    parts = (
        draw_lines([f"{name}: {_summary(machine)}"], style, STRONG),
        draw_tree(list(_packages(machine, style)), style),
        draw_lines(_notes(machine), style),
        f"{draw_lines([title], style, STRONG)}\n{table}",
        draw_lines((f"remark: {remark}" for remark in remarks_in(plan)), style),
    )
    return "\n\n".join(filter(None, parts))


def _summary(machine: Machine) -> str:
    cpus = CpuSet.union_of(machine.cores)
    counts = (
        (len(machine.packages), "package"),
        (len(machine.nodes), "NUMA node"),
        (len(machine.cores) if machine.cores_known else 0, "core"),
        (len(cpus), "CPU"),
        (sum(not gpu.parent for gpu in machine.gpus), "GPU"),
    )
    return ", ".join(counted(number, name) for number, name in counts if number)


def _packages(machine: Machine, style: Style) -> Iterator[Row]:
    """Yield each package with its nodes, then nodes, CPUs and GPUs that are in no single package."""
    left = list(machine.nodes)
    for number, package in enumerate(machine.packages):
        inside = [node for node in left if _is_inside(node, package, machine)]
        left = [node for node in left if node not in inside]
        alone = package - CpuSet.union_of(node.cpus for node in machine.nodes)
        rows = _nodes(inside, machine, style)
        if alone:
            rows.append(Row("cores", _cores(CpuSet(alone), machine, style)))
        if rows:
            yield Row("package", [Cell(f"package {number}", STRONG)], rows)
    yield from _nodes(left, machine, style)
    somewhere = CpuSet.union_of([*machine.packages, *(node.cpus for node in machine.nodes)])
    if nowhere := CpuSet(CpuSet.union_of(machine.cores) - somewhere):
        yield Row("cores", _cores(nowhere, machine, style))
    if gpus := _gpus_on(None, machine):
        yield Row("package", [Cell("NUMA node unknown", STRONG)], gpus)


def _is_inside(node: NumaNode, package: CpuSet, machine: Machine) -> bool:
    # A node without CPUs is where all nodes are that are nearest to it.
    places = [node] if node.cpus else nearest_with_cpus(node, machine.nodes)
    return bool(places) and CpuSet.union_of(place.cpus for place in places) <= package


def _nodes(nodes: Sequence[NumaNode], machine: Machine, style: Style) -> list[Row]:
    """Return a row for each node with CPUs, and one for all memory that is nearest to the same."""
    memory: dict[tuple[int, ...], list[NumaNode]] = {}
    for node in nodes:
        if not node.cpus:
            nearest = tuple(near.id for near in nearest_with_cpus(node, machine.nodes))
            memory.setdefault(nearest, []).append(node)
    rows = [_node(node, machine, style) for node in nodes if node.cpus]
    return rows + [_memory(alike, nearest) for nearest, alike in memory.items()]


def _node(node: NumaNode, machine: Machine, style: Style) -> Row:
    cells = _cores(node.cpus, machine, style)
    head = [Cell(f"node {node.id}", NAME), Cell(_size(node.memory))]
    return Row("node", [*head, *cells], _gpus_on(node.id, machine))


def _memory(nodes: Sequence[NumaNode], nearest: Sequence[int]) -> Row:
    """Return the row of nodes without CPUs: a GPU's memory alone may be eight of them."""
    ids = ",".join(runs(node.id for node in nodes))
    sizes = [node.memory for node in nodes if node.memory is not None]
    where = f", nearest to node {nearest[0]}" if len(nearest) == 1 else ""
    name = f"node {ids}" if len(nodes) == 1 else f"nodes {ids}"
    size = _size(sum(sizes) if sizes else None)
    return Row("node", [Cell(name, NAME), Cell(size), Cell(f"memory only{where}")])


def _size(memory: int | None) -> str:
    if memory is None:
        return ""
    for unit, name in _UNITS:
        if memory >= unit:
            return f"{memory / unit:.{0 if memory >= 10 * unit else 1}f} {name}"
    return "no memory" if memory == 0 else f"{memory >> 10} KiB"


def _cores(cpus: CpuSet, machine: Machine, style: Style) -> list[Cell]:
    """Return cells for the cores of ``cpus``: number, CPUs, CPUs that are not allowed, L3 caches."""
    cores = [CpuSet(core & cpus) for core in machine.cores if core & cpus]
    allowed = [CpuSet(core & machine.allowed) for core in cores if core & machine.allowed]
    closed = [CpuSet(core - machine.allowed) for core in cores if core - machine.allowed]
    cells = [Cell(_shape(cores, machine, style))]
    cells += [Cell(siblings(allowed))] if allowed else []
    cells += [Cell(f"[{siblings(closed)}]", DIM)] if closed else []
    caches = [CpuSet(cache & cpus) for cache in machine.caches if cache & cpus]
    if len(caches) > 1:
        firsts = [CpuSet(min(core) for core in cores if core <= cache) for cache in caches]
        cells.append(Cell("L3 " + " | ".join(strided(first) for first in firsts)))
    return cells


def _shape(cores: Sequence[CpuSet], machine: Machine, style: Style) -> str:
    if not machine.cores_known:
        return counted(len(cores), "CPU")
    widths = sorted({len(core) for core in cores}, reverse=True)
    by = " × " if style.unicode else " x "  # noqa: RUF001 - the sign of multiplication is meant
    return ", ".join(
        counted(sum(len(core) == width for core in cores), "core")
        + (f"{by}{width}" if width > 1 else "")
        for width in widths
    )


def _gpus_on(node: int | None, machine: Machine) -> list[Row]:
    """Return the GPUs of a node, each with its slices, then those that this process can't open."""
    here = [gpu for gpu in machine.gpus if gpu.numa_node == node]
    whole = {gpu.uuid for gpu in here if gpu.uuid and not gpu.parent}
    rows = [
        _gpu(gpu, machine, [it for it in here if gpu.uuid and it.parent == gpu.uuid])
        for gpu in here
        if gpu.parent not in whole
    ]
    return [*rows, *_hidden(node, machine)]


def _gpu(gpu: Gpu, machine: Machine, slices: Sequence[Gpu]) -> Row:
    is_visible = identity(gpu) in map(identity, machine.visible)
    name = f"slice of GPU {gpu.index}" if gpu.parent else f"GPU {gpu.index}"
    cells = [
        Cell(name, GOOD if is_visible else DIM),
        Cell(gpu.uuid if gpu.parent else gpu.bdf),
        Cell(gpu.model or gpu.vendor),
        Cell("" if gpu.numa_node is None else f"by {gpu.node_source}", DIM),
    ]
    if not is_visible and not slices:
        cells.append(Cell("not visible"))
    return Row("slice" if gpu.parent else "gpu", cells, [_gpu(it, machine, ()) for it in slices])


def _hidden(node: int | None, machine: Machine) -> Iterator[Row]:
    """Yield the GPUs on the bus that this process may not open."""
    ours = {gpu.bdf for gpu in machine.gpus}
    for gpu in machine.pci_gpus:
        if gpu.numa_node == node and gpu.bdf not in ours:
            yield Row("gpu", [Cell("GPU", DIM), Cell(gpu.bdf), Cell("hidden from this process")])


def _notes(machine: Machine) -> Iterator[str]:
    cpus = CpuSet.union_of(machine.cores)
    all_cpus = counted(len(cpus), "CPU")
    if closed := cpus - machine.allowed - machine.isolated:
        yield f"[ ]: {len(closed)} of {all_cpus}, which this process may not use"
    if machine.isolated:
        yield f"[ ]: {len(machine.isolated)} of {all_cpus}, which are isolated (isolcpus)"
    if machine.cpu_quota is not None:
        yield f"CPU limit of the cgroup: {machine.cpu_quota:g} CPUs"
    first, *table = describe_distances(machine.nodes) or [""]
    if table:
        yield from ("node distances:", first, *table)
    elif first:
        yield f"node distances: {first}"
