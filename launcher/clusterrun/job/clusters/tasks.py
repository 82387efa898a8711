"""Launchers that start a task for each node or for each worker: mpirun and its kin, jsrun, Flux, AzureML.

They set for each task its rank among all tasks and among those of its node, but not its node's.
MPICH and MVAPICH2 set no variable with the host of task 0: on several nodes MASTER_ADDR has to be set.
"""

import re

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import (
    Found,
    Launch,
    Variables,
    check_rank,
    first_of,
    no_place,
)
from clusterrun.job.clusters.platforms import read_nodefile
from clusterrun.job.declaring import Fact
from clusterrun.job.job import TaskLayout
from clusterrun.job.values import LOOPBACK


class Starter(Struct, frozen=True):
    """What to type to start tasks, with ``{size}`` and ``{nodes}`` for their numbers."""

    all_tasks: str
    one_per_node: str


MPIRUN = Starter("mpirun -n {size} clusterrun ...", "mpirun --map-by ppr:1:node clusterrun ...")
HYDRA = Starter("mpiexec -n {size} clusterrun ...", "mpiexec -ppn 1 clusterrun ...")
PALS = Starter("mpiexec -n {size} clusterrun ...", "mpiexec -n {nodes} --ppn 1 clusterrun ...")
JSRUN = Starter("jsrun -n {size} clusterrun ...", "jsrun -r 1 clusterrun ...")
FLUX = Starter("flux run -n{size} clusterrun ...", "flux run -N{nodes} -n{nodes} clusterrun ...")
AZUREML = Starter(
    "instance_count: {nodes}, with {size} processes in all",
    "process_count_per_instance: 1",
)


class TaskNumbers(Struct, frozen=True):
    """The numbers that a task has from its launcher."""

    starter: Starter
    rank: Fact[int]
    size: Fact[int]
    local_rank: Fact[int]
    local_size: Fact[int]
    """Tasks on its own node."""
    nodes: Fact[int] | None = None
    node_rank: Fact[int] | None = None
    most_nodes: Fact[int] | None = None
    """The nodes of the allocation, some of which may have no task."""

    def to_type(self, text: str) -> str:
        """Return a text of the starter with the numbers of this job."""
        nodes = self.nodes.value if self.nodes else self.size.value // self.local_size.value
        return text.format(size=self.size.value, nodes=nodes)


def openmpi(v: Variables, launch: Launch) -> Found:
    """Open MPI's mpirun: docs.open-mpi.org, "Environment variables set for MPI applications".

    No documented variable has the host of mpirun, which usually is that of task 0. Open MPI 4 has it
    in the address of its head process, Open MPI 5 in the name of the PMIx namespace (both seen). An
    MPI job of AzureML has one of three: ``ip:port`` on several nodes, ``ip`` in the older ones.
    """
    task = TaskNumbers(
        MPIRUN,
        rank=v.require("OMPI_COMM_WORLD_RANK"),
        size=v.require("OMPI_COMM_WORLD_SIZE"),
        local_rank=v.require("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=v.require("OMPI_COMM_WORLD_LOCAL_SIZE"),
        most_nodes=v.number("OMPI_MCA_orte_num_nodes"),
    )
    azure = v.text(
        "AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE", "AZ_BATCHAI_JOB_MASTER_NODE_IP"
    )
    if azure:
        address: Fact[str] | None = Fact(azure.value.partition(":")[0], azure.origin)
    else:
        address = _mpirun_host(v, task, launch.process.host)
    run_id = v.text("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    return place_of(task, address=address, run_id=run_id)


def _mpirun_host(v: Variables, task: TaskNumbers, here: str) -> Fact[str] | None:
    """Return the host of mpirun, where task 0 should be; only task 0 itself can check that."""
    head, own = _head_and_own_host(v)
    is_elsewhere = task.rank.value == 0 and head is not None and head.value != own
    has_several_nodes = task.local_size.value < task.size.value
    if is_elsewhere and has_several_nodes and not v.get("MASTER_ADDR"):
        raise UsageError(
            f"mpirun runs on {head}, but task 0 on {here}: the other tasks can't find it",
            f"set MASTER_ADDR:\n  mpirun -x MASTER_ADDR={here} ... clusterrun ...",
        )
    return head


def _head_and_own_host(v: Variables) -> tuple[Fact[str] | None, str]:
    address, head_uri = re.compile(r"tcp://([0-9.]+)"), "OMPI_MCA_orte_hnp_uri"
    head = address.search(v.get(head_uri, ""))
    own = address.search(v.get("OMPI_MCA_orte_local_daemon_uri", ""))
    if head and own:
        return Fact(head[1], head_uri), own[1]
    prrte = re.fullmatch(r"(?:prterun|prte)-(.+)-[0-9]+@[0-9]+", v.get("PMIX_NAMESPACE", ""))
    if prrte and v.get("PMIX_HOSTNAME"):
        return Fact(prrte[1], "PMIX_NAMESPACE"), v["PMIX_HOSTNAME"]
    return None, ""


def mpich(v: Variables, _: Launch) -> Found | None:
    """MPICH and Intel MPI, whose mpiexec is Hydra: what its proxy sets for each process.

    Slurm, Flux and PALS set PMI_RANK as well, but not MPI_LOCALNRANKS.
    """
    if not v.get("MPI_LOCALNRANKS"):
        return None
    return place_of(
        TaskNumbers(
            HYDRA,
            rank=v.require("PMI_RANK"),
            size=v.require("PMI_SIZE"),
            local_rank=v.require("MPI_LOCALRANKID"),
            local_size=v.require("MPI_LOCALNRANKS"),
        )
    )


def mvapich(v: Variables, _: Launch) -> Found:
    """MVAPICH2: its user guide, "Running on clusters"."""
    return place_of(
        TaskNumbers(
            HYDRA,
            rank=v.require("MV2_COMM_WORLD_RANK"),
            size=v.require("MV2_COMM_WORLD_SIZE"),
            local_rank=v.require("MV2_COMM_WORLD_LOCAL_RANK"),
            local_size=v.require("MV2_COMM_WORLD_LOCAL_SIZE"),
        )
    )


def pals(v: Variables, _: Launch) -> Found:
    """Cray PALS, the mpiexec of HPE machines under PBS, such as Aurora and Polaris."""
    task = TaskNumbers(
        PALS,
        rank=v.require("PALS_RANKID"),
        size=v.require("PMI_SIZE"),
        local_rank=v.require("PALS_LOCAL_RANKID"),
        local_size=v.require("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        node_rank=v.number("PALS_NODEID"),
    )
    file, job = v.text("PBS_NODEFILE"), v.text("PALS_APID")
    hosts = read_nodefile(file) if file else None
    return place_of(task, hosts=hosts, run_id=job, secret=job)


def jsrun(v: Variables, _: Launch) -> Found:
    """LSF's jsrun (Lightning's LSFEnvironment reads the same variables)."""
    task = TaskNumbers(
        JSRUN,
        rank=v.require("JSM_NAMESPACE_RANK"),
        size=v.require("JSM_NAMESPACE_SIZE"),
        local_rank=v.require("JSM_NAMESPACE_LOCAL_RANK"),
        local_size=v.require("JSM_NAMESPACE_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    )
    job = v.text("LSB_JOBID")
    return place_of(task, hosts=_hosts_of_lsf(v, task), run_id=job, secret=job)


def _hosts_of_lsf(v: Variables, task: TaskNumbers) -> Fact[tuple[str, ...]] | None:
    """Return the hosts of the tasks, without the one on which jsrun was typed: LSF's first."""
    # "launch 1 host1 42 host2 42", or a name for each slot.
    listed = v.text("LSB_MCPU_HOSTS", "LSB_HOSTS")
    if listed is None:
        return None
    nodes = task.size.value // max(1, task.local_size.value)
    names = tuple(dict.fromkeys(word for word in listed.value.split() if not word.isdigit()))
    return Fact(names[1:] if len(names) == nodes + 1 else names, listed.origin)


def flux(v: Variables, _: Launch) -> Found:
    """Flux: what its shell sets for each task (flux-core, src/shell/task.c)."""
    size, nodes = v.require("FLUX_JOB_SIZE"), v.require("FLUX_JOB_NNODES")
    if not nodes.value or size.value % nodes.value:
        raise UsageError(
            f"{size.origin} is {size.value} and {nodes.origin} is {nodes.value}: nodes have"
            " different numbers of tasks, and the number on this one is unknown",
            "start one task on each node:\n  "
            + FLUX.one_per_node.format(nodes=nodes.value, size=size.value),
        )
    task = TaskNumbers(
        FLUX,
        rank=v.require("FLUX_TASK_RANK"),
        size=size,
        local_rank=v.require("FLUX_TASK_LOCAL_ID"),
        local_size=Fact(size.value // nodes.value, f"{size.origin}, {nodes.origin}"),
        nodes=nodes,
    )
    job = v.text("FLUX_JOB_ID")
    return place_of(task, run_id=job, secret=job)


def azureml(v: Variables, launch: Launch) -> Found | None:
    """AzureML's PyTorch jobs, and other platforms that give each process its RANK and LOCAL_RANK.

    learn.microsoft.com, "Distributed GPU training guide": MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK,
    LOCAL_RANK, NODE_RANK, with WORLD_SIZE the number of processes. The number of processes per node
    follows from AZUREML_NODE_COUNT, from LOCAL_WORLD_SIZE (Ray) or, except on node 0, from the ranks.
    """
    if not v.has_all("RANK", "WORLD_SIZE", "MASTER_ADDR") or v["WORLD_SIZE"] == "1":
        return None
    size, rank = v.require("WORLD_SIZE"), v.require("RANK")
    local_rank, node_rank = v.require("LOCAL_RANK"), v.number("NODE_RANK")
    nodes = v.number("AZUREML_NODE_COUNT") or launch.nnodes
    local_size = v.number("LOCAL_WORLD_SIZE")
    if not local_size and nodes and nodes.value:
        local_size = Fact(size.value // nodes.value, f"{size.origin}, {nodes.origin}")
    if not local_size and node_rank and node_rank.value:
        per_node = max(1, (rank.value - local_rank.value) // node_rank.value)
        local_size = Fact(per_node, f"{rank.origin}, {node_rank.origin}")
    if not local_size:
        return no_place(
            f"{size.origin} is {size.value} and {local_rank.origin} is {local_rank.value}: this"
            " is one of several processes, but the number of nodes is unknown",
            f"give the number of nodes:\n  {launch.line.line('--nnodes', 'N')}\n"
            "or start a separate job in each process:\n"
            f"  {launch.line.line('--cluster', 'none')}",
        )
    return place_of(TaskNumbers(AZUREML, rank, size, local_rank, local_size, nodes, node_rank))


def pmix(v: Variables, _: Launch) -> Found | None:
    """A task of another launcher that builds on PMIx: it would have to ask a server for its place."""
    if v.text("SLURM_STEP_ID", "SLURM_STEPID"):
        # srun set it for a task: this process is in a shell that is one, or inherited its variables.
        return None
    rank = v.require("PMIX_RANK")
    return no_place(
        f"{rank.origin} is {rank.value}, but the number of tasks is unknown",
        "start clusterrun by Open MPI's mpirun or by srun, or set its place:\n"
        "  clusterrun --nnodes N --node-rank $PMIX_RANK --master-addr HOST ...",
    )


def place_of(
    task: TaskNumbers,
    *,
    hosts: Fact[tuple[str, ...]] | None = None,
    address: Fact[str] | None = None,
    run_id: Fact[str] | None = None,
    secret: Fact[str] | None = None,
) -> Found:
    """Return the place of a node with one task, or of one task among several of its node.

    A list of ``hosts`` of another length than the nodes is ignored; ``address`` is the host of task 0.

    Raises:
        UsageError: the numbers contradict each other, or nodes have different numbers of tasks.

    """
    check_rank(task.rank, task.size)
    check_rank(task.local_rank, task.local_size)
    nodes = _nodes(task)
    node_rank = _node_rank(task, nodes)
    if hosts and len(hosts.value) != nodes.value:
        hosts = None
    if nodes.value == 1:
        address = Fact(LOOPBACK, nodes.origin)
    found = Found(
        nnodes=nodes,
        node_rank=task.rank,
        hosts=hosts,
        master_addr=address or first_of(hosts),
        run_id=run_id,
        secret=secret,
    )
    if nodes.value == task.size.value:
        return found
    layout = TaskLayout(
        rank=GlobalRank(task.rank.value),
        size=task.size.value,
        local_rank=LocalRank(task.local_rank.value),
        local_size=task.local_size.value,
        node_rank=NodeRank(node_rank.value),
        nodes=nodes.value,
        all_tasks=task.to_type(task.starter.all_tasks),
        one_per_node=task.to_type(task.starter.one_per_node),
    )
    return replace(found, node_rank=node_rank, tasks=Fact(layout, task.local_size.origin))


def _nodes(task: TaskNumbers) -> Fact[int]:
    size, local_size = task.size, task.local_size
    nodes = task.nodes.value if task.nodes else size.value // local_size.value
    most = task.most_nodes.value if task.most_nodes else nodes
    if nodes * local_size.value != size.value or nodes > most:
        raise _uneven(task)
    return task.nodes or Fact(nodes, f"{size.origin}, {local_size.origin}")


def _node_rank(task: TaskNumbers, nodes: Fact[int]) -> Fact[int]:
    if task.node_rank is not None:
        check_rank(task.node_rank, nodes)
        return task.node_rank
    rank, local_rank, local_size = task.rank.value, task.local_rank.value, task.local_size.value
    origin = f"{task.rank.origin}, {task.local_size.origin}"
    if rank % local_size == local_rank and rank // local_size < nodes.value:
        return Fact(rank // local_size, origin)
    is_round_robin = rank // nodes.value == local_rank
    if is_round_robin:
        return Fact(rank % nodes.value, origin)
    raise _uneven(task)


def _uneven(task: TaskNumbers) -> UsageError:
    return UsageError(
        f"{task.size.origin} is {task.size.value} and {task.local_size.origin} is"
        f" {task.local_size.value}: nodes have different numbers of tasks, so the rank of this"
        " node is unknown",
        "start one task on each node, which starts one worker per GPU:\n"
        f"  {task.to_type(task.starter.one_per_node)}\n"
        "or the same number of tasks on each node, or ignore the cluster with --cluster none",
    )
