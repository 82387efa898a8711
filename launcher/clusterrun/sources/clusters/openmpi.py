"""Open MPI's mpirun: docs.open-mpi.org, "Environment variables set for MPI applications".

Which host mpirun runs on, and so usually task 0, is told by no documented variable: Open MPI 4 has
it in the address of its head process, 5 in the name of the PMIx namespace (both seen).
"""

import re
from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.tasks import NOWHERE, Task, place_of
from clusterrun.sources.clusters.variables import Variables

_OF_AZURE = ("AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE", "AZ_BATCHAI_JOB_MASTER_NODE_IP")
"""``ip:port`` on several nodes, ``ip`` in the older ones; an MPI job of AzureML has one of them."""

_HEAD = "OMPI_MCA_orte_hnp_uri"
_OWN_DAEMON = "OMPI_MCA_orte_local_daemon_uri"
_ADDRESS = re.compile(r"tcp://([0-9.]+)")
_NAMESPACE = re.compile(r"(?:prterun|prte)-(.+)-[0-9]+@[0-9]+")


class OpenMpi:
    """A task that mpirun started."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the task's rank."""
        return Variables(environ).sign("OMPI_COMM_WORLD_RANK")

    def place(self, inputs: Inputs) -> Place:
        """Return the node's place, or the task's own where mpirun started one for each GPU."""
        variables = Variables(inputs.variables)
        task = Task(
            rank=variables.expect("OMPI_COMM_WORLD_RANK"),
            size=variables.expect("OMPI_COMM_WORLD_SIZE"),
            local_rank=variables.expect("OMPI_COMM_WORLD_LOCAL_RANK"),
            local_size=variables.expect("OMPI_COMM_WORLD_LOCAL_SIZE"),
            most_nodes=variables.number("OMPI_MCA_orte_num_nodes"),
        )
        return place_of(
            task,
            master_addr=_of_azure(variables) or _head(inputs, task),
            run_id=variables.text("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        )


def _of_azure(variables: Variables) -> Fact[str | None] | None:
    found = variables.text(*_OF_AZURE)
    return found and Fact(found.value.partition(":")[0], found.origin)


def _head(inputs: Inputs, task: Task) -> Fact[str | None]:
    """Return where mpirun runs, if that is where task 0 is: on that node one can know."""
    head, own = _head_and_own(inputs.variables)
    is_elsewhere = task.rank.value == 0 and head.value is not None and head.value != own
    several = task.local_size.value < task.size.value
    if is_elsewhere and several and not inputs.variables.get("MASTER_ADDR"):
        raise UsageError(
            f"mpirun runs on {head}, and task 0 on {inputs.process.host}: the other tasks can't"
            " know that",
            f"tell them:\n  mpirun -x MASTER_ADDR={inputs.process.host} ... clusterrun ...",
        )
    return head


def _head_and_own(environ: Mapping[str, str]) -> tuple[Fact[str | None], str]:
    head = _ADDRESS.search(environ.get(_HEAD, ""))
    own = _ADDRESS.search(environ.get(_OWN_DAEMON, ""))
    if head and own:
        return Fact(head[1], _HEAD), own[1]
    namespace = _NAMESPACE.fullmatch(environ.get("PMIX_NAMESPACE", ""))
    if namespace and environ.get("PMIX_HOSTNAME"):
        return Fact(namespace[1], "PMIX_NAMESPACE"), environ["PMIX_HOSTNAME"]
    return NOWHERE, ""
