"""In an allocation without srun: alone where that is clear, refused where it would be a mistake."""

import pytest

from tests.captured import captured
from tests.described import describe, mistake
from tests.job.door import (
    Allocation,
    Fact,
    ThisProcess,
    Variables,
    allocation_here,
)

pytestmark = pytest.mark.usefixtures("script")

ON_N1 = ThisProcess(host="n1.cluster", cpus=8, python="/usr/bin/env", run_id="chosen")


def test_a_batch_script_of_several_nodes_needs_srun() -> None:
    """Otherwise node 0 would train alone; the hint is the whole line to type."""
    assert mistake(
        "train.py", "--lr", "1", flags={"nproc_per_node": "2"}, environ=captured("batch")
    ) == (
        "a batch script runs on the first node only, but the job has 2 nodes (SLURM_JOB_NUM_NODES)",
        "put srun before clusterrun:\n  srun -c 2 clusterrun --nproc-per-node 2 train.py --lr 1",
    )


@pytest.mark.parametrize(
    ("changes", "srun"),
    [
        ({"SLURM_CPUS_PER_TASK": "16"}, "srun -c 16 "),
        ({"SLURM_JOB_CPUS_PER_NODE": "72(x2),36"}, "srun -c 36 "),
        (
            {
                "SLURM_JOB_CPUS_PER_NODE": "72(x2)",
                "SLURM_TASKS_PER_NODE": "8(x2)",
                "SLURM_NTASKS_PER_NODE": "8",
            },
            "srun -c 9 ",
        ),
        # As with sbatch --exclusive: nobody has asked for tasks.
        ({"SLURM_JOB_CPUS_PER_NODE": "72(x2)", "SLURM_TASKS_PER_NODE": "72(x2)"}, "srun -c 72 "),
        ({"SLURM_JOB_CPUS_PER_NODE": "1(x2)"}, "srun "),
        ({"SLURM_JOB_CPUS_PER_NODE": ""}, "srun "),
    ],
)
def test_the_line_asks_for_the_cpus_too(changes: dict[str, str], srun: str) -> None:
    """Since 22.05 srun does not inherit sbatch's ``-c``, and binds each task to one core."""
    environ = captured("batch") | {"SLURM_CPUS_PER_TASK": ""} | changes

    _, hint = mistake("train.py", environ=environ)

    assert hint == f"put srun before clusterrun:\n  {srun}clusterrun train.py"


def test_a_batch_script_submitted_from_inside_a_step() -> None:
    """It has inherited that step's variables, by which it would be a job of one node."""
    message, _ = mistake("train.py", environ=captured("batch_from_step"))

    assert message.startswith("a batch script runs on the first node only, but the job has 2 nodes")


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_JOBID"])
def test_a_container_that_has_the_jobs_id_alone(name: str) -> None:
    """No variable has the nodes: it is an ordinary job on one machine."""
    job = describe("train.py", environ={name: "12", "SLURM_JOB_NAME": "x"}).job

    assert job.fact("nnodes") == Fact(1, "default")
    assert job.workers.cluster == "none"


def test_a_batch_script_of_one_node_needs_nothing() -> None:
    """It is an ordinary job on one machine, with Slurm's GPUs and a free port."""
    job = describe("train.py", environ=captured("batch_of_one")).job

    assert job.fact("nnodes") == Fact(1, "SLURM_JOB_NUM_NODES")
    assert job.fact("nproc_per_node") == Fact(2, "SLURM_GPUS_ON_NODE")
    assert job.fact("cluster") == Fact("slurm", "SLURM_JOB_ID")
    assert (job.meeting.master_port, job.port_candidates) == (None, ())
    assert job.origin("run_id") == "default"


@pytest.mark.parametrize(
    "flags",
    [
        {"nnodes": "1"},
        {"nnodes": "2", "node_rank": "0", "master_addr": "n0"},
        {"nnodes": "2", "node_rank": "1", "rdzv_endpoint": "n0:29500"},
        {"cluster": "none"},
    ],
)
def test_complete_flags_replace_the_allocation(flags: dict[str, str]) -> None:
    """Some users start the other nodes by ssh; some need only this one."""
    job = describe("train.py", flags=flags, environ=captured("batch")).job

    assert job.nnodes == int(flags.get("nnodes", "1"))
    assert job.workers.node_rank == (int(flags["node_rank"]) if "node_rank" in flags else None)


def test_incomplete_flags_are_the_same_mistake() -> None:
    """As in a script for torchrun where srun was forgotten."""
    flags = {"nnodes": "2", "rdzv_endpoint": "n0:29500"}

    message, hint = mistake("train.py", flags=flags, environ=captured("batch"))

    assert message.startswith("a batch script runs")
    assert hint.endswith(
        "srun -c 2 clusterrun --nnodes 2 --rdzv-endpoint n0:29500 train.py",
    )


def test_a_shell_on_the_login_node() -> None:
    """It is not one of the job's nodes."""
    assert mistake("train.py", environ=captured("salloc")) == (
        "the job's nodes are n[0-1] (SLURM_JOB_NODELIST), but this shell runs on node7",
        (
            "put srun before clusterrun:\n  srun -c 2 clusterrun train.py\n"
            "or run the job on this host:\n  clusterrun --cluster none train.py"
        ),
    )


@pytest.mark.parametrize("name", ["salloc", "interactive"])
def test_a_shell_on_one_of_the_nodes(name: str) -> None:
    """It is alone, as in a notebook, and a warning has the line for all nodes."""
    resolved = describe("train.py", environ=captured(name), process=ON_N1)

    assert resolved.job.fact("nnodes") == Fact(1, "a shell without srun")
    assert resolved.job.tasks is None
    (warning,) = resolved.warnings
    assert warning.startswith(
        "the job runs on this node only, though 2 are allocated (SLURM_JOB_NUM_NODES)"
    )


def test_a_node_with_another_name_in_slurm() -> None:
    """On a node SLURMD_NODENAME is its name in the list, whatever the host calls itself."""
    resolved = describe("train.py", environ=captured("interactive"))

    assert resolved.job.nnodes == 1


def test_two_shells_may_be_two_nodes() -> None:
    """Flags that speak of several nodes are not compared with a shell's guess."""
    flags = {"nnodes": "2", "master_addr": "n0"}

    resolved = describe("train.py", flags=flags, environ=captured("salloc"), process=ON_N1)

    assert resolved.job.fact("nnodes") == Fact(2, "--nnodes")
    assert resolved.warnings == ()


def test_a_batch_script_of_several_groups_of_nodes() -> None:
    """Slurm's other variables are those of the first group, here of one node."""
    groups = {
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
        "SLURM_JOB_NUM_NODES_HET_GROUP_1": "3",
    }

    message, hint = mistake("train.py", environ=captured("batch_of_one") | groups)

    assert message == (
        "a batch script runs on the first node only, but the job has 4 nodes"
        " (SLURM_JOB_NUM_NODES_HET_GROUP_*)"
    )
    assert "srun --het-group=0,1 clusterrun train.py" in hint


def test_steps_on_some_of_the_nodes() -> None:
    """One task on each node, with all CPUs of the smallest, whatever the job's tasks are."""
    assert allocation_here(Variables(captured("salloc"))) is not None
    assert allocation_here(Variables(captured("interactive"))) is not None
    variables = Variables({**captured("batch"), "SLURM_JOB_CPUS_PER_NODE": "72(x2),36"})

    allocation = allocation_here(variables)

    assert allocation == Allocation(nodes=2, cpus=36)
    assert allocation.srun(1) == (
        *("srun", "--quit-on-interrupt", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
        *("-c", "36"),
    )


@pytest.mark.parametrize(
    "variables",
    [
        {},
        captured("node.0"),
        captured("in_batch.1"),
        captured("batch") | {"SLURM_JOB_NUM_NODES": "1"},
        captured("batch") | {"SLURM_HET_SIZE": "2"},
    ],
)
def test_no_steps(variables: dict[str, str]) -> None:
    """Outside of Slurm, in a step, on one node, and where nodes of groups differ."""
    assert allocation_here(Variables(variables)) is None
