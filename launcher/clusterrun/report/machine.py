"""A machine as ``clusterrun topo`` prints it: a tree of sockets and NUMA nodes, or JSON."""

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, takewhile, zip_longest
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import asdict, replace

from clusterrun.bounds import counted
from clusterrun.cpuset import CpuSet, number_ranges
from clusterrun.machine.machine import Gpu, Machine, NumaNode, nearest_nodes_with_cpus
from clusterrun.planning.plan import NodePlan
from clusterrun.report.plan import GpuView, WorkerView, warnings_in, worker_table
from clusterrun.report.tables import size

PLAIN, STRONG, DIM, GOOD, NAME = "", "bold", "dim", "green", "cyan"
"""Styles of cells, as rich names them."""

MAX_TABLE_ROWS = 16
"""NUMA nodes in a readable table; machines with NUMA nodes in GPU memory have more."""

_UNWRAPPED = 1 << 20
"""The width of output that is not wrapped."""
_MIN_WIDTH = 20
"""With less width, the branches of the tree leave no room for text."""
_GAP = "  "
_TIMES = " \N{MULTIPLICATION SIGN} "


class Style(NamedTuple):
    """What the output can show."""

    width: int | None = None
    """Columns; if None, lines are not wrapped."""
    colour: bool = False
    unicode: bool = True


class Cell(NamedTuple):
    """A text in one style."""

    text: str
    style: str = PLAIN


class TreeRow(NamedTuple):
    """Cells, and the rows below them; the columns of all rows of a ``kind`` are aligned."""

    kind: str
    cells: Sequence[Cell]
    below: Sequence["TreeRow"] = ()


def draw(rows: Sequence[TreeRow], style: Style) -> str:
    """Return the rows as a tree without a root, and without a trailing newline."""
    # The JSON does not need rich.
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    def text_of(cell: Cell) -> Text:
        # A captured machine may have terminal commands in the name of a GPU.
        printable = "".join(char if char.isprintable() else "?" for char in cell.text)
        letters = printable if style.unicode else printable.replace(_TIMES, " x ")
        return Text(letters, cell.style, overflow="fold")

    def grow(branch: Tree, rows: Iterable[TreeRow]) -> None:
        for row in rows:
            line = Text(overflow="fold")
            columns = [*widths[row.kind][: len(row.cells) - 1], 0]
            for cell, width in zip(row.cells, columns, strict=True):
                if cell.text or width:
                    line.append(_GAP if line else "").append_text(text_of(cell))
                    line.append(" " * (width - len(cell.text)))
            grow(branch.add(line), row.below)

    widths: dict[str, list[int]] = {}
    _measure(rows, widths)
    tree = Tree("", hide_root=True)
    grow(tree, rows)
    # rich draws branches in ASCII if the encoding has no other characters.
    encoding = "utf-8" if style.unicode else "ascii"
    file = io.TextIOWrapper(
        io.BytesIO(), encoding=encoding, errors="backslashreplace", write_through=True
    )
    console = Console(
        file=file,
        width=_UNWRAPPED if style.width is None else max(style.width, _MIN_WIDTH),
        force_terminal=style.colour,
        color_system="standard" if style.colour else None,
        no_color=not style.colour,
        force_jupyter=False,
        legacy_windows=False,
    )
    console.print(tree, markup=False, highlight=False, emoji=False)
    written: bytes = file.detach().getvalue()
    return "\n".join(line.rstrip() for line in written.decode(encoding).splitlines())


def _measure(rows: Iterable[TreeRow], widths: dict[str, list[int]]) -> None:
    """Add the width of each column by the kind of row, without the last cell of a row."""
    for row in rows:
        own = [len(cell.text) for cell in row.cells[:-1]]
        known = widths.get(row.kind, [])
        widths[row.kind] = [max(pair) for pair in zip_longest(known, own, fillvalue=0)]
        _measure(row.below, widths)


def machine_view(machine: Machine, plan: NodePlan) -> dict[str, object]:
    """Return what ``topo --json`` prints; CPUs and cores are in the kernel's list format."""
    return {
        "allowed_cpus": str(machine.allowed),
        "cpu_quota": machine.cpu_quota,
        "packages": list(map(str, machine.packages)),
        "nodes": [
            {
                "id": node.id,
                "cpus": str(node.cpus),
                "memory": node.memory,
                "has_memory": node.has_memory,
                "distances": node.distances,
            }
            for node in machine.nodes
        ],
        "cores": list(map(str, machine.cores)),
        "cores_known": machine.cores_known,
        "caches": list(map(str, machine.caches)),
        "gpus": [
            {
                **asdict(GpuView.of(gpu)),
                "vendor": gpu.vendor,
                "model": gpu.model,
                "parent": gpu.parent,
                "visible": _is_visible(gpu, machine),
            }
            for gpu in machine.gpus
        ],
        "sites": [{"address": gpu.bdf, "numa_node": gpu.numa_node} for gpu in machine.pci_gpus],
        "visible": [gpu.uuid or gpu.bdf for gpu in machine.visible],
        "visible_origin": machine.visible_origin,
        "workers": [replace(worker, env=UNSET) for worker in WorkerView.all_of(plan)],
        "remarks": plan.warnings,
    }


def _is_visible(gpu: Gpu, machine: Machine) -> bool:
    """Return whether workers may use a GPU; ``--numa-map`` may have changed its NUMA node."""
    return any(
        (gpu.vendor, gpu.index, gpu.bdf, gpu.uuid) == (it.vendor, it.index, it.bdf, it.uuid)
        for it in machine.visible
    )


def topo_text(name: str, machine: Machine, plan: NodePlan, style: Style) -> str:
    """Return the tree, the workers and the warnings; ``name`` is the title."""
    by = f", GPUs by {plan.visible_origin}" if plan.visible_origin else ""
    sections = (
        [_line(f"{name}: {_summary(machine)}", STRONG)],
        list(_packages(machine)),
        list(map(_line, _notes(machine))),
        [_line(f"workers{by}", STRONG), *(_line(f"  {line}") for line in worker_table(plan))],
        [_line(f"remark: {warning}") for warning in warnings_in(plan)],
    )
    return "\n\n".join(draw(rows, style) for rows in sections if rows)


def _line(text: str, style: str = PLAIN) -> TreeRow:
    return TreeRow("line", [Cell(text, style)])


def _summary(machine: Machine) -> str:
    cpus = CpuSet.union_of(machine.cores)
    counts = (
        (len(machine.packages), "socket"),
        (len(machine.nodes), "NUMA node"),
        (len(machine.cores) if machine.cores_known else 0, "core"),
        (len(cpus), "CPU"),
        (sum(not gpu.parent for gpu in machine.gpus), "GPU"),
    )
    return ", ".join(counted(number, name) for number, name in counts if number)


def _packages(machine: Machine) -> Iterator[TreeRow]:
    """Yield each package with its NUMA nodes, then what does not belong to a single package."""
    nodes = list(machine.nodes)
    of_nodes = CpuSet.union_of(node.cpus for node in machine.nodes)
    for number, package in enumerate(machine.packages):
        inside = [node for node in nodes if _is_inside(node, package, machine)]
        nodes = [node for node in nodes if node not in inside]
        if rows := [*_nodes(inside, machine), *_cores_row(package - of_nodes, machine)]:
            yield TreeRow("package", [Cell(f"socket {number}", STRONG)], rows)
    yield from _nodes(nodes, machine)
    known = CpuSet.union_of([*machine.packages, of_nodes])
    yield from _cores_row(CpuSet.union_of(machine.cores) - known, machine)
    if gpus := _gpus_on(None, machine):
        yield TreeRow("package", [Cell("NUMA node unknown", STRONG)], gpus)


def _is_inside(node: NumaNode, package: CpuSet, machine: Machine) -> bool:
    # A NUMA node without CPUs belongs to the package of its nearest NUMA nodes.
    near = [node] if node.cpus else nearest_nodes_with_cpus(node, machine.nodes)
    return bool(near) and CpuSet.union_of(each.cpus for each in near) <= package


def _nodes(nodes: Sequence[NumaNode], machine: Machine) -> list[TreeRow]:
    """Return a row for each NUMA node with CPUs, and one for all memory with the same nearest nodes."""
    rows = []
    memory: dict[tuple[int, ...], list[NumaNode]] = {}
    for node in nodes:
        if node.cpus:
            head = [Cell(f"node {node.id}", NAME), Cell(_memory(node.memory))]
            cells = [*head, *_cores(node.cpus, machine)]
            rows.append(TreeRow("node", cells, _gpus_on(node.id, machine)))
        else:
            nearest = tuple(near.id for near in nearest_nodes_with_cpus(node, machine.nodes))
            memory.setdefault(nearest, []).append(node)
    # The memory of one GPU may be eight NUMA nodes.
    for nearest, group in memory.items():
        ids = ",".join(number_ranges(node.id for node in group))
        sizes = [node.memory for node in group if node.memory is not None]
        cells = [
            Cell(f"node {ids}" if len(group) == 1 else f"nodes {ids}", NAME),
            Cell(_memory(sum(sizes) if sizes else None)),
            Cell(f"memory only{f', nearest to node {nearest[0]}' if len(nearest) == 1 else ''}"),
        ]
        rows.append(TreeRow("node", cells))
    return rows


def _memory(count: int | None) -> str:
    if count is None:
        return ""
    return size(count) if count else "no memory"


def _cores_row(cpus: frozenset[int], machine: Machine) -> list[TreeRow]:
    return [TreeRow("cores", _cores(cpus, machine))] if cpus else []


def _cores(cpus: frozenset[int], machine: Machine) -> list[Cell]:
    """Return cells for cores: their number, allowed CPUs, CPUs that are not allowed, and L3 caches."""
    cores = [core & cpus for core in machine.cores if core & cpus]
    if machine.cores_known:
        # Cores of one machine may have different numbers of CPUs.
        widths = sorted(Counter(map(len, cores)).items(), reverse=True)
        shape = ", ".join(
            counted(number, "core") + (f"{_TIMES}{width}" if width > 1 else "")
            for width, number in widths
        )
    else:
        shape = counted(len(cores), "CPU")
    cells = [Cell(shape)]
    if allowed := [core & machine.allowed for core in cores if core & machine.allowed]:
        cells.append(Cell(siblings(allowed)))
    if closed := [core - machine.allowed for core in cores if core - machine.allowed]:
        cells.append(Cell(f"[{siblings(closed)}]", DIM))
    caches = [cache & cpus for cache in machine.caches if cache & cpus]
    if len(caches) > 1:
        firsts = [{min(core) for core in cores if core <= cache} for cache in caches]
        cells.append(Cell("L3 " + " | ".join(map(strided, firsts))))
    return cells


def strided(numbers: Iterable[int]) -> str:
    """Return numbers as runs, "0-3", and runs with a stride, "0-30:2", in the format of taskset(1)."""
    ordered = sorted(numbers)
    items = []
    while ordered:
        step = ordered[1] - ordered[0] if len(ordered) > 1 else 1
        progression = zip(ordered, count(ordered[0], step), strict=False)
        length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], progression))
        if step > 1 and length > 2:
            items.append(f"{ordered[0]}-{ordered[length - 1]}:{step}")
        else:
            # Two numbers with a gap are not a progression, but the second may begin one.
            length = length if step == 1 else 1
            items += number_ranges(ordered[:length])
        ordered = ordered[length:]
    return ",".join(items)


def siblings(cores: Iterable[frozenset[int]]) -> str:
    """Return the CPUs of cores: the first CPUs of all cores, then the second CPUs, ...

    Core n of "0-15+128-143" has CPUs n and n + 128. If the CPUs of each core are adjacent, as in "0-87",
    they are not separated.
    """
    known = list(cores)
    adjacent = [core for core in known if max(core) - min(core) < len(core)]
    apart = [core for core in known if max(core) - min(core) >= len(core)]
    items = [strided(CpuSet.union_of(adjacent))] if adjacent else []
    for width in sorted({len(core) for core in apart}):
        group = sorted(sorted(core) for core in apart if len(core) == width)
        items.append("+".join(strided(lane) for lane in zip(*group, strict=True)))
    return ",".join(items)


def _gpus_on(node: int | None, machine: Machine) -> list[TreeRow]:
    """Return the GPUs of a NUMA node with their slices, then GPUs that this process cannot open."""
    own = [gpu for gpu in machine.gpus if gpu.numa_node == node]
    whole = {gpu.uuid for gpu in own if gpu.uuid and not gpu.parent}
    rows = [
        _gpu(gpu, machine, [it for it in own if gpu.uuid and it.parent == gpu.uuid])
        for gpu in own
        if gpu.parent not in whole
    ]
    opened = {gpu.bdf for gpu in machine.gpus}
    return rows + [
        TreeRow("gpu", [Cell("GPU", DIM), Cell(gpu.bdf), Cell("hidden from this process")])
        for gpu in machine.pci_gpus
        if gpu.numa_node == node and gpu.bdf not in opened
    ]


def _gpu(gpu: Gpu, machine: Machine, slices: Sequence[Gpu]) -> TreeRow:
    is_visible = _is_visible(gpu, machine)
    name = f"slice of GPU {gpu.index}" if gpu.parent else f"GPU {gpu.index}"
    cells = [
        Cell(name, GOOD if is_visible else DIM),
        Cell(gpu.uuid if gpu.parent else gpu.bdf),
        Cell(gpu.model or gpu.vendor),
        Cell("" if gpu.numa_node is None else f"by {gpu.node_source}", DIM),
    ]
    if not is_visible and not slices:
        cells.append(Cell("not visible"))
    return TreeRow(
        "slice" if gpu.parent else "gpu", cells, [_gpu(it, machine, ()) for it in slices]
    )


def _notes(machine: Machine) -> Iterator[str]:
    cpus = CpuSet.union_of(machine.cores)
    all_cpus = counted(len(cpus), "CPU")
    if closed := cpus - machine.allowed - machine.isolated:
        yield f"[ ]: {len(closed)} of {all_cpus}, which this process may not use"
    if machine.isolated:
        yield f"[ ]: {len(machine.isolated)} of {all_cpus}, which are isolated (isolcpus)"
    if machine.cpu_quota is not None:
        yield f"CPU limit of the cgroup: {counted(machine.cpu_quota, 'CPU')}"
    first, *table = describe_distances(machine.nodes) or [""]
    if table:
        yield from ("NUMA node distances:", first, *table)
    elif first:
        yield f"NUMA node distances: {first}"


def describe_distances(nodes: Sequence[NumaNode]) -> list[str]:
    """Return the distances between NUMA nodes; [] if they are all equal or not known."""
    ids = [node.id for node in nodes]
    between = {
        (node.id, other): distance
        for node in nodes
        for other, distance in node.distances.items()
        if other != node.id and other in ids
    }
    if len(between) < len(ids) * (len(ids) - 1) or len(set(between.values())) < 2:
        return []
    if nested := _nested(ids, between):
        return [nested]
    if len(ids) > MAX_TABLE_ROWS:
        return [
            f"{min(between.values())} to {max(between.values())}, without a pattern; see --json"
        ]
    rows = [["", *map(str, ids)]]
    rows += [[str(one.id), *(str(one.distances[it]) for it in ids)] for one in nodes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    ]


def _nested(ids: Sequence[int], between: Mapping[tuple[int, int], int]) -> str:
    """Return one line if the NUMA nodes form nested groups by distance, else ""."""
    levels: list[str] = []
    for distance in sorted(set(between.values())):
        near = {
            one: frozenset(it for it in ids if it == one or between[one, it] <= distance)
            for one in ids
        }
        if any(near[other] != group for group in near.values() for other in group):
            return ""
        groups = sorted(set(near.values()), key=min)
        if len(groups) == 1:
            return "; ".join([*levels, f"{distance} otherwise"])
        together = (",".join(number_ranges(group)) for group in groups if len(group) > 1)
        levels.append(f"{distance} within {' and within '.join(together)}")
    return ""
