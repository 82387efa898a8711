"""Which cluster is detected, and the effect of --cluster."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.captured import captured
from tests.described import describe, mistake
from tests.imports import imports
from tests.job.door import (
    CLUSTERS,
    NESTED_WARNING,
    Cluster,
    CommandLine,
    Fact,
    Launch,
    ThisProcess,
    UsageError,
    Variables,
    detect,
)

pytestmark = pytest.mark.usefixtures("script")

STEP = captured("node.1")


@pytest.mark.parametrize("cluster", CLUSTERS, ids=[cluster.function for cluster in CLUSTERS])
def test_rows_lead_to_functions(cluster: Cluster) -> None:
    """Each row leads to a function, which asks for more than a marker, or has no trouble with it."""
    marked = Variables({cluster.markers[0]: "1", "VC_A_HOSTS": "a"})
    process = ThisProcess(host="node7", cpus=8, python="python", run_id="x")

    assert cluster.marker(Variables()) == ""
    assert cluster.marker(marked) == cluster.markers[0]
    with suppress(UsageError):
        cluster.find(marked, Launch(process, CommandLine()))


def test_a_file_can_show_a_cluster(tmp_path: Path) -> None:
    """One that all nodes of a platform have; a variable is better known."""
    file = tmp_path / "job.json"
    row = Cluster("acme", ("ACME_JOB_FILE", str(file)), "platforms.pbs")

    before = row.marker(Variables({}))
    # Nobody can read where this leads, and that is worth an error.
    file.symlink_to(tmp_path / "nowhere")

    assert before == ""
    assert row.marker(Variables({})) == str(file)
    assert row.marker(Variables({"ACME_JOB_FILE": "/x"})) == "ACME_JOB_FILE"


def test_a_cluster_that_is_not_there_costs_nothing() -> None:
    """Not even an import."""
    program = (
        imports(Fact, Launch, detect, Variables, ThisProcess, CommandLine)
        + """
import sys
process = ThisProcess(host="node7", cpus=8, python="python", run_id="x")
detect(Fact("", "default"), Variables(HOME="/root"), Launch(process, CommandLine()))
print(*(name for name in sys.modules if "slurm" in name or "platforms" in name))
"""
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.split() == []


def test_nothing_is_detected_where_nothing_is() -> None:
    """No variables, no cluster."""
    assert describe("train.py").job.fact("cluster") == Fact("none", "default")


def test_a_step_of_slurm() -> None:
    """The origin is the variable that shows it."""
    assert describe("train.py", environ=STEP).job.fact("cluster") == Fact("slurm", "SLURM_STEP_ID")


def test_an_allocation_of_slurms_is_detected_last() -> None:
    """All processes in it have its variables, whatever has started them."""
    detected = [cluster.function for cluster in CLUSTERS if not cluster.only_by_name]

    assert detected[-1] == "slurm.allocation"


@pytest.mark.parametrize(
    ("environ", "cluster"),
    [
        ({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "n0"}, "exports"),
        ({"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "1.2.3.4"}, "skypilot"),
    ],
)
def test_another_cluster_in_an_allocation_of_slurms(environ: dict[str, str], cluster: str) -> None:
    """What places this process is stronger than what all processes of the allocation have."""
    job = describe("train.py", environ=captured("batch_of_one") | environ).job

    assert job.workers.cluster == cluster


def test_detection_can_be_turned_off() -> None:
    """Then flags alone set the job, on one node."""
    job = describe("train.py", flags={"cluster": "none"}, environ=STEP).job

    assert job.fact("cluster") == Fact("none", "--cluster")
    assert job.fact("nnodes") == Fact(1, "default")
    assert job.workers.hosts == ()
    assert job.joining.run_id == "chosen"


def test_a_cluster_can_be_named() -> None:
    """Its variables must be there."""
    job = describe("train.py", environ=STEP | {"CLUSTERRUN_CLUSTER": "slurm"}).job

    assert job.fact("cluster") == Fact("slurm", "CLUSTERRUN_CLUSTER")
    assert job.fact("nnodes") == Fact(2, "SLURM_STEP_NUM_NODES")


def test_an_unknown_cluster() -> None:
    """The job does not run on one node instead."""
    known = ", ".join(dict.fromkeys(cluster.name for cluster in CLUSTERS))

    assert mistake("train.py", flags={"cluster": "9"}) == (
        "--cluster: '9' is not a cluster that clusterrun knows",
        f"give one of {known}, none",
    )


def test_inside_a_worker_no_cluster_is_detected() -> None:
    """The step's place is the outer launch's; the inner one is a job on this node."""
    outer = {"LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "26.0", "MASTER_ADDR": "n0", "RANK": "1"}

    resolved = describe("train.py", environ=STEP | outer)

    assert resolved.job.fact("cluster") == Fact("none", "inside a worker")
    assert (resolved.job.nnodes, resolved.job.meeting.master_addr) == (1, None)
    assert resolved.warnings == (NESTED_WARNING,)


def test_inside_a_worker_a_cluster_can_be_named_too() -> None:
    """By --cluster, as everywhere."""
    outer = {"LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "26.0"}

    job = describe("train.py", flags={"cluster": "slurm"}, environ=STEP | outer).job

    assert job.nnodes == 2
