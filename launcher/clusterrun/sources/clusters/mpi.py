"""What starts the tasks of MPI programs: mpirun and mpiexec of each MPI, and PMIx, on which some build.

- Open MPI: docs.open-mpi.org, "Environment variables set for MPI applications".
- MPICH and Intel MPI, whose mpiexec is Hydra: what its proxy sets for each process.
- MVAPICH2: its user guide, "Running on clusters".
- Cray PALS, the mpiexec of HPE machines under PBS, such as Aurora and Polaris.

MPICH and MVAPICH2 set no variable with the host of task 0: on several nodes MASTER_ADDR has to be set.
"""

import re

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place, no_place
from clusterrun.sources.clusters.pbs import read_nodefile
from clusterrun.sources.clusters.tasks import NO_ADDRESS, Task, TaskLauncher, place_of_task
from clusterrun.sources.clusters.variables import Variables

_AZURE = ("AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE", "AZ_BATCHAI_JOB_MASTER_NODE_IP")
"""``ip:port`` on several nodes, ``ip`` in the older ones; an MPI job of AzureML has one of them."""

_HEAD = "OMPI_MCA_orte_hnp_uri"
_OWN_DAEMON = "OMPI_MCA_orte_local_daemon_uri"
_ADDRESS = re.compile(r"tcp://([0-9.]+)")
_NAMESPACE = re.compile(r"(?:prterun|prte)-(.+)-[0-9]+@[0-9]+")


class OpenMpi(TaskLauncher):
    """A task of Open MPI's mpirun.

    No documented variable has the host of mpirun, which usually is that of task 0. Open MPI 4 has it
    in the address of its head process, Open MPI 5 in the name of the PMIx namespace (both seen).
    """

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


class Mpich(TaskLauncher):
    rank = "PMI_RANK"
    size = "PMI_SIZE"
    local_rank = "MPI_LOCALRANKID"
    local_size = ("MPI_LOCALNRANKS",)

    def detect(self, variables: Variables) -> str:
        """Return PMI_RANK, which Slurm, Flux and PALS set as well, but without MPI_LOCALNRANKS."""
        has_both = variables.has_all("PMI_RANK", "MPI_LOCALNRANKS")
        return "PMI_RANK" if has_both else ""


class Mvapich(TaskLauncher):
    rank = "MV2_COMM_WORLD_RANK"
    size = "MV2_COMM_WORLD_SIZE"
    local_rank = "MV2_COMM_WORLD_LOCAL_RANK"
    local_size = ("MV2_COMM_WORLD_LOCAL_SIZE",)


class Pals(TaskLauncher):
    rank = "PALS_RANKID"
    size = "PMI_SIZE"
    local_rank = "PALS_LOCAL_RANKID"
    local_size = ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE")
    node_rank = ("PALS_NODEID",)

    def place(self, inputs: Inputs) -> Place:
        variables = inputs.variables
        task = self.task(variables)
        file = variables.text("PBS_NODEFILE")
        job = variables.text("PALS_APID")
        hosts = read_nodefile(file) if file else Fact((), "default")
        return place_of_task(task, hosts=hosts, run_id=job, secret=job)


class Pmix(Cluster):
    """A task of another launcher that builds on PMIx: it would have to ask a server for its place."""

    markers = ("PMIX_RANK",)

    def place(self, inputs: Inputs) -> Place:
        rank = inputs.variables.require("PMIX_RANK")
        return no_place(
            f"{rank.origin} is {rank.value}, but the number of tasks is unknown",
            "start clusterrun by Open MPI's mpirun or by srun, or set its place:\n"
            "  clusterrun --nnodes N --node-rank $PMIX_RANK --master-addr HOST ...",
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
