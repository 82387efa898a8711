"""Which cluster is detected, and --cluster."""

import subprocess
import sys
from contextlib import suppress

import pytest
from clusterrun.errors import UsageError
from clusterrun.job.clusters.detection import CLUSTERS, Cluster, detect
from clusterrun.job.clusters.found import DetectionContext, Variables
from clusterrun.job.declarations import Setting
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import ThisProcess

from tests.described import mistake
from tests.imports import imports

pytestmark = pytest.mark.usefixtures("script")


@pytest.mark.parametrize("cluster", CLUSTERS, ids=[cluster.function for cluster in CLUSTERS])
def test_function_of_each_row(cluster: Cluster) -> None:
    """It exists, and accepts a marker alone or raises a UsageError."""
    marked = Variables({cluster.markers[0]: "1", "VC_A_HOSTS": "a"})
    process = ThisProcess(host="node7", cpus=8, python="python", run_id="x")

    assert cluster.marker(Variables()) is None
    assert cluster.marker(marked) == cluster.markers[0]
    with suppress(UsageError):
        cluster.find(marked, DetectionContext(process, CommandLine()))


def test_only_detected_clusters_are_imported() -> None:
    program = (
        imports(Setting, DetectionContext, detect, Variables, ThisProcess, CommandLine)
        + """
import sys
process = ThisProcess(host="node7", cpus=8, python="python", run_id="x")
detect(Setting("", "default"), Variables(HOME="/root"), DetectionContext(process, CommandLine()))
print(*(name for name in sys.modules if ".clusters." in name))
"""
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    clusters = "clusterrun.job.clusters"
    assert done.stdout.split() == [f"{clusters}.found", f"{clusters}.detection"]


def test_slurm_allocation_is_detected_last() -> None:
    """Every process of an allocation has its variables, whatever started it."""
    detected = [cluster.function for cluster in CLUSTERS if not cluster.only_by_name]

    assert detected[-2:] == ["slurm.allocation", "exports.exported_ranks"]


def test_unknown_cluster_is_an_error() -> None:
    known = ", ".join(dict.fromkeys(cluster.name for cluster in CLUSTERS))

    assert mistake("train.py", flags={"cluster": "9"}) == (
        "--cluster: '9' is not a cluster that clusterrun knows",
        f"give one of {known}, none",
    )
