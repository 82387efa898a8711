"""The shape of the world by options and by the cluster, and contradictions between them."""

from collections.abc import Mapping

import pytest

from tests.captured import captured
from tests.command_lines import Flags
from tests.described import describe, mistake
from tests.job.door import Fact, WorkerCount

pytestmark = pytest.mark.usefixtures("script")

STEP = captured("node.1")
TASK = captured("task.3")


def test_without_a_cluster_flags_decide() -> None:
    """As on two machines by hand."""
    job = describe("train.py", flags={"nnodes": "2", "node_rank": "1", "master_addr": "node0"}).job

    assert job.fact("nnodes") == Fact(2, "--nnodes")
    assert job.fact("node_rank") == Fact(1, "--node-rank")
    assert job.fact("nproc_per_node") == Fact(WorkerCount.PER_GPU, "default")
    assert (job.agents, job.agent_rank) == (2, 1)


def test_without_a_rank_the_owner_of_the_address_will_be_node_0() -> None:
    """The same line on every node is enough; joining finds the ranks."""
    job = describe("train.py", flags={"nnodes": "3", "rdzv_endpoint": "node0:29500"}).job

    assert job.fact("node_rank") == Fact(None, "default")
    assert job.agent_rank is None


def test_a_cluster_decides_it_all() -> None:
    """``srun clusterrun train.py`` with no other flag."""
    job = describe("train.py", environ=STEP).job

    assert job.fact("nnodes") == Fact(2, "SLURM_STEP_NUM_NODES")
    assert job.fact("node_rank") == Fact(1, "SLURM_NODEID")
    assert job.fact("nproc_per_node") == Fact(2, "SLURM_GPUS_ON_NODE")
    assert job.fact("hosts") == Fact(("n0", "n1"), "SLURM_STEP_NODELIST")
    assert (job.agents, job.agent_rank) == (2, 1)


def test_flags_may_repeat_the_cluster() -> None:
    """As scripts for torchrun do; each value has the origin that holds, and the hosts remain."""
    flags = {"nnodes": "2", "node_rank": "1", "nproc_per_node": "4", "master_addr": "n0"}

    resolved = describe("train.py", flags=flags, environ=STEP)

    job = resolved.job
    assert job.fact("nnodes") == Fact(2, "--nnodes")
    assert job.fact("node_rank") == Fact(1, "--node-rank")
    assert job.fact("nproc_per_node") == Fact(4, "--nproc-per-node")
    assert job.workers.hosts == ("n0", "n1")
    assert job.joining.run_id == "26.0"
    assert resolved.warnings == ()


def test_a_node_of_a_step_may_be_alone_on_purpose() -> None:
    """As in a sweep: each node is its own job. The cluster's shape is ignored, with a warning."""
    resolved = describe("train.py", flags={"nnodes": "1"}, environ=STEP)

    job = resolved.job
    assert (job.nnodes, job.workers.node_rank, job.workers.hosts) == (1, None, ())
    assert job.fact("nproc_per_node") == Fact(WorkerCount.PER_GPU, "default")
    assert (job.meeting.master_addr, job.port_candidates) == (None, ())
    assert job.joining.run_id == "chosen"
    assert resolved.warnings == (
        "nnodes is 1 (--nnodes); the cluster's 2 (SLURM_STEP_NUM_NODES) is ignored",
    )


def test_a_shape_of_ones_own_inside_a_step() -> None:
    """Two steps that join into one world; options are complete, so the cluster is ignored."""
    flags = {"nnodes": "4", "node_rank": "3", "master_addr": "n0"}

    resolved = describe("train.py", flags=flags, environ=STEP)

    job = resolved.job
    assert (job.nnodes, job.workers.node_rank, job.workers.hosts) == (4, 3, ())
    assert job.fact("master_port") == Fact(29500, "default")
    assert resolved.warnings == (
        "nnodes is 4 (--nnodes); the cluster's 2 (SLURM_STEP_NUM_NODES) is ignored",
        "node_rank is 3 (--node-rank); the cluster's 1 (SLURM_NODEID) is ignored",
    )


def test_an_exported_address_counts_as_well() -> None:
    """``export MASTER_ADDR`` in the job script, and ranks of one's own."""
    environ = STEP | {"MASTER_ADDR": "n1"}

    job = describe("train.py", flags={"node_rank": "0"}, environ=environ).job

    assert job.fact("node_rank") == Fact(0, "--node-rank")
    assert job.fact("nnodes") == Fact(2, "SLURM_STEP_NUM_NODES")
    assert job.fact("master_addr") == Fact("n1", "MASTER_ADDR")


HINT = "out, or set all of --nnodes, --node-rank and --master-addr"


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (
            {"nnodes": "4"},
            "nnodes is 4 (--nnodes), but the cluster has 2 (SLURM_STEP_NUM_NODES)",
            f"leave --nnodes {HINT}",
        ),
        (
            {"nnodes": "4", "master_addr": "n0"},
            "nnodes is 4 (--nnodes), but the cluster has 2 (SLURM_STEP_NUM_NODES)",
            f"leave --nnodes {HINT}",
        ),
        (
            {"node_rank": "0"},
            "node_rank is 0 (--node-rank), but the cluster has 1 (SLURM_NODEID)",
            f"leave --node-rank {HINT}",
        ),
        (
            {"nnodes": "4", "node_rank": "0"},
            (
                "nnodes is 4 (--nnodes), but the cluster has 2 (SLURM_STEP_NUM_NODES);"
                " node_rank is 0 (--node-rank), but the cluster has 1 (SLURM_NODEID)"
            ),
            f"leave --nnodes and --node-rank {HINT}",
        ),
    ],
)
def test_an_incomplete_shape_may_not_contradict_the_cluster(
    flags: Flags, message: str, hint: str
) -> None:
    """Both origins are named."""
    assert mistake("train.py", flags=flags, environ=STEP) == (message, hint)


def test_a_task_has_one_worker() -> None:
    """If srun has started one task per worker, each task starts one worker."""
    job = describe("train.py", environ=TASK).job

    assert job.fact("nproc_per_node") == Fact(1, "SLURM_STEP_TASKS_PER_NODE")
    assert (job.nnodes, job.agents, job.agent_rank) == (2, 4, 3)


@pytest.mark.parametrize("nproc", ["1", "2", "auto", "gpu"])
def test_nproc_per_node_may_count_all_tasks_of_the_node(nproc: str) -> None:
    """``--nproc-per-node`` counts its node's workers, which are there already, or its own."""
    flags = {"nnodes": "2", "node_rank": "1", "nproc_per_node": nproc, "master_addr": "n0"}

    job = describe("train.py", flags=flags, environ=TASK).job

    assert job.workers.nproc_per_node == 1
    assert job.tasks is not None


@pytest.mark.parametrize(
    "flags",
    [
        {"nproc_per_node": "8"},
        {"nnodes": "2", "node_rank": "0", "master_addr": "n0", "nproc_per_node": "2"},
        {"nnodes": "4", "node_rank": "3", "master_addr": "n0", "nproc_per_node": "2"},
        {"nnodes": "1", "nproc_per_node": "2"},
    ],
)
def test_tasks_that_would_each_start_workers(flags: Flags) -> None:
    """SLURM_PROCID given as a node's rank is the usual way to get eight times eight workers."""
    nproc = flags["nproc_per_node"]

    message, hint = mistake("train.py", flags=flags, environ=TASK)

    assert message == (
        f"nproc_per_node is {nproc} (--nproc-per-node), but this node has 2 tasks"
        " (SLURM_STEP_TASKS_PER_NODE), and each would start that many workers"
    )
    assert "srun --ntasks-per-node=1 clusterrun" in hint


def test_tasks_that_would_each_start_one_worker_per_gpu() -> None:
    """The default is more than one, too."""
    message, _ = mistake("train.py", flags={"nnodes": "1"}, environ=TASK)

    assert message.startswith("nproc_per_node is per-gpu (default)")


def test_each_task_may_be_a_node_of_its_own() -> None:
    """Options are complete, and each task starts one worker."""
    flags = {"nnodes": "4", "node_rank": "3", "master_addr": "n0", "nproc_per_node": "1"}

    job = describe("train.py", flags=flags, environ=TASK).job

    assert job.tasks is None
    assert (job.agents, job.agent_rank) == (4, 3)


def test_the_jobs_own_choice_of_gpus_counts() -> None:
    """``--env CUDA_VISIBLE_DEVICES=0`` leaves fewer than Slurm has given."""
    job = describe("train.py", flags={"env": ("CUDA_VISIBLE_DEVICES=0",)}, environ=STEP).job

    assert job.fact("nproc_per_node") == Fact(WorkerCount.PER_GPU, "default")


def test_agents_of_a_cluster_do_not_start_more_by_ssh() -> None:
    """A job file for ssh, under srun: each of them would start a job on all hosts."""
    hosts = {"launcher": "ssh", "hosts": "n0,n1"}

    message = mistake("train.py", flags=hosts, environ=STEP)

    assert message == (
        "--launcher is ssh, but slurm has started 2 agents of this job (SLURM_STEP_ID)",
        "type --launcher none",
    )
    # One process may: in an interactive step of srun, say.
    alone = {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    over_ssh = describe("train.py", flags=hosts, environ={**alone, "SLURM_NODEID": "0"}).over_ssh
    assert over_ssh is not None
    assert over_ssh.hosts == ("n0", "n1")


@pytest.mark.parametrize(
    "environ",
    [
        {"PBS_NODEFILE": "/no/such/file"},
        {"JOB_COMPLETION_INDEX": "x"},
        {"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "n0"},
    ],
)
def test_what_a_cluster_has_wrong_is_not_needed_where_options_place_the_node(
    environ: Mapping[str, str],
) -> None:
    """A file that can't be read on this node, a variable of another program; else it is an error."""
    flags = {"nnodes": "2", "node_rank": "1", "master_addr": "n0"}

    job = describe("train.py", flags=flags, environ=environ).job

    assert (job.nnodes, job.workers.node_rank, job.meeting.master_addr) == (2, 1, "n0")
    (wrong, *_) = environ
    assert mistake("train.py", environ=environ)[0].startswith(wrong)
