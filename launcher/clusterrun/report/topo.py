"""What ``clusterrun topo`` prints: the machine by its packages and NUMA nodes, and who runs where."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Gpu, Machine, NumaNode
from clusterrun.domain.plan import NodePlan
from clusterrun.report.cpu_numbers import siblings, strided
from clusterrun.report.distances import describe_distances
from clusterrun.report.drawing import Cell, Ink, Row, Style, draw
from clusterrun.report.dry_run import gpu_json, worker_json, workers_section

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"))


def as_text(name: str, machine: Machine, plan: NodePlan, style: Style) -> str:
    """Return the drawing, without a trailing newline; ``name`` is what the machine is called."""
    _, table = workers_section(plan)
    told = f", GPUs by {plan.visible_origin}" if plan.visible_origin else ""
    parts = [
        [*_lines([f"{name}: {_summary(machine)}"], style, Ink.STRONG)],
        [*draw([*_packages(machine, style), *_elsewhere(machine)], style)],
        [*_lines(_notes(machine), style)],
        [
            *_lines([f"workers{told}"], style, Ink.STRONG),
            *_lines((f"  {line}" for line in table), style),
        ],
        [*_lines((f"remark: {remark}" for remark in plan.remarks), style)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _lines(texts: Iterable[str], style: Style, ink: Ink = Ink.PLAIN) -> Iterator[str]:
    return draw([Row("line", [Cell(text, ink)]) for text in texts], style)


def as_json(machine: Machine, plan: NodePlan) -> str:
    """Return the same for programs: one JSON object, CPUs and cores as lists in the kernel's form."""
    visible = {*map(_identity, machine.visible)}
    content = {
        "allowed_cpus": str(machine.allowed),
        "cpu_quota": machine.cpu_quota,
        "packages": [str(cpus) for cpus in machine.packages],
        "nodes": [_node_json(node) for node in machine.nodes],
        "cores": [str(cpus) for cpus in machine.cores],
        "cores_known": machine.cores_known,
        "caches": [str(cpus) for cpus in machine.caches],
        "gpus": [{**_gpu_json(gpu), "visible": _identity(gpu) in visible} for gpu in machine.gpus],
        "sites": [{"address": gpu.bdf, "numa_node": gpu.numa_node} for gpu in machine.pci_gpus],
        "visible": [gpu.uuid or gpu.bdf for gpu in machine.visible],
        "visible_origin": machine.visible_origin,
        "workers": [_without_variables(worker_json(plan, worker)) for worker in plan.workers],
        "remarks": list(plan.remarks),
    }
    return json.dumps(content, indent=2)


def _node_json(node: NumaNode) -> Mapping[str, object]:
    return {
        "id": node.id,
        "cpus": str(node.cpus),
        "memory": node.memory,
        "has_memory": node.has_memory,
        "distances": {str(other): distance for other, distance in node.distances.items()},
    }


def _gpu_json(gpu: Gpu) -> Mapping[str, object]:
    return {**gpu_json(gpu), "vendor": gpu.vendor, "model": gpu.model, "parent": gpu.parent}


def _without_variables(worker: Mapping[str, object]) -> Mapping[str, object]:
    return {name: value for name, value in worker.items() if name != "env"}


def _summary(machine: Machine) -> str:
    cpus = CpuSet.union_of(machine.cores)
    counts = (
        (len(machine.packages), "package"),
        (len(machine.nodes), "NUMA node"),
        (len(machine.cores) if machine.cores_known else 0, "core"),
        (len(cpus), "CPU"),
        (sum(not gpu.parent for gpu in machine.gpus), "GPU"),
    )
    return ", ".join(_count(number, name) for number, name in counts if number)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _packages(machine: Machine, style: Style) -> Iterator[Row]:
    """Yield each package with what is in it, then the nodes that are in none, or in several."""
    left = list(machine.nodes)
    for number, package in enumerate(machine.packages):
        inside = [node for node in left if _is_inside(node, package, machine)]
        left = [node for node in left if node not in inside]
        alone = package - CpuSet.union_of(node.cpus for node in machine.nodes)
        rows = [_node(node, machine, style) for node in inside]
        if alone:
            rows.append(Row("cores", _cores(CpuSet(alone), machine, style)))
        if rows:
            yield Row("package", [Cell(f"package {number}", Ink.STRONG)], rows)
    for node in left:
        yield _node(node, machine, style)
    somewhere = CpuSet.union_of([*machine.packages, *(node.cpus for node in machine.nodes)])
    if nowhere := CpuSet(CpuSet.union_of(machine.cores) - somewhere):
        yield Row("cores", _cores(nowhere, machine, style))


def _is_inside(node: NumaNode, package: CpuSet, machine: Machine) -> bool:
    # A node without CPUs is where all nodes are that are nearest to it.
    places = [node] if node.cpus else _nearest(node, machine)
    return bool(places) and CpuSet.union_of(place.cpus for place in places) <= package


def _nearest(node: NumaNode, machine: Machine) -> list[NumaNode]:
    """Return the nodes with CPUs that are nearest to one without."""
    near = [other for other in machine.nodes if other.cpus and other.id in node.distances]
    least = min((node.distances[other.id] for other in near), default=0)
    return [other for other in near if node.distances[other.id] == least]


def _node(node: NumaNode, machine: Machine, style: Style) -> Row:
    head = [Cell(f"node {node.id}", Ink.NAME), Cell(_size(node.memory))]
    below = _gpus_on(node.id, machine)
    if node.cpus:
        return Row("node", [*head, *_cores(node.cpus, machine, style)], below)
    nearest = _nearest(node, machine)
    where = f", nearest to node {nearest[0].id}" if len(nearest) == 1 else ""
    return Row("node", [*head, Cell(f"memory only{where}")], below)


def _size(memory: int | None) -> str:
    if memory is None:
        return ""
    for unit, name in _UNITS:
        if memory >= unit:
            return f"{memory / unit:.{0 if memory >= 10 * unit else 1}f} {name}"
    return "no memory" if memory == 0 else f"{memory >> 10} KiB"


def _cores(cpus: CpuSet, machine: Machine, style: Style) -> list[Cell]:
    """Return cells for the cores of ``cpus``: how many, which, which of them aren't ours, their L3."""
    cores = [CpuSet(core & cpus) for core in machine.cores if core & cpus]
    ours = [CpuSet(core & machine.allowed) for core in cores if core & machine.allowed]
    closed = [CpuSet(core - machine.allowed) for core in cores if core - machine.allowed]
    cells = [Cell(_shape(cores, machine, style))]
    cells += [Cell(siblings(ours))] if ours else []
    cells += [Cell(f"[{siblings(closed)}]", Ink.DIM)] if closed else []
    caches = [CpuSet(cache & cpus) for cache in machine.caches if cache & cpus]
    if len(caches) > 1:
        firsts = [CpuSet(min(core) for core in cores if core <= cache) for cache in caches]
        cells.append(Cell("L3 " + " | ".join(strided(first) for first in firsts)))
    return cells


def _shape(cores: Sequence[CpuSet], machine: Machine, style: Style) -> str:
    if not machine.cores_known:
        return _count(len(cores), "CPU")
    widths = sorted({len(core) for core in cores}, reverse=True)
    by = " × " if style.unicode else " x "  # noqa: RUF001 - the sign of multiplication is meant
    return ", ".join(
        _count(sum(len(core) == width for core in cores), "core")
        + (f"{by}{width}" if width > 1 else "")
        for width in widths
    )


def _gpus_on(node: int | None, machine: Machine) -> list[Row]:
    """Return the GPUs of a node, each with its slices; those last that this process can't open."""
    here = [gpu for gpu in machine.gpus if gpu.numa_node == node]
    whole = {gpu.uuid for gpu in here if gpu.uuid and not gpu.parent}
    rows = [
        _gpu(gpu, machine, [it for it in here if gpu.uuid and it.parent == gpu.uuid])
        for gpu in here
        if gpu.parent not in whole
    ]
    return [*rows, *_hidden(node, machine)]


def _gpu(gpu: Gpu, machine: Machine, slices: Sequence[Gpu]) -> Row:
    is_visible = _identity(gpu) in map(_identity, machine.visible)
    name = f"slice of GPU {gpu.index}" if gpu.parent else f"GPU {gpu.index}"
    cells = [
        Cell(name, Ink.GOOD if is_visible else Ink.DIM),
        Cell(gpu.uuid if gpu.parent else gpu.bdf),
        Cell(gpu.model or gpu.vendor),
        Cell("" if gpu.numa_node is None else f"by {gpu.node_source}", Ink.DIM),
    ]
    if not is_visible and not slices:
        cells.append(Cell("not visible"))
    return Row("slice" if gpu.parent else "gpu", cells, [_gpu(it, machine, ()) for it in slices])


def _identity(gpu: Gpu) -> tuple[str, int, str, str]:
    return gpu.vendor, gpu.index, gpu.bdf, gpu.uuid


def _hidden(node: int | None, machine: Machine) -> Iterator[Row]:
    """Yield the GPUs on the bus that this process may not open."""
    ours = {gpu.bdf for gpu in machine.gpus}
    for gpu in machine.pci_gpus:
        if gpu.numa_node == node and gpu.bdf not in ours:
            yield Row(
                "gpu", [Cell("GPU", Ink.DIM), Cell(gpu.bdf), Cell("hidden from this process")]
            )


def _elsewhere(machine: Machine) -> Iterator[Row]:
    """Yield the GPUs that no node has."""
    if rows := _gpus_on(None, machine):
        yield Row("package", [Cell("on no node that anything tells", Ink.STRONG)], rows)


def _notes(machine: Machine) -> Iterator[str]:
    cpus = CpuSet.union_of(machine.cores)
    if closed := cpus - machine.allowed:
        yield f"[ ]: {len(closed)} of {_count(len(cpus), 'CPU')}, which this process may not use"
    if machine.cpu_quota is not None:
        yield f"limit of the control group: {machine.cpu_quota:g} CPUs' worth of time"
    match describe_distances(machine.nodes):
        case []:
            pass
        case [line]:
            yield f"distances of nodes: {line}"
        case lines:
            yield "distances of nodes:"
            yield from lines
