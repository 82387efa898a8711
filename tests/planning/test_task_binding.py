"""The only worker of a scheduler's task: its GPU, CPUs and variables."""

from collections.abc import Sequence
from typing import Any

import pytest
from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.cpuset import CpuSet
from clusterrun.errors import UsageError
from clusterrun.job.job import TaskLayout
from clusterrun.job.options import NumaBinding
from clusterrun.machine.machine import Machine, PciGpu
from clusterrun.planning.plan import NodePlan, assumed_world
from msgspec.structs import replace

from tests.plans import job, machine, planned

NODES = {0: "0-3", 1: "4-7"}


def layout(
    local_rank: int, local_size: int = 4, *, own_cpus: bool | None = False, gpus: int | None = None
) -> TaskLayout:
    """Return the layout of a task on the second of two nodes with ``local_size`` tasks each."""
    return TaskLayout(
        rank=GlobalRank(local_size + local_rank),
        size=2 * local_size,
        local_rank=LocalRank(local_rank),
        local_size=local_size,
        node_rank=NodeRank(1),
        nodes=2,
        own_cpus=own_cpus,
        gpus=gpus,
    )


def plan(tasks: TaskLayout, here: Machine, **values: Any) -> NodePlan:
    spec = job(tasks=tasks, nnodes=2, nproc_per_node=1, master_addr="n0", **values)
    return planned(spec, here, assumed_world(spec, 1))


SEES_1 = "LOCAL_RANK is 0: this is task 2 of 4 on its node, and sees 1 GPU"


@pytest.mark.parametrize(
    ("tasks", "visible", "gpu", "cpus", "local_rank", "reason"),
    [
        # A task that sees all has the GPU of that local rank under one clusterrun per node.
        (layout(2), [0, 1, 2, 3], 2, "4-7", "2", ""),
        # Scripts use GPU LOCAL_RANK, and the only GPU of such a task is number 0.
        (layout(2), [2], 2, "4-7", "0", SEES_1),
        # --gpus-per-task 1: of four that the job has on the node, the task sees one.
        (layout(2, gpus=4), [2], 2, "4-7", "0", SEES_1),
        # With --gpus-per-task 2 local rank 2 would find no third GPU.
        (layout(2), [2, 3], 2, "4-7", "0", SEES_1.replace("1 GPU", "2 GPUs")),
        # The local rank of a node's only task is 0 anyway.
        (layout(0, 1), [0], 0, "0-3", "0", ""),
        # Without GPUs it keeps its local rank, and is bound if all its CPUs belong to one node.
        (layout(2), [], None, "None", "2", ""),
    ],
)
def test_a_task_uses_its_own_gpu(
    tasks: TaskLayout,
    visible: list[int],
    gpu: int | None,
    cpus: str,
    *,
    local_rank: str,
    reason: str,
) -> None:
    (worker,) = plan(tasks, machine(NODES, [0, 0, 1, 1], visible=visible)).workers

    assert [each.index for each in worker.gpus] == ([] if gpu is None else [gpu])
    assert str(worker.cpus) == cpus
    assert worker.env["LOCAL_RANK"] == local_rank
    assert worker.local_rank_reason == reason


def test_variables_of_a_task() -> None:
    """The variables describe the tasks of all nodes, not the one worker of the agent."""
    (worker,) = plan(layout(2), machine(NODES, [0, 0, 1, 1])).workers

    expected = {
        "RANK": "6",
        "ROLE_RANK": "6",
        "WORLD_SIZE": "8",
        "ROLE_WORLD_SIZE": "8",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "NODE_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
    }
    assert {name: worker.env[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("tasks", "visible", "allowed", "threads"),
    [
        (layout(2), [0, 1, 2, 3], "0-7", "2"),
        (layout(2), [2], "0-7", "2"),
        (layout(2), [], "0-7", "2"),
        (layout(2, own_cpus=True), [2], "4-6", "3"),
        (layout(2, own_cpus=True), [], "4-6", "3"),
        (layout(2, own_cpus=True), [2], "3-5", "3"),
        (layout(2), [2], "4", "1"),
    ],
)
def test_threads_of_a_task(
    tasks: TaskLayout, visible: list[int], allowed: str, threads: str
) -> None:
    """The task has a share of the CPUs of all tasks, or all CPUs of its own."""
    here = machine(NODES, [0, 0, 1, 1], visible=visible, allowed=allowed)

    assert plan(tasks, here).env["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize(
    ("tasks", "allowed", "cpuset", "cpus", "threads"),
    [
        # mpirun --map-by slot:PE=2: each of four tasks can have as many of the eight cores.
        (4, "4-5", "", "4-5", "2"),
        (4, "4-6", "", "4-5", "1"),
        # mpirun --bind-to none in a quarter of a machine.
        (4, "4-5", "4-5", "4", "1"),
        (4, "4", "4-7", "4", "1"),
        (2, "4-7", "0-7", "4-7", "4"),
        # It shares its CPUs with no other task, but perhaps with another job.
        (1, "0-7", "", "4-5", "2"),
    ],
)
def test_cpus_of_a_task_if_ownership_is_unknown(
    tasks: int, allowed: str, cpuset: str, cpus: str, threads: str
) -> None:
    """They are its own if every task can have as many cores."""
    here = machine(NODES, [0, 0, 1, 1], visible=[2], allowed=allowed)

    found = plan(
        layout(0, tasks, own_cpus=None),
        replace(here, cpuset=CpuSet.parse(cpuset)),
        numa_binding=NumaBinding.EXCLUSIVE,
    )

    assert (str(found.workers[0].cpus), found.env["OMP_NUM_THREADS"]) == (cpus, threads)


def test_cpus_that_other_tasks_use_are_not_idle() -> None:
    """Idle CPUs are warned about only if no other task uses them."""
    here = machine(NODES, [0, 0, 1, 1], visible=[2], packages=["0-3", "4-7"])

    assert plan(layout(2), here).warnings == ()
    own = plan(layout(2, own_cpus=True), here, numa_binding=NumaBinding.NODE)
    (warning,) = own.warnings
    assert warning.startswith("no worker is bound to CPUs 0-3")


OWN = layout(2, own_cpus=True)
ALL = range(4)


@pytest.mark.parametrize(
    ("tasks", "mode", "visible", "allowed", "cpus"),
    [
        # No other task uses these CPUs: near adds those of the node without a GPU.
        (OWN, "auto", [2], "3-5", "3-5"),
        (OWN, "auto", [], "4-5", "4-5"),
        (layout(2), "none", ALL, None, "None"),
        # Tasks that see the same GPUs and CPUs divide them.
        (layout(0), "exclusive", ALL, None, "0-1"),
        (layout(1), "exclusive", ALL, None, "2-3"),
        (layout(2), "exclusive", ALL, None, "4-5"),
        (layout(3), "exclusive", ALL, None, "6-7"),
        (layout(2), "exclusive", [], None, "4-5"),
        # The bus shows the GPUs that a container hides: the other tasks have their parts.
        (layout(3), "exclusive", [3], None, "6-7"),
        # The scheduler has divided the CPUs.
        (OWN, "exclusive", ALL, "4-5", "4-5"),
        (OWN, "exclusive", [2], "4-5", "4-5"),
        (OWN, "exclusive", [], "4-5", "4-5"),
    ],
)
def test_cpus_of_a_task(
    tasks: TaskLayout, mode: str, visible: Sequence[int], allowed: str | None, cpus: str
) -> None:
    """Tasks divide CPUs that they share, as the workers of one clusterrun on the node would."""
    here = machine(NODES, [0, 0, 1, 1], visible=visible, allowed=allowed)

    (worker,) = plan(tasks, here, numa_binding=NumaBinding(mode)).workers

    assert str(worker.cpus) == cpus
    assert [gpu.index for gpu in worker.gpus] == ([tasks.local_rank] if visible else [])


CLUSTERS = machine(
    {number: f"{4 * number}-{4 * number + 3}" for number in range(8)},
    [3, 3, 1, 1, 7, 5, 5],
    packages=["0-15", "16-31"],
)
"""Two packages of four clusters each; four clusters have no GPU."""


@pytest.mark.parametrize("mode", ["auto", "near", "node", "socket", "exclusive"])
@pytest.mark.parametrize("kept", [[], [0, 4, 12]], ids=["all CPUs", "some are the system's"])
def test_tasks_use_the_cpus_that_one_job_would(mode: str, kept: list[int]) -> None:
    """Each task sees one GPU, and the bus shows those of the others."""
    binding = NumaBinding(mode)
    node = replace(CLUSTERS, allowed=CpuSet(CLUSTERS.allowed - set(kept)))
    together = planned(job(numa_binding=binding), node, 7).workers

    for rank, worker in enumerate(together):
        here = replace(node, visible=node.visible[rank : rank + 1])
        (alone,) = plan(layout(rank, 7), here, numa_binding=binding).workers
        assert alone.cpus == worker.cpus


FOUR_CORES_EACH = machine(
    {0: "0-3,8-11", 1: "4-7,12-15"},
    [1, 1, 0, 0],
    packages=["0-3,8-11", "4-7,12-15"],
    cores=[f"{cpu},{cpu + 8}" for cpu in range(8)],
)


@pytest.mark.parametrize("mode", NumaBinding)
@pytest.mark.parametrize(
    ("allowed", "exclusive", "threads"),
    [
        # With --threads-per-core=1 a job has half of the CPUs, and all cores.
        ("0-7", ["4-5", "6-7", "0-1", "2-3"], "2"),
        ("0-1,4-5,8-9,12-13", ["4,12", "5,13", "0,8", "1,9"], "1"),
    ],
    ids=["one thread of each core", "half of the cores"],
)
def test_tasks_with_all_gpus_of_a_partial_node(
    mode: NumaBinding, allowed: str, exclusive: list[str], threads: str
) -> None:
    """Each is bound as one job's worker: no other job has a GPU there."""
    node = replace(FOUR_CORES_EACH, allowed=CpuSet.parse(allowed))
    together = planned(job(numa_binding=mode), node, 4)

    found = [
        plan(layout(rank), replace(node, visible=node.visible[rank:][:1]), numa_binding=mode)
        for rank in range(4)
    ]

    assert [task.workers[0].cpus for task in found] == [each.cpus for each in together.workers]
    assert {task.env["OMP_NUM_THREADS"] for task in found} == {threads}
    if mode is NumaBinding.EXCLUSIVE:
        assert [str(task.workers[0].cpus) for task in found] == exclusive


def test_threads_of_tasks_whose_gpus_are_on_one_node() -> None:
    """Each has a quarter of the cores that it is bound to, not of all."""
    here = machine({0: "0-7", 1: "8-15"}, [0] * 4, packages=["0-7", "8-15"], visible=[2])

    found = plan(layout(2), here)

    assert (str(found.workers[0].cpus), found.env["OMP_NUM_THREADS"]) == ("0-7", "2")


UNPLACED = tuple(replace(gpu, numa_node=None) for gpu in CLUSTERS.pci_gpus[1:])


@pytest.mark.parametrize("others", [(), UNPLACED], ids=["not there", "not placed"])
@pytest.mark.parametrize(("mode", "expected"), [("auto", "12-15"), ("socket", "0-15")])
def test_other_tasks_gpus_hidden_from_the_bus(
    others: tuple[PciGpu, ...], mode: str, expected: str
) -> None:
    """A NUMA node without a GPU may be another task's, so only modes that share CPUs use it."""
    bus = (*CLUSTERS.pci_gpus[:1], *others)
    here = replace(CLUSTERS, visible=CLUSTERS.visible[:1], pci_gpus=bus)

    (worker,) = plan(layout(0, 7, gpus=7), here, numa_binding=NumaBinding(mode)).workers

    assert str(worker.cpus) == expected


@pytest.mark.parametrize("cpus", ["0-12", "0-31"])
def test_task_beside_hidden_ones_keeps_the_last_core(cpus: str) -> None:
    """Where the GPUs of the others are is unknown."""
    here = replace(CLUSTERS, visible=CLUSTERS.visible[:1], pci_gpus=CLUSTERS.pci_gpus[:1])
    allowed = CpuSet(CpuSet.parse(cpus) - {13, 14, 15})

    (worker,) = plan(layout(0, 7, gpus=7), replace(here, allowed=allowed)).workers

    assert str(worker.cpus) == "12"


@pytest.mark.parametrize(
    ("gpus", "tasks", "mode", "expected"),
    [
        (1, 7, "exclusive", ["0-1", "2", "3", "4", "5", "6", "7"]),
        (1, 4, "core-complex", ["0-1", "2-3", "4-5", "6-7"]),
        (1, 7, "auto", ["0-7"] * 7),
        # How many tasks have a slice of the other GPU is unknown.
        (2, 4, "exclusive", ["0", "1", "2", "3"]),
    ],
)
def test_tasks_with_one_slice_each(gpus: int, tasks: int, mode: str, expected: list[str]) -> None:
    """Each sees one MIG slice, all of them of the first GPU here; the part of a GPU is divided."""
    size = 8 * gpus
    caches = [f"{at}-{at + 1}" for at in range(0, size, 2)]
    here = machine({0: "0-7"}, [0] * gpus, caches=caches[:4])
    slices = [replace(here.gpus[0], uuid=f"MIG-{at}", parent="GPU-0") for at in range(tasks)]

    found = [
        plan(
            layout(rank, tasks, gpus=tasks),
            replace(here, visible=(slices[rank],)),
            numa_binding=NumaBinding(mode),
        ).workers[0]
        for rank in range(tasks)
    ]

    assert [str(worker.cpus) for worker in found] == expected
    assert [worker.gpus[0].uuid for worker in found] == [one.uuid for one in slices]
    assert {worker.env["LOCAL_RANK"] for worker in found} == {"0"}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)], ids=["block", "cyclic"])
@pytest.mark.parametrize("allowed", ["0-7", "0-3"])
def test_tasks_with_slices_of_two_gpus(order: tuple[int, ...], allowed: str) -> None:
    """All slices are listed: each has its own half of its GPU's part, whichever task has it."""
    here = machine({0: "0-7"}, [0, 0], allowed=allowed)
    slices = [
        replace(gpu, uuid=f"MIG-{gpu.index}{at}", parent=gpu.uuid)
        for gpu in here.gpus
        for at in range(2)
    ]
    here = replace(here, gpus=(*here.gpus, *slices))

    found = [
        plan(
            layout(rank, gpus=4),
            replace(here, visible=(slices[at],)),
            numa_binding=NumaBinding.EXCLUSIVE,
        ).workers[0]
        for rank, at in enumerate(order)
    ]

    each = len(here.allowed) // 4
    assert [worker.cpus for worker in found] == [
        CpuSet(range(at * each, (at + 1) * each)) for at in order
    ]
    assert [worker.gpus for worker in found] == [(slices[at],) for at in order]
    assert {worker.env["LOCAL_RANK"] for worker in found} == {"0"}


def test_tasks_with_slices_and_a_whole_gpu() -> None:
    """Two each divide the parts of the GPUs that are split."""
    here = machine({0: "0-11"}, [0, 0, 0])
    slices = [
        replace(here.gpus[at], uuid=f"MIG-{at}{number}", parent=f"GPU-{at}")
        for at in (0, 2)
        for number in range(2)
    ]
    here = replace(here, gpus=(*here.gpus, *slices))

    found = [
        plan(
            layout(rank, 5, gpus=5),
            replace(here, visible=(own,)),
            numa_binding=NumaBinding.EXCLUSIVE,
        ).workers[0]
        for rank, own in enumerate([here.gpus[1], *slices])
    ]

    assert [str(worker.cpus) for worker in found] == ["4-7", "0-1", "2-3", "8-9", "10-11"]


@pytest.mark.parametrize(
    ("on_bus", "tasks", "of_job"),
    [(1, 7, None), (1, 7, 1), (1, 7, 7), (8, 7, None), (8, 7, 7), (8, 14, None), (8, 14, 2)],
)
def test_tasks_with_slices_hidden_from_each_other(
    on_bus: int, tasks: int, of_job: int | None
) -> None:
    """Up to seven tasks may have slices of one GPU. None sees another's slice, which is not an error."""
    here = machine({0: "0-55"}, [0] * on_bus)
    slices = [
        replace(here.gpus[at // 7], uuid=f"MIG-{at}", parent=f"GPU-{at // 7}")
        for at in range(tasks)
    ]

    found = [
        plan(
            layout(rank, tasks, gpus=of_job),
            replace(here, gpus=(here.gpus[own.index], own), visible=(own,)),
            numa_binding=NumaBinding.EXCLUSIVE,
        ).workers[0]
        for rank, own in enumerate(slices)
    ]

    each = 8 // on_bus
    assert [worker.cpus for worker in found] == [
        CpuSet(range(at * each, (at + 1) * each)) for at in range(tasks)
    ]


def test_slice_shared_by_all_tasks() -> None:
    """CUDA shows each of them the slice of the second GPU, and no other."""
    here = machine(NODES, [0, 1])
    here = replace(here, gpus=(*here.gpus, replace(here.gpus[1], uuid="MIG-a", parent="GPU-1")))

    found = [plan(layout(rank, 2), here).workers[0] for rank in (0, 1)]

    assert [worker.numa_nodes for worker in found] == [(1,), (1,)]


def test_private_cpus_are_not_divided() -> None:
    """The scheduler has bound the task to a whole node, whose other GPUs it does not see."""
    here = machine(NODES, [0, 0, 1, 1], visible=[2], allowed="4-7")

    slices = tuple(replace(gpu, uuid=f"MIG-{gpu.index}", parent=gpu.uuid) for gpu in here.gpus)
    split = replace(here, gpus=(*here.gpus, *slices), visible=slices[2:3])

    (worker,) = plan(OWN, here, numa_binding=NumaBinding.EXCLUSIVE).workers
    (of_slice,) = plan(OWN, split, numa_binding=NumaBinding.EXCLUSIVE).workers

    assert str(worker.cpus) == str(of_slice.cpus) == "4-7"


def test_a_task_of_several_gpus() -> None:
    """It has a block of the GPUs that all see, or all GPUs that only it sees."""
    here = machine(NODES, [0, 0, 1, 1])

    (of_all,) = plan(layout(1, 2), here, gpus_per_worker=2).workers
    (alone,) = plan(
        layout(1, 2), machine(NODES, [0, 0, 1, 1], visible=[2, 3]), gpus_per_worker=2
    ).workers

    assert [gpu.index for gpu in of_all.gpus] == [gpu.index for gpu in alone.gpus] == [2, 3]
    assert (of_all.env["LOCAL_RANK"], alone.env["LOCAL_RANK"]) == ("1", "0")


@pytest.mark.parametrize(
    ("tasks", "visible", "values", "need"),
    [
        (
            layout(5, 8),
            ALL,
            {},
            "the 8 tasks of this node need 8 GPUs, and all see the same 4 GPUs",
        ),
        # Two of four belong to the job.
        (
            layout(1, gpus=2),
            [0, 1],
            {},
            "the 4 tasks of this node need 4 GPUs, and all see the same",
        ),
        (
            layout(1, gpus=1),
            [3],
            {},
            "the 4 tasks of this node need 4 GPUs, and all see the same GPU",
        ),
        (layout(1), ALL, {"gpus_per_worker": 2}, "the 4 tasks of this node need 8 GPUs"),
    ],
)
def test_more_tasks_than_gpus(
    tasks: TaskLayout, visible: Sequence[int], values: dict[str, int], need: str
) -> None:
    """None has one of its own: all would use the first."""
    here = machine(NODES, [0, 0, 1, 1], visible=visible)

    with pytest.raises(UsageError, match=need) as refused:
        plan(tasks, here, **values)
    assert "--gpus-per-worker 0" in refused.value.hint


@pytest.mark.parametrize("tasks", [layout(5, 8), layout(5, 8, own_cpus=True)])
def test_tasks_that_share_gpus(tasks: TaskLayout) -> None:
    """Each has its own local rank; where its worker's GPU is, the script decides."""
    (worker,) = plan(tasks, machine(NODES, [0, 0, 1, 1]), gpus_per_worker=0).workers

    assert (worker.env["LOCAL_RANK"], worker.cpus, worker.gpus) == ("5", None, ())
    assert worker.local_rank_reason == ""
    # The scheduler has bound it, if its CPUs are its own.
    assert worker.warning == ("" if tasks.own_cpus else "not bound: 8 workers for 4 GPUs")
