"""Open MPI's mpirun."""

import re

from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import DetectionContext, Found, Variables
from clusterrun.job.clusters.tasks import StartCommands, TaskNumbers, task_placement
from clusterrun.job.declarations import Setting

MPIRUN = StartCommands(
    "mpirun -n {size} clusterrun ...", "mpirun --map-by ppr:1:node clusterrun ..."
)


def task(v: Variables, context: DetectionContext) -> Found:
    """docs.open-mpi.org, "Environment variables set for MPI applications".

    No documented variable has the host of mpirun, which usually is the host of task 0. Open MPI 4 has
    it in the URI of its head process, Open MPI 5 in the PMIx namespace (observed for both). An MPI job
    of AzureML has one of three variables: ``ip:port`` on several nodes, ``ip`` in the older two.
    """
    numbers = TaskNumbers(
        MPIRUN,
        rank=v.require("OMPI_COMM_WORLD_RANK"),
        size=v.require("OMPI_COMM_WORLD_SIZE"),
        local_rank=v.require("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=v.require("OMPI_COMM_WORLD_LOCAL_SIZE"),
        max_nodes=v.number("OMPI_MCA_orte_num_nodes"),
    )
    azure = v.text(
        "AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE", "AZ_BATCHAI_JOB_MASTER_NODE_IP"
    )
    if azure:
        address: Setting[str] | None = Setting(azure.value.partition(":")[0], azure.origin)
    else:
        address = _mpirun_host(v, numbers, context.process.host)
    run_id = v.text("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    return task_placement(numbers, address=address, run_id=run_id)


def _mpirun_host(v: Variables, task: TaskNumbers, here: str) -> Setting[str] | None:
    """Return the host of mpirun, where task 0 should be; only task 0 can check that it is there."""
    head, own = _head_and_own_host(v)
    is_elsewhere = task.rank.value == 0 and head is not None and head.value != own
    has_several_nodes = task.local_size.value < task.size.value
    if is_elsewhere and has_several_nodes and not v.get("MASTER_ADDR"):
        raise UsageError(
            f"mpirun runs on {head}, but task 0 on {here}: the other tasks can't find task 0",
            f"set MASTER_ADDR:\n  mpirun -x MASTER_ADDR={here} ... clusterrun ...",
        )
    return head


def _head_and_own_host(v: Variables) -> tuple[Setting[str] | None, str]:
    address, head_uri = re.compile(r"tcp://([0-9.]+)"), "OMPI_MCA_orte_hnp_uri"
    head = address.search(v.get(head_uri, ""))
    own = address.search(v.get("OMPI_MCA_orte_local_daemon_uri", ""))
    if head and own:
        return Setting(head[1], head_uri), own[1]
    prrte = re.fullmatch(r"(?:prterun|prte)-(.+)-[0-9]+@[0-9]+", v.get("PMIX_NAMESPACE", ""))
    if prrte and v.get("PMIX_HOSTNAME"):
        return Setting(prrte[1], "PMIX_NAMESPACE"), v["PMIX_HOSTNAME"]
    return None, ""
