"""Processes in an allocation of Slurm that srun did not start."""

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


def test_shell_on_a_node_runs_a_one_node_job_with_a_warning() -> None:
    """The host's name may have a domain; lines/slurm_allocations.txt has other shells."""
    resolved = describe("train.py", environ=captured("salloc"), process=ON_N1)

    assert resolved.job.setting("nnodes") == Setting(1, "a shell without srun")
    (warning,) = resolved.warnings
    assert warning.startswith(
        "the job runs on this node only, though 2 are allocated (SLURM_JOB_NUM_NODES)"
    )


def test_srun_command_of_an_allocation() -> None:
    """One task on each node, with as many CPUs as the smallest node has."""
    assert current_allocation(Variables(captured("salloc")), ON_N1) is not None
    assert current_allocation(Variables(captured("interactive")), ON_N1) is not None
    variables = Variables({**captured("batch"), "SLURM_JOB_CPUS_PER_NODE": "72(x2),36"})

    allocation = current_allocation(variables, ON_N1)

    assert allocation == Allocation(nodes=2, cpus=36)
    assert allocation.srun(1) == (
        *("srun", "--quit-on-interrupt", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
        *("-c", "36"),
    )


def test_srun_command_in_the_shell_of_a_step() -> None:
    """The new step shares the shell's nodes and does not inherit its CPUs."""
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
def test_no_allocation_for_steps(variables: dict[str, str]) -> None:
    """Outside of Slurm, in a step, on one node, or with nodes of several groups."""
    assert current_allocation(Variables(variables), ON_N1) is None
