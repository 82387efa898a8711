"""The output of clusterrun topo: drawings of machines, and JSON."""

import re
from pathlib import Path
from typing import Any

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.machine.machine import Gpu, Machine, NumaNode
from clusterrun.planning.plan import NodePlan
from clusterrun.report.machine import (
    DIM,
    Cell,
    Style,
    TreeRow,
    describe_distances,
    draw,
    machine_view,
    siblings,
    strided,
    topo_text,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from tests.planning.generated import Generated, machines
from tests.plans import job, machine
from tests.plans import planned as plan_of_job
from tests.rounds import in_all_rounds

DRAWINGS = Path(__file__).parent / "drawings"


def planned(what: Machine, workers: int) -> NodePlan:
    return plan_of_job(job(), what, workers)


def drawing(what: Machine, **style: Any) -> str:
    """Return the drawing of a machine, without the table of workers."""
    text = topo_text(what.host, what, planned(what, 2), Style(**style))
    return re.split(r"\n\n(?:\x1b\[1m)?workers", text)[0] + "\n"


def of_memory(what: Machine, *gibibytes: int) -> Machine:
    """Return the machine with this memory on each node."""
    nodes = tuple(
        replace(node, memory=size << 30) for node, size in zip(what.nodes, gibibytes, strict=True)
    )
    return replace(what, nodes=nodes)


def named(what: Machine, model: str) -> Machine:
    """Return the machine with GPUs of this model, all of them visible."""
    gpus = tuple(replace(gpu, model=model) for gpu in what.gpus)
    return replace(what, gpus=gpus, visible=gpus)


def dgx_a100() -> Machine:
    """Return 256 CPUs in eight NUMA nodes, with GPUs on every second one in another order."""
    nodes = range(8)
    found = machine(
        {
            node: f"{16 * node}-{16 * node + 15},{128 + 16 * node}-{143 + 16 * node}"
            for node in nodes
        },
        gpus=(3, 3, 1, 1, 7, 7, 5, 5),
        packages=("0-63,128-191", "64-127,192-255"),
        cores=[f"{core},{core + 128}" for core in range(128)],
        caches=[f"{first}-{first + 3},{first + 128}-{first + 131}" for first in range(0, 128, 4)],
        distances={
            one: {it: 10 if it == one else 12 if it // 4 == one // 4 else 32 for it in nodes}
            for one in nodes
        },
    )
    return named(of_memory(found, *[252] * 8), "NVIDIA A100-SXM4-40GB")


def h100() -> Machine:
    """Return the machine in docs/binding.md: two NUMA nodes with four GPUs each."""
    found = machine(
        {0: "0-55,112-167", 1: "56-111,168-223"},
        gpus=(0, 0, 0, 0, 1, 1, 1, 1),
        packages=("0-55,112-167", "56-111,168-223"),
        cores=[f"{core},{core + 112}" for core in range(112)],
    )
    buses = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
    gpus = tuple(
        replace(gpu, bdf=f"0000:{bus}:00.0", model="NVIDIA H100 80GB HBM3")
        for gpu, bus in zip(found.gpus, buses, strict=True)
    )
    placed = replace(found, host="gpu-07", gpus=gpus, visible=gpus, pci_gpus=())
    return of_memory(placed, 1007, 1008)


def snc4() -> Machine:
    """Return two packages of four NUMA nodes; a scheduler granted half of them and two of four GPUs."""
    found = machine(
        {node: f"{8 * node}-{8 * node + 7}" for node in range(8)},
        gpus=(1, 3),
        packages=("0-31", "32-63"),
        allowed="2-31",
        pci_gpus=(1, 3, 5, None),
        visible=(1,),
        quota=12.5,
    )
    return of_memory(found, *[64] * 8)


def virtual_machine() -> Machine:
    """Return a machine whose firmware reports neither cores nor the NUMA node of its GPU."""
    found = machine(
        {0: "0-7"}, gpus=(0,), packages=[str(cpu) for cpu in range(8)], cores_known=False
    )
    (gpu,) = named(of_memory(found, 30), "NVIDIA L4").gpus
    placed = replace(gpu, node_source="single node")
    return replace(of_memory(found, 30), gpus=(placed,), visible=(placed,))


def knights_landing() -> Machine:
    """Return a package of four NUMA nodes with CPUs and four with fast memory only, with four CPUs per core."""
    cpus = ("0-17", "18-35", "36-51", "52-67")
    far = {one: {it: 10 if it == one else 31 for it in range(8)} for one in range(8)}
    for one in range(8):
        for it in range(4):
            far[one][it] = 10 if it == one else 21 if one < 4 else 41
        if one >= 4:
            far[one][one - 4] = 31
            far[one - 4][one] = 31
    found = machine(
        {
            node: ",".join(
                str(CpuSet(cpu + 68 * lane for cpu in CpuSet.parse(cpus[node])))
                for lane in range(4)
            )
            if node < 4
            else ""
            for node in range(8)
        },
        cores=[f"{core},{core + 68},{core + 136},{core + 204}" for core in range(68)],
        distances=far,
    )
    return of_memory(found, *[24] * 4, *[4] * 4)


def gb200() -> Machine:
    """Return two packages with four GPUs, whose memory is on eight NUMA nodes each."""
    own = {0: "0-71", 1: "72-143"}
    nodes = {node: own.get(node, "") for node in range(34)}
    owner = [0, 1, *(0 if node < 18 else 1 for node in range(2, 34))]
    found = machine(
        nodes,
        gpus=(0, 0, 1, 1),
        packages=tuple(own.values()),
        distances={
            one: {
                it: 10
                if one == it
                else (80 if max(one, it) > 1 else 40) + 40 * (owner[one] != owner[it])
                for it in nodes
            }
            for one in nodes
        },
    )
    return named(of_memory(found, 480, 480, *[186, *[0] * 7] * 4), "NVIDIA GB200")


def without_numa() -> Machine:
    """Return two packages with a kernel without NUMA; the CPUs of a core are adjacent."""
    return machine(
        {},
        packages=("0-7", "8-15"),
        cores=[f"{cpu}-{cpu + 1}" for cpu in range(0, 16, 2)],
        allowed="0-15",
    )


def sliced() -> Machine:
    """Return a machine with two GPUs, one of which is divided into two MIG slices."""
    found = named(
        machine({0: "0-3", 1: "4-7"}, gpus=(0, 1), packages=("0-3", "4-7")), "NVIDIA H100"
    )
    parts = tuple(
        Gpu(
            0,
            found.gpus[0].bdf,
            f"MIG-{name}",
            0,
            "sysfs numa_node",
            "nvidia",
            "MIG 3g.40gb",
            "GPU-0",
        )
        for name in "ab"
    )
    return replace(found, gpus=(*found.gpus, *parts), visible=parts)


MACHINES = {
    "dgx_a100": dgx_a100(),
    "h100": h100(),
    "snc4": snc4(),
    "virtual_machine": virtual_machine(),
    "knights_landing": knights_landing(),
    "gb200": gb200(),
    "without_numa": without_numa(),
    "sliced": sliced(),
}


@pytest.mark.parametrize("name", MACHINES)
def test_drawing_of_machine(name: str) -> None:
    """The expected text is in ``drawings``."""
    assert drawing(MACHINES[name]) == (DRAWINGS / f"{name}.txt").read_text()


def test_drawing_of_256_cpus_fits_a_screen() -> None:
    """With the table of workers."""
    found = dgx_a100()

    lines = topo_text("node7", found, planned(found, 8), Style()).splitlines()

    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_drawing_in_ascii() -> None:
    text = drawing(snc4(), unicode=False)

    assert text.isascii()
    assert "+-- node 1  64 GiB  8 cores  8-15\n|   `-- GPU 0  0000:10:00.0" in text


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_drawing_fits_terminal_width(width: int) -> None:
    """Longer lines are wrapped without loss."""
    found = dgx_a100()
    plan = planned(found, 8)

    narrow = topo_text("node7", found, plan, Style(width=width))

    assert max(map(len, narrow.splitlines())) <= width
    assert _letters(narrow) == _letters(topo_text("node7", found, plan, Style()))


def _letters(text: str) -> str:
    return "".join(char for char in text if not char.isspace() and char not in "├└│─")


def test_notes_on_isolated_and_forbidden_cpus() -> None:
    found = replace(machine({0: "0-7"}, allowed="0-3"), isolated=CpuSet((6, 7)))

    assert drawing(found).splitlines()[-2:] == [
        "[ ]: 2 of 8 CPUs, which this process may not use",
        "[ ]: 2 of 8 CPUs, which are isolated (isolcpus)",
    ]


def test_colours_do_not_change_text() -> None:
    """CPUs that this process is not allowed to use are dim."""
    coloured = drawing(snc4(), colour=True)

    assert re.sub(r"\x1b\[\d*m", "", coloured) == drawing(snc4())
    assert "\x1b[2m[0-1]\x1b[0m" in coloured


@settings(
    max_examples=in_all_rounds(60), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(drawn=machines(), width=st.none() | st.integers(0, 120))
def test_drawing_of_any_machine(drawn: Generated, width: int | None) -> None:
    """Every NUMA node and GPU is drawn, even in a narrow terminal."""
    found = drawn.machine
    plan = planned(found, max(1, len(found.visible)))

    text = topo_text("node7", found, plan, Style())
    content = to_builtins(machine_view(found, plan))

    for node in found.nodes:
        assert not node.cpus or re.search(rf"\bnode {node.id}\b", text)
    folded = re.findall(r"\bnodes? ([\d,-]+)  .*memory only", text)
    assert CpuSet.parse(",".join(folded)) == CpuSet(
        node.id for node in found.nodes if not node.cpus
    )
    for gpu in found.gpus:
        assert re.search(rf"\bGPU {gpu.index}\b.*{re.escape(gpu.bdf)}", text)
    assert ("[" in text.split("\n\nworkers")[0]) == (found.allowed != CpuSet.union_of(found.cores))
    assert len(content["cores"]) == len(found.cores)
    assert _letters(topo_text("node7", found, plan, Style(width=width))) == _letters(text)


def test_worker_table_is_below_drawing() -> None:
    """The table is the same as in a dry run, with the warnings of the plan."""
    found = snc4()

    text = topo_text("node7", found, planned(found, 2), Style())

    _, _, below = text.partition("\n\nworkers, GPUs by NVML\n")
    assert below.splitlines()[0].split()[:3] == ["rank", "local", "GPU"]
    assert "not bound: 2 workers for 1 GPU" in below


def test_machine_as_json() -> None:
    """docs/binding.md lists these keys. CPUs are in the kernel's list format."""
    found = snc4()

    content = to_builtins(machine_view(found, planned(found, 1)))

    assert set(content) == {
        *("allowed_cpus", "cpu_quota", "packages", "nodes", "cores", "cores_known", "caches"),
        *("gpus", "sites", "visible", "visible_origin", "workers", "remarks"),
    }
    assert (content["allowed_cpus"], content["cpu_quota"]) == ("2-31", 12.5)
    assert content["packages"] == ["0-31", "32-63"]
    assert content["nodes"][1] == {
        "id": 1,
        "cpus": "8-15",
        "memory": 64 << 30,
        "has_memory": True,
        "distances": {},
    }
    assert [gpu["visible"] for gpu in content["gpus"]] == [False, True]
    assert content["gpus"][1]["address"] == "0000:20:00.0"
    assert content["sites"][3] == {"address": "0000:40:00.0", "numa_node": None}
    assert content["visible"] == ["GPU-1"]
    (worker,) = content["workers"]
    assert (worker["local_rank"], worker["gpu"], worker["cpus"]) == (0, 1, "16-31")
    assert "env" not in worker


TREE = [
    TreeRow(
        "box",
        [Cell("a")],
        [TreeRow("leaf", [Cell("one"), Cell(""), Cell("1,2,3")]), TreeRow("leaf", [Cell("three")])],
    ),
    TreeRow(
        "box",
        [Cell("b")],
        [TreeRow("box", [Cell("c")], [TreeRow("leaf", [Cell("two"), Cell(""), Cell("4")])])],
    ),
]


def drawn(rows: list[TreeRow], **style: Any) -> list[str]:
    return draw(rows, Style(**style)).splitlines()


def test_tree_aligns_rows_of_a_kind() -> None:
    """An empty column has no width."""
    assert drawn(TREE) == [
        "a",
        "├── one  1,2,3",
        "└── three",
        "b",
        "└── c",
        "    └── two  4",
    ]


COLOUR = {"colour": True}
NARROW = {"width": 20}


@pytest.mark.parametrize(
    ("cell", "style", "shown"),
    [
        # A line is broken at a space, or else at the width.
        (Cell("one two three four five six"), NARROW, "one two three four\nfive six"),
        (Cell("abcdefghijklmnopqrstuvwxyz"), NARROW, "abcdefghijklmnopqrst\nuvwxyz"),
        # The name of a GPU in a captured machine may have any characters.
        (Cell("H100\x1b[2J\n\rH200"), {}, "H100?[2J??H200"),
        # Brackets mark CPUs that a process is not allowed to use; they are not markup.
        (Cell("[bold]0-3[/bold] :smile:"), {}, "[bold]0-3[/bold] :smile:"),
        # An empty text has no colour sequences.
        (Cell("a b", DIM), COLOUR, "\x1b[2ma b\x1b[0m"),
        (Cell("a b", DIM), {}, "a b"),
        (Cell("a"), COLOUR, "a"),
        (Cell("", DIM), COLOUR, ""),
    ],
)
@pytest.mark.parametrize("variable", ["", "1"])
def test_text_of_a_line(
    cell: Cell, style: dict[str, Any], shown: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller sets width and colours; rich must not read them from variables."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "JUPYTER_COLUMNS"):
        monkeypatch.setenv(name, variable)

    assert draw([TreeRow("line", [cell])], Style(**style)) == shown


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), ""),
        ((3,), "3"),
        ((0, 1, 2, 5, 7), "0-2,5,7"),
        ((0, 2), "0,2"),
        (range(0, 32, 2), "0-30:2"),
        ((0, 4, 8, 9, 10), "0-8:4,9-10"),
    ],
)
def test_strided(numbers: range, text: str) -> None:
    """taskset(1) accepts this format."""
    assert strided(numbers) == text


@given(st.sets(st.integers(0, 300)))
def test_strided_keeps_all_numbers(numbers: set[int]) -> None:
    """No number is added either."""
    found: set[int] = set()
    for part in filter(None, strided(numbers).split(",")):
        run, _, step = part.partition(":")
        low, _, high = run.partition("-")
        found |= {*range(int(low), int(high or low) + 1, int(step or 1))}

    assert found == numbers


@pytest.mark.parametrize(
    ("cores", "text"),
    [
        (["0", "1", "2"], "0-2"),
        ([f"{core},{core + 128}" for core in range(16)], "0-15+128-143"),
        (["0-3", "4-7", "8-11"], "0-11"),
        ([f"{core},{core + 40}" for core in range(0, 20, 2)], "0-18:2+40-58:2"),
        (["0-1", "2-3", "16", "17"], "0-3,16-17"),
        (["0,8", "1,9", "4"], "4,0-1+8-9"),
    ],
)
def test_siblings(cores: list[str], text: str) -> None:
    """There is a list for each CPU of a core, unless the CPUs of a core are adjacent."""
    assert siblings(CpuSet.parse(core) for core in cores) == text


def at_distances(*rows: str, ids: tuple[int, ...] = ()) -> list[NumaNode]:
    numbers = ids or tuple(range(len(rows)))
    return [
        NumaNode(number, CpuSet(), dict(zip(numbers, map(int, row.split()), strict=False)))
        for number, row in zip(numbers, rows, strict=True)
    ]


GH200 = tuple(" ".join(str(10 + abs(one - it)) for it in range(36)) for one in range(36))


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        (("10",), []),
        (("10 21", "21 10"), []),
        (("10 21 21", "21 10 21", "21 21 10"), []),
        (("10", "21 10"), []),
        (
            ("10 12 32 32", "12 10 32 32", "32 32 10 12", "32 32 12 10"),
            ["12 within 0-1 and within 2-3; 32 otherwise"],
        ),
        (
            ("10 12 20 32", "12 10 20 32", "20 20 10 32", "32 32 32 10"),
            ["12 within 0-1; 20 within 0-2; 32 otherwise"],
        ),
        (
            ("10 16 22", "16 10 16", "22 16 10"),
            ["   0  1  2", "0 10 16 22", "1 16 10 16", "2 22 16 10"],
        ),
        (
            ("10 16 22", "22 10 22", "22 22 10"),
            ["   0  1  2", "0 10 16 22", "1 22 10 22", "2 22 22 10"],
        ),
        # Four GH200 have 36 NUMA nodes.
        (GH200, ["11 to 45, without a pattern; see --json"]),
    ],
)
def test_describe_distances(rows: tuple[str, ...], lines: list[str]) -> None:
    """There is no line if all distances are equal or one is unknown."""
    assert describe_distances(at_distances(*rows)) == lines


def test_distances_with_gaps_between_ids() -> None:
    """A POWER9 whose GPUs are NUMA nodes has such ids."""
    found = at_distances("10 40 80", "40 10 80", "80 80 10", ids=(0, 8, 255))

    assert describe_distances(found) == ["40 within 0,8; 80 otherwise"]
