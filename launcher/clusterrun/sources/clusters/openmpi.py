"""Open MPI's mpirun: docs.open-mpi.org, "Environment variables set for MPI applications".

No documented variable has the host of mpirun, which usually is that of task 0. Open MPI 4 has it in
the address of its head process, Open MPI 5 in the name of the PMIx namespace (both seen).
"""

import re

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.tasks import NO_ADDRESS, Task, TaskLauncher, place_of_task
from clusterrun.sources.clusters.variables import Variables

_AZURE = ("AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE", "AZ_BATCHAI_JOB_MASTER_NODE_IP")
"""``ip:port`` on several nodes, ``ip`` in the older ones; an MPI job of AzureML has one of them."""

_HEAD = "OMPI_MCA_orte_hnp_uri"
_OWN_DAEMON = "OMPI_MCA_orte_local_daemon_uri"
_ADDRESS = re.compile(r"tcp://([0-9.]+)")
_NAMESPACE = re.compile(r"(?:prterun|prte)-(.+)-[0-9]+@[0-9]+")


class OpenMpi(TaskLauncher):
    """A task of mpirun."""

    rank = "OMPI_COMM_WORLD_RANK"
    size = "OMPI_COMM_WORLD_SIZE"
    local_rank = "OMPI_COMM_WORLD_LOCAL_RANK"
    local_size = ("OMPI_COMM_WORLD_LOCAL_SIZE",)
    most_nodes = ("OMPI_MCA_orte_num_nodes",)
    run_id = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")

    def place(self, inputs: Inputs) -> Place:
        variables = inputs.variables
        task = self.task(variables)
        azure = variables.text(*_AZURE)
        head = azure and Fact(azure.value.partition(":")[0], azure.origin)
        return place_of_task(
            task,
            master_addr=head or _mpirun_host(inputs, task),
            run_id=variables.text(*self.run_id),
        )


def _mpirun_host(inputs: Inputs, task: Task) -> Fact[str | None]:
    """Return the host of mpirun, where task 0 should be; only task 0 itself can check that."""
    head, own = _head_and_own_host(inputs.variables)
    is_elsewhere = task.rank.value == 0 and head.value is not None and head.value != own
    has_several_nodes = task.local_size.value < task.size.value
    if is_elsewhere and has_several_nodes and not inputs.variables.get("MASTER_ADDR"):
        raise UsageError(
            f"mpirun runs on {head}, but task 0 on {inputs.process.host}: the other tasks cannot"
            " find it",
            f"set MASTER_ADDR:\n  mpirun -x MASTER_ADDR={inputs.process.host} ... clusterrun ...",
        )
    return head


def _head_and_own_host(variables: Variables) -> tuple[Fact[str | None], str]:
    head = _ADDRESS.search(variables.get(_HEAD, ""))
    own = _ADDRESS.search(variables.get(_OWN_DAEMON, ""))
    if head and own:
        return Fact(head[1], _HEAD), own[1]
    namespace = _NAMESPACE.fullmatch(variables.get("PMIX_NAMESPACE", ""))
    if namespace and variables.get("PMIX_HOSTNAME"):
        return Fact(namespace[1], "PMIX_NAMESPACE"), variables["PMIX_HOSTNAME"]
    return NO_ADDRESS, ""
