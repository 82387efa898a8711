"""Which cluster is detected, and the effect of --cluster."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from clusterrun.errors import UsageError
from clusterrun.job.clusters.detection import CLUSTERS, Cluster, detect
from clusterrun.job.clusters.found import Launch, Variables
from clusterrun.job.declarations import Setting
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import ThisProcess

from tests.described import mistake
from tests.imports import imports

pytestmark = pytest.mark.usefixtures("script")


@pytest.mark.parametrize("cluster", CLUSTERS, ids=[cluster.function for cluster in CLUSTERS])
def test_rows_lead_to_functions(cluster: Cluster) -> None:
    """Each row leads to a function, which asks for more than a marker, or has no trouble with it."""
    marked = Variables({cluster.markers[0]: "1", "VC_A_HOSTS": "a"})
    process = ThisProcess(host="node7", cpus=8, python="python", run_id="x")

    assert cluster.marker(Variables()) is None
    assert cluster.marker(marked) == cluster.markers[0]
    with suppress(UsageError):
        cluster.find(marked, Launch(process, CommandLine()))


def test_a_file_can_show_a_cluster(tmp_path: Path) -> None:
    """One that all nodes of a platform have; a variable is better known."""
    file = tmp_path / "job.json"
    row = Cluster("acme", ("ACME_JOB_FILE", str(file)), "pbs.node_in_nodefile")

    before = row.marker(Variables({}))
    # Nobody can read where this leads, and that is worth an error.
    file.symlink_to(tmp_path / "nowhere")

    assert before is None
    assert row.marker(Variables({})) == str(file)
    assert row.marker(Variables({"ACME_JOB_FILE": "/x"})) == "ACME_JOB_FILE"


def test_a_cluster_that_is_not_there_costs_nothing() -> None:
    """Not even an import."""
    program = (
        imports(Setting, Launch, detect, Variables, ThisProcess, CommandLine)
        + """
import sys
process = ThisProcess(host="node7", cpus=8, python="python", run_id="x")
detect(Setting("", "default"), Variables(HOME="/root"), Launch(process, CommandLine()))
print(*(name for name in sys.modules if ".clusters." in name))
"""
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    clusters = "clusterrun.job.clusters"
    assert done.stdout.split() == [f"{clusters}.found", f"{clusters}.detection"]


def test_an_allocation_of_slurms_is_detected_last() -> None:
    """All processes in it have its variables, whatever has started them; a warning alone comes later."""
    detected = [cluster.function for cluster in CLUSTERS if not cluster.only_by_name]

    assert detected[-2:] == ["slurm.allocation", "exports.exported_ranks"]


def test_an_unknown_cluster() -> None:
    """The job does not run on one node instead."""
    known = ", ".join(dict.fromkeys(cluster.name for cluster in CLUSTERS))

    assert mistake("train.py", flags={"cluster": "9"}) == (
        "--cluster: '9' is not a cluster that clusterrun knows",
        f"give one of {known}, none",
    )
