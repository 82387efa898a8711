"""In an allocation without srun: alone where that is clear, refused where it would be a mistake."""

import pytest
from clusterrun.job.clusters.found import Variables
from clusterrun.job.clusters.slurm import Allocation, current_allocation
from clusterrun.job.declarations import Setting
from clusterrun.job.this_process import ThisProcess
from msgspec.structs import replace

from tests.captured import captured
from tests.described import describe

pytestmark = pytest.mark.usefixtures("script")

ON_N1 = ThisProcess(
    host="n1.cluster",
    cpus=8,
    python="/usr/bin/env",
    run_id="chosen",
    is_under_shell=lambda: False,
)


@pytest.mark.parametrize("name", ["salloc", "interactive"])
def test_a_shell_on_one_of_the_nodes(name: str) -> None:
    """It is alone, as in a notebook, and a warning has the line for all nodes."""
    resolved = describe("train.py", environ=captured(name), process=ON_N1)

    assert resolved.job.setting("nnodes") == Setting(1, "a shell without srun")
    assert resolved.job.tasks is None
    (warning,) = resolved.warnings
    assert warning.startswith(
        "the job runs on this node only, though 2 are allocated (SLURM_JOB_NUM_NODES)"
    )


def test_two_shells_may_be_two_nodes() -> None:
    """Flags that speak of several nodes are not compared with a shell's guess."""
    flags = {"nnodes": "2", "master_addr": "n0"}

    resolved = describe("train.py", flags=flags, environ=captured("salloc"), process=ON_N1)

    assert resolved.job.setting("nnodes") == Setting(2, "--nnodes")
    assert resolved.warnings == ()


def test_steps_on_some_of_the_nodes() -> None:
    """One task on each node, with all CPUs of the smallest, whatever the job's tasks are."""
    assert current_allocation(Variables(captured("salloc")), ON_N1) is not None
    assert current_allocation(Variables(captured("interactive")), ON_N1) is not None
    variables = Variables({**captured("batch"), "SLURM_JOB_CPUS_PER_NODE": "72(x2),36"})

    allocation = current_allocation(variables, ON_N1)

    assert allocation == Allocation(nodes=2, cpus=36)
    assert allocation.srun(1) == (
        *("srun", "--quit-on-interrupt", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
        *("-c", "36"),
    )


def test_steps_beside_that_of_the_shell() -> None:
    """They share its nodes, and do not inherit its CPUs."""
    process = replace(ON_N1, is_under_shell=lambda: True)

    allocation = current_allocation(Variables(captured("pty_nodes.0")), process)

    assert allocation is not None
    options = ("--quit-on-interrupt", "--overlap", "--cpu-bind=none")
    assert allocation.srun(2)[:4] == ("srun", *options)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        captured("node.0"),
        captured("in_batch.1"),
        captured("pty_nodes.0"),
        captured("batch") | {"SLURM_JOB_NUM_NODES": "1"},
        captured("batch") | {"SLURM_HET_SIZE": "2"},
    ],
)
def test_no_steps(variables: dict[str, str]) -> None:
    """Outside of Slurm, in a step, on one node, and where nodes of groups differ."""
    assert current_allocation(Variables(variables), ON_N1) is None
