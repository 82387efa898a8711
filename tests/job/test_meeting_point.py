"""Where agents meet: the sources of address and port, and their errors."""

from collections.abc import Mapping

import pytest

from tests.captured import captured
from tests.command_lines import Flags
from tests.described import describe, mistake
from tests.job.door import Fact, port_candidates

pytestmark = pytest.mark.usefixtures("script")

STEP = captured("node.1")
TWO = {"nnodes": "2", "node_rank": "1"}


def test_an_address_alone_is_enough() -> None:
    """The port is torchrun's."""
    job = describe("train.py", flags=TWO | {"master_addr": "[fd00::1]"}).job

    assert job.fact("master_addr") == Fact("fd00::1", "--master-addr")
    assert job.fact("master_port") == Fact(29500, "default")
    assert job.fact("rdzv_endpoint") == Fact(None, "default")


def test_an_endpoint_is_not_the_workers_port() -> None:
    """That one is chosen, unless it is given."""
    flags = TWO | {"rdzv_endpoint": "[fd00::1]:29400"}

    job = describe("train.py", flags=flags).job

    assert job.fact("rdzv_endpoint") == Fact("[fd00::1]:29400", "--rdzv-endpoint")
    assert (job.meeting.master_addr, job.meeting.master_port) == (None, None)
    assert (
        describe("train.py", flags=flags | {"master_port": "1234"}).job.meeting.master_port == 1234
    )


def test_exported_variables_are_where_workers_meet() -> None:
    """Scripts export them before any launcher; they have origins of their own."""
    environ = {"MASTER_ADDR": "node0", "MASTER_PORT": "1234"}

    job = describe("train.py", flags=TWO, environ=environ).job

    assert job.fact("master_addr") == Fact("node0", "MASTER_ADDR")
    assert job.fact("master_port") == Fact(1234, "MASTER_PORT")


def test_exported_variables_beat_the_cluster_and_nothing_else() -> None:
    """Below flags, variables of ours and the job file."""
    environ = STEP | {"MASTER_ADDR": "n0-ib", "MASTER_PORT": "1234", "PET_MASTER_PORT": "4321"}

    job = describe("train.py", environ=environ).job

    assert job.fact("master_addr") == Fact("n0-ib", "MASTER_ADDR")
    assert job.fact("master_port") == Fact(4321, "PET_MASTER_PORT")
    assert job.fact("port_candidates") == Fact((), "default")


def test_an_exported_port_beside_an_endpoint_is_the_endpoints() -> None:
    """``--rdzv-endpoint $MASTER_ADDR:$MASTER_PORT``: workers can't listen there as well."""
    environ = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}

    job = describe("train.py", flags=TWO | {"rdzv_endpoint": "node0:29500"}, environ=environ).job

    assert (job.meeting.master_addr, job.meeting.master_port) == (None, None)


def test_exported_variables_are_ignored_on_one_node() -> None:
    """Any number of jobs run on a machine whose login script exports a port."""
    job = describe("train.py", environ={"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}).job

    assert job.fact("master_addr") == Fact(None, "default")
    assert job.fact("master_port") == Fact(None, "default")


def test_the_cluster_sets_where_to_meet() -> None:
    """On its first host, at the first of some ports that no other job has."""
    job = describe("train.py", environ=STEP).job

    assert job.fact("master_addr") == Fact("n0", "SLURM_STEP_NODELIST")
    assert job.fact("master_port") == Fact(None, "default")
    assert job.fact("port_candidates") == Fact(
        port_candidates(26, 0), "SLURM_JOB_ID, SLURM_STEP_ID"
    )
    assert job.fact("run_id") == Fact("26.0", "SLURM_JOB_ID, SLURM_STEP_ID")


def test_a_given_address_keeps_the_clusters_ports() -> None:
    """Many jobs on the same hosts never meet by chance."""
    job = describe("train.py", flags={"master_addr": "n0-ib"}, environ=STEP).job

    assert job.fact("master_addr") == Fact("n0-ib", "--master-addr")
    assert job.port_candidates == port_candidates(26, 0)


def test_one_node_of_slurm_needs_no_address() -> None:
    """A free port and the loopback, as anywhere."""
    job = describe("train.py", environ=captured("rest.0")).job

    assert job.nnodes == 1
    assert (job.meeting.master_addr, job.meeting.master_port) == (None, None)
    assert job.port_candidates == ()
    assert job.joining.run_id.count(".") == 1


def test_tasks_of_one_node_meet() -> None:
    """Each is an agent, so they need an address and a port that all know."""
    job = describe("train.py", environ=captured("shared.1")).job

    assert job.agents == 2
    assert job.meeting.master_addr == "127.0.0.1"
    assert len(job.port_candidates) > 1


def test_a_run_id_can_be_given_under_slurm() -> None:
    """It beats the step's."""
    assert describe("train.py", flags={"rdzv_id": "7"}, environ=STEP).job.joining.run_id == "7"


def test_a_clusters_job_id_leads_nowhere() -> None:
    """It names the folder of the run's logs."""
    environ = {
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_TASK_ID": "sky/../../7",
    }

    assert describe("train.py", environ=environ).job.fact("run_id") == Fact(
        "sky_.._.._7", "SKYPILOT_TASK_ID"
    )


def test_settings_of_joining() -> None:
    """Each is an option like any other."""
    flags: Flags = TWO | {"master_addr": "a", "rdzv_timeout": "30"}

    job = describe("train.py", flags=flags).job

    assert job.fact("rdzv_timeout") == Fact(30.0, "--rdzv-timeout")


@pytest.mark.parametrize(
    ("flags", "environ", "message", "hint"),
    [
        (
            {},
            {"PET_NNODES": "8"},
            "nnodes is 8 (PET_NNODES), but the rank of this node and the address of node 0 are not set",
            (
                "on node 0, HOST:\n"
                "  clusterrun --node-rank 0 --master-addr HOST train.py\n"
                "on nodes 1 to 7:\n"
                "  clusterrun --node-rank 1 --master-addr HOST train.py"
            ),
        ),
        (
            {},
            captured("arbitrary.1")
            | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_DISTRIBUTION": "arbitrary"},
            (
                "nnodes is 2 (SLURM_STEP_NUM_NODES), but the address of node 0 is not set:"
                " SLURM_DISTRIBUTION is arbitrary, and rank 0 may be on any of SLURM_STEP_NODELIST"
            ),
            "give its host name:\n  clusterrun --master-addr HOST train.py",
        ),
        (
            {},
            captured("node.1") | {"SLURM_NODEID": "0"},
            (
                "nnodes is 2 (SLURM_STEP_NUM_NODES), but the address of node 0 is not set:"
                " this is n1, number 1 of SLURM_STEP_NODELIST, counted from 0, but SLURM_NODEID is 0"
            ),
            "give its host name:\n  clusterrun --master-addr HOST train.py",
        ),
        (
            TWO | {"rdzv_endpoint": "a:0"},
            {},
            "--rdzv-endpoint: port 0 is chosen by each node, but all nodes must meet at one port",
            "give a number from 1 to 65535",
        ),
        (
            TWO,
            {"MASTER_ADDR": "a", "MASTER_PORT": "tcp"},
            "MASTER_PORT: 'tcp' is not a port",
            "give a number from 1 to 65535, or 0 to have one chosen",
        ),
    ],
)
def test_agents_that_would_not_find_each_other(
    flags: Flags, environ: Mapping[str, str], message: str, hint: str
) -> None:
    """Exit code 2 on each node, with the lines to type."""
    assert mistake("train.py", flags=flags, environ=environ) == (message, hint)
