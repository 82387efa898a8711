"""A scheduler has started a task for each worker: messages count tasks, and name the command to start them."""

from signal import SIGQUIT

from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.job.job import TaskLayout

from tests.histories.job_history import Job
from tests.histories.join_history import JoinHistory

OF_SRUN = TaskLayout(
    rank=GlobalRank(0),
    size=4,
    local_rank=LocalRank(0),
    local_size=2,
    node_rank=NodeRank(0),
    nodes=2,
    all_tasks="srun -n 4 clusterrun ...",
)
START = "start all tasks at once:   srun -n 4 clusterrun ..."


def test_missing_tasks_are_named_by_rank() -> None:
    """Each has a rank from its scheduler; the hint is the command that starts them all."""
    job = JoinHistory(nodes=4, rank=0, tasks=OF_SRUN, rdzv_timeout=60).joins(rank=1, host="n0")

    assert job.time_passes(5).settles().new_lines()[0] == (
        "node 0 prints: 2 of 4 tasks have joined: n0; waiting for tasks 2-3 (5 s of 60 s)"
    )
    assert job.joins(rank=3, host="n1").time_passes(55).settles().new_lines()[-3] == (
        "node 0 gives up: 3 of 4 tasks joined within 60 s: n0, n1; missing: task 2"
        f" ({START} each must reach n0:29500 to wait longer, give --rdzv-timeout SECONDS)"
    )


def test_mismatching_task() -> None:
    """Two programs, or two runs of srun, that have become one job."""
    job = JoinHistory(nodes=4, rank=0, tasks=OF_SRUN).joins(rank=1)

    assert [
        job.joins(**says).settles().new_lines()[-1].partition(": ")[2]
        for says in ({"rank": 1}, {"rank": 4}, {"must": {"nnodes": "3"}})
    ] == [
        f"two tasks have rank 1: n1 (pid 11) and n2 (pid 12) ({START})",
        f"n3 (pid 13) has rank 4, but the ranks of 4 tasks are 0-3 ({START})",
        f"nnodes is 4 on n0, 3 on n4 ({START})",
    ]


def test_lost_task() -> None:
    """Its number is not a node's."""
    job = Job(nodes=4, tasks=OF_SRUN).loses_node(3).settles()

    assert "node 0 prints: task 3 (n3) is gone: stopping 1 worker on this node" in job.new_lines()


def test_stacks_of_tasks_follow_in_task_0() -> None:
    job = Job(nodes=4, tasks=OF_SRUN).signalled(SIGQUIT, 1)

    assert job.new_lines()[0] == (
        "node 1 prints: SIGQUIT: the Python stacks of all ranks follow in task 0; the job keeps"
        " running"
    )
