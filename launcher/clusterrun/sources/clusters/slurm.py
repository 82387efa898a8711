"""Slurm: tasks that srun started.

Variables of the step come before those of the job, which are wrong if a step has only a part of the
allocation (srun(1), "OUTPUT ENVIRONMENT VARIABLES"; all seen with 22.05).
"""

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import TaskLayout
from clusterrun.domain.ranks import GlobalRank, LocalRank, NodeRank
from clusterrun.errors import UsageError
from clusterrun.job.host_lists import expand_counts, expand_hosts
from clusterrun.sources.clusters.cluster import LOOPBACK, Cluster, Inputs, Place
from clusterrun.sources.clusters.slurm_groups import has_groups, hosts_by_group
from clusterrun.sources.clusters.variables import WITHOUT_CLUSTER, Variables

_RESERVED = 0xFFFF_FFF0
"""Step ids from here on are not srun's but, for example, the batch script's (slurm.h)."""

_FIRST_PORT = 20_000
_PORTS = 9_377
"""Number of ports for jobs; a prime, so that no two strides meet.

The last is below 29500, the port of other launchers, and below the ports that kernels give to
connections (ip_local_port_range, from 32768 unless changed) and Kubernetes to services (from 30000).
"""


class SlurmStep(Cluster):
    def detect(self, variables: Variables) -> str:
        step = variables.text("SLURM_STEP_ID", "SLURM_STEPID")
        if step is None or not step.value.isdigit() or int(step.value) >= _RESERVED:
            return ""
        return "" if _is_of_older_step(variables) else step.origin

    def place(self, inputs: Inputs) -> Place:
        """Return the place of the node, or of the task if a node of the step has several."""
        variables = inputs.variables
        nodes = variables.require("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
        node = variables.require("SLURM_NODEID")
        counts = _tasks_by_node(variables, nodes, node)
        tasks = _task_layout(variables, counts, node.value)
        hosts = _hosts(variables, nodes)
        other_order = _other_order(variables, hosts, node)
        if other_order:
            hosts = Fact((), "default")
        no_address = other_order or _placed_by_hand(variables, hosts, tasks.value)
        job = variables.require("SLURM_JOB_ID", "SLURM_JOBID")
        step = variables.require("SLURM_STEP_ID", "SLURM_STEPID")
        identity = Fact(f"{job.value}.{step.value}", f"{job.origin}, {step.origin}")
        return Place(
            nnodes=nodes,
            node_rank=node,
            hosts=hosts,
            tasks=tasks,
            nproc_per_node=variables.gpus("SLURM_GPUS_ON_NODE") if tasks.value is None else None,
            master_addr=Fact(None, "default") if no_address else _master_addr(hosts),
            no_address=no_address,
            port_candidates=Fact(port_candidates(job.value, step.value), identity.origin),
            run_id=identity,
            secret=_secret(variables, identity),
            warnings=_too_few_cpus(variables, inputs.process.cpus, counts.value[node.value]),
        )


def port_candidates(job_id: int, step_id: int) -> tuple[int, ...]:
    """Return the ports of a step, in the order to try them; the same on all of its nodes.

    The first differs from that of any other step of the job, and of the jobs just before and
    after it, which may run on the same nodes at the same time.
    """
    first = job_id * 1_009 + step_id
    return tuple(_FIRST_PORT + (first + stride) % _PORTS for stride in (0, 1_733, 3_467, 5_197))


def _is_of_older_step(variables: Variables) -> bool:
    # A batch script submitted from inside a step inherits the step's id and sizes, which Slurm does
    # not set again, while the job's two sizes are new.
    pairs = (
        ("SLURM_NNODES", "SLURM_STEP_NUM_NODES"),
        ("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"),
    )
    return all(variables.differ(name, of_step) for name, of_step in pairs)


def _tasks_by_node(
    variables: Variables, nodes: Fact[int], node: Fact[int]
) -> Fact[tuple[int, ...]]:
    listed = variables.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    counts = _by_rank(variables, expand_counts(listed)) if listed else (1,) * nodes.value
    origin = listed.origin if listed else nodes.origin
    if not node.value < len(counts) == nodes.value:
        raise UsageError(
            f"{node.origin} is {node.value}, {nodes.origin} is {nodes.value} and {origin} has"
            f" {len(counts)} entries: they contradict each other",
            WITHOUT_CLUSTER,
        )
    if 0 in counts:
        raise UsageError(f"{origin} has a node without tasks", WITHOUT_CLUSTER)
    return Fact(counts, origin)


def _by_rank(variables: Variables, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``counts``, which are in the order of the list of hosts, in that of the nodes' ranks."""
    listed = _listed_hosts(variables).value
    if len(listed) != len(counts):
        return counts
    ranked = hosts_by_group(variables, _listed_hosts(variables)).value
    of_host = dict(zip(listed, counts, strict=True))
    return tuple(of_host[host] for host in ranked)


def _task_layout(
    variables: Variables, counts: Fact[tuple[int, ...]], node: int
) -> Fact[TaskLayout | None]:
    if max(counts.value) == 1:
        return Fact(None, "default")
    local_rank = variables.require("SLURM_LOCALID").value
    gpus = variables.number("SLURM_GPUS_ON_NODE")
    layout = TaskLayout(
        rank=GlobalRank(variables.require("SLURM_PROCID").value),
        size=sum(counts.value),
        local_rank=LocalRank(local_rank),
        local_size=counts.value[node],
        node_rank=NodeRank(node),
        nodes=len(counts.value),
        own_cpus=_has_own_cpus(variables, local_rank),
        gpus=None if gpus is None else gpus.value,
    )
    return Fact(layout, counts.origin)


def _has_own_cpus(variables: Variables, local_rank: int) -> bool:
    """Return whether no other task on this node has a CPU of this task's mask."""
    kind = variables.text("SLURM_CPU_BIND_TYPE")
    listed = variables.text("SLURM_CPU_BIND_LIST")
    if kind is None or listed is None or not kind.value.startswith("mask_cpu"):
        return False
    try:
        masks = [int(mask, 16) for mask in listed.value.split(",")]
    except ValueError:
        return False
    others = masks[:local_rank] + masks[local_rank + 1 :]
    return local_rank < len(masks) and not any(masks[local_rank] & other for other in others)


def _hosts(variables: Variables, nodes: Fact[int]) -> Fact[tuple[str, ...]]:
    hosts = hosts_by_group(variables, _listed_hosts(variables))
    return hosts if len(hosts.value) == nodes.value else Fact((), "default")


def _listed_hosts(variables: Variables) -> Fact[tuple[str, ...]]:
    listed = variables.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    return expand_hosts(listed) if listed else Fact((), "default")


def _master_addr(hosts: Fact[tuple[str, ...]]) -> Fact[str | None]:
    if not hosts.value:
        return Fact(None, "default")
    return Fact(LOOPBACK if len(hosts.value) == 1 else hosts.value[0], hosts.origin)


def _other_order(variables: Variables, hosts: Fact[tuple[str, ...]], node: Fact[int]) -> str:
    """Return how this node's id contradicts the list, which Slurm may sort otherwise; "": not at all."""
    own = variables.get("SLURMD_NODENAME")
    place = hosts.value.index(own) if own in hosts.value else node.value
    if place == node.value:
        return ""
    listed = f"number {place} of {hosts.origin}, counted from 0"
    return f"this is {own}, {listed}, but {node.origin} is {node.value}"


def _placed_by_hand(
    variables: Variables, hosts: Fact[tuple[str, ...]], tasks: TaskLayout | None
) -> str:
    """Return why task 0 may be on any host; "" if it is on the first.

    The list is sorted by name, whatever its order for srun was.
    """
    name = "SLURM_DISTRIBUTION"
    by_hand = tasks and len(hosts.value) > 1 and variables.get(name) == "arbitrary"
    return f"{name} is arbitrary, and rank 0 may be on any of {hosts.origin}" if by_hand else ""


def _secret(variables: Variables, identity: Fact[str]) -> Fact[str]:
    """Return the step's ids, which squeue shows to all users, and srun's port, which it does not.

    Each group of a heterogeneous step has another port of srun's.
    """
    port = variables.text("SLURM_STEP_LAUNCHER_PORT")
    if port is None or has_groups(variables):
        return identity
    return Fact(f"{identity.value} {port.value}", f"{identity.origin}, {port.origin}")


def _too_few_cpus(variables: Variables, cpus: int, tasks: int) -> tuple[str, ...]:
    """Return a warning from the first task if srun gave it fewer CPUs than its share."""
    on_node = variables.number("SLURM_CPUS_ON_NODE")
    asked = variables.number("SLURM_CPUS_PER_TASK")
    first = variables.require("SLURM_PROCID").value == 0
    share = on_node.value // tasks if on_node else 0
    if on_node is None or not first or cpus >= share or (asked and asked.value <= cpus):
        return ()
    few = f"{cpus} of the {share} CPUs that it could have"
    return (f"srun bound this task to {few} ({on_node.origin}): type srun -c {share}",)
