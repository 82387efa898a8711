"""The lines that --verbose prints at a start."""

from msgspec.structs import replace

from tests.plans import gpu, world
from tests.report.door import (
    CpuSet,
    GlobalRank,
    LocalRank,
    NodePlan,
    WorkerPlan,
    describe_start,
)

BOUND = WorkerPlan(
    rank=GlobalRank(0),
    local_rank=LocalRank(0),
    gpus=(gpu(3, 1),),
    numa_nodes=(1,),
    cpus=CpuSet.parse("0-3,8"),
    memory=None,
    env={},
    remark="",
)
FREE = replace(
    BOUND, rank=GlobalRank(1), local_rank=LocalRank(1), gpus=(), numa_nodes=(), cpus=None
)


def plan(interface: str = "") -> NodePlan:
    return NodePlan(
        world=replace(world(2), interface=interface),
        host="gpu-07",
        command=("python", "-u", "train.py"),
        signal_group=False,
        env={},
        unset=(),
        workers=(BOUND, FREE),
        remarks=(),
    )


def test_the_attempt_and_each_worker_have_a_line() -> None:
    first, *others = describe_start(plan())

    assert first == (
        "run run, attempt 0: 2 of 2 workers on gpu-07, node 0 of 1;"
        " master address 127.0.0.1, port 29500"
    )
    assert others == [
        f"rank 0: GPU 3 ({gpu(3, 1).bdf}), CPUs 0-3,8 of NUMA node 1",
        "rank 1: no GPU, all CPUs",
    ]


def test_a_kernel_that_moves_pages_has_a_line() -> None:
    """It matters if workers are bound."""
    (line,) = set(describe_start(plan(), moves_pages=True)) - set(describe_start(plan()))

    assert line.startswith("kernel.numa_balancing is on")


def test_the_network_interface_has_a_line() -> None:
    """Clusterrun has chosen it, and the user should know."""
    assert "gloo, NCCL and TensorPipe use the network interface eth0" in describe_start(
        plan("eth0")
    )
