"""The one worker of a task: its GPU, its CPUs, and its variables on the other tasks."""

from typing import Any

import pytest
from clusterrun.domain.job import NumaBinding, TaskLayout
from clusterrun.domain.machine import Gpu, Machine
from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.domain.ranks import GlobalRank, LocalRank, NodeRank
from clusterrun.planning.node_plan import plan_node
from clusterrun.rendezvous.assumed import assumed_world

from tests.plans import job, machine

NODES = {0: "0-3", 1: "4-7"}


def layout(local_rank: int, local_size: int = 4, *, own_cpus: bool = False) -> TaskLayout:
    """Return the layout of a task on the second of two nodes with ``local_size`` tasks each."""
    return TaskLayout(
        rank=GlobalRank(local_size + local_rank),
        size=2 * local_size,
        local_rank=LocalRank(local_rank),
        local_size=local_size,
        node_rank=NodeRank(1),
        nodes=2,
        own_cpus=own_cpus,
    )


def plan(tasks: TaskLayout, here: Machine, **values: Any) -> NodePlan:  # noqa: ANN401 - as job's
    spec = job(tasks=tasks, nnodes=2, nproc_per_node=1, master_addr="n0", **values)
    return plan_node(spec, here, assumed_world(spec, 1), unset=(), error_files=None, environ={})


def _only_gpu(worker: WorkerPlan) -> Gpu:
    (only,) = worker.gpus
    return only


def test_a_task_that_sees_all_gpus_uses_its_own() -> None:
    """As the worker of that local rank would under one clusterrun a node."""
    (worker,) = plan(layout(2), machine(NODES, [0, 0, 1, 1])).workers

    assert (worker.rank, _only_gpu(worker).index, str(worker.cpus)) == (6, 2, "4-7")
    assert worker.local_rank_reason == ""


def test_what_the_worker_is_told() -> None:
    """Its place among the tasks of all nodes, though its agent has but one worker."""
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


def test_a_task_that_sees_one_gpu_calls_it_0() -> None:
    """Scripts use GPU LOCAL_RANK, and such a task's only one is number 0; one line says why."""
    (worker,) = plan(layout(2), machine(NODES, [0, 0, 1, 1], visible=[2])).workers

    assert (_only_gpu(worker).index, str(worker.cpus)) == (2, "4-7")
    assert (worker.env["LOCAL_RANK"], worker.env["LOCAL_WORLD_SIZE"]) == ("0", "4")
    assert worker.local_rank_reason == (
        "LOCAL_RANK is 0: this is task 2 of 4 on its node, and sees 1 GPU"
    )


def test_a_task_that_sees_some_gpus_begins_at_its_first() -> None:
    """``--gpus-per-task=2``: there is no third for local rank 2."""
    (worker,) = plan(layout(2), machine(NODES, [0, 0, 1, 1], visible=[2, 3])).workers

    assert (_only_gpu(worker).index, worker.env["LOCAL_RANK"]) == (2, "0")


def test_a_node_with_one_task_needs_no_reason() -> None:
    """Others have more; here local rank 0 is what one would expect."""
    (worker,) = plan(layout(0, 1), machine(NODES, [0])).workers

    assert (worker.env["LOCAL_RANK"], worker.local_rank_reason) == ("0", "")


def test_without_gpus_the_task_is_where_the_scheduler_put_it() -> None:
    """Its index stays; its CPUs are cut only where they all belong to one node anyway."""
    (anywhere,) = plan(layout(2), machine(NODES)).workers
    (bound,) = plan(layout(2, own_cpus=True), machine(NODES, allowed="4-5")).workers

    assert (anywhere.cpus, anywhere.env["LOCAL_RANK"]) == (None, "2")
    assert str(bound.cpus) == "4-5"


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
def test_threads(tasks: TaskLayout, visible: list[int], allowed: str, threads: str) -> None:
    """A share of what all tasks of the node may use, or all that is this task's alone."""
    here = machine(NODES, [0, 0, 1, 1], visible=visible, allowed=allowed)

    assert plan(tasks, here).env["OMP_NUM_THREADS"] == threads


def test_cpus_that_other_tasks_use_are_not_idle() -> None:
    """Only where they are this task's alone does it waste them."""
    here = machine(NODES, [0, 0, 1, 1], visible=[2], packages=["0-3", "4-7"])

    assert plan(layout(2), here).remarks == ()
    own = plan(layout(2, own_cpus=True), here, numa_binding=NumaBinding.NODE)
    (remark,) = own.remarks
    assert remark.startswith("no worker is bound to CPUs 0-3")


def test_cpus_of_its_own_are_all_used() -> None:
    """A node without its GPU has no other task on these CPUs, so ``near`` may have them."""
    here = machine(NODES, [0, 0, 1, 1], visible=[2], allowed="3-5")

    (worker,) = plan(layout(2, own_cpus=True), here).workers

    assert str(worker.cpus) == "3-5"


def test_no_binding_is_no_binding() -> None:
    """Of tasks too."""
    here = machine(NODES, [0, 0, 1, 1])

    (worker,) = plan(layout(2), here, numa_binding=NumaBinding.NONE).workers

    assert worker.cpus is None
    assert worker.gpus


def test_a_task_among_others_divides_with_them() -> None:
    """Where all see the same GPUs and CPUs, each has its own slice."""
    here = machine(NODES, [0, 0, 1, 1])

    masks = [
        str(plan(layout(rank), here, numa_binding=NumaBinding.EXCLUSIVE).workers[0].cpus)
        for rank in range(4)
    ]

    assert masks == ["0-1", "2-3", "4-5", "6-7"]


def test_a_task_that_sees_its_gpu_alone_leaves_the_others_their_slices() -> None:
    """The bus shows them, whatever the container hides."""
    here = machine(NODES, [0, 0, 1, 1], visible=[3])

    (worker,) = plan(layout(3), here, numa_binding=NumaBinding.EXCLUSIVE).workers

    assert str(worker.cpus) == "6-7"


@pytest.mark.parametrize("visible", [[0, 1, 2, 3], [2], []])
def test_a_task_with_cpus_of_its_own_divides_them_with_nobody(visible: list[int]) -> None:
    """The scheduler has done that."""
    here = machine(NODES, [0, 0, 1, 1], visible=visible, allowed="4-5")

    (worker,) = plan(layout(2, own_cpus=True), here, numa_binding=NumaBinding.EXCLUSIVE).workers

    assert str(worker.cpus) == "4-5"


def test_tasks_without_gpus_divide_what_they_share() -> None:
    """As the workers of one clusterrun a node would."""
    (worker,) = plan(layout(2), machine(NODES), numa_binding=NumaBinding.EXCLUSIVE).workers

    assert str(worker.cpus) == "4-5"


def test_a_task_of_several_gpus() -> None:
    """Blocks of what all see, or all of what it sees alone."""
    here = machine(NODES, [0, 0, 1, 1])

    (of_all,) = plan(layout(1, 2), here, gpus_per_worker=2).workers
    (alone,) = plan(
        layout(1, 2), machine(NODES, [0, 0, 1, 1], visible=[2, 3]), gpus_per_worker=2
    ).workers

    assert [gpu.index for gpu in of_all.gpus] == [gpu.index for gpu in alone.gpus] == [2, 3]
    assert (of_all.env["LOCAL_RANK"], alone.env["LOCAL_RANK"]) == ("1", "0")
