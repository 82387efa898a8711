"""Slurm: tasks of srun, heterogeneous jobs, and processes in an allocation without srun.

The step's variables come before the job's, which are wrong if a step has only a part of the allocation
(srun(1), "OUTPUT ENVIRONMENT VARIABLES"; all observed with 22.05).
"""

import re
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import (
    WITHOUT_CLUSTER,
    DetectionContext,
    Found,
    Variables,
    first_host,
)
from clusterrun.job.clusters.scheduler import Scheduler, local_time
from clusterrun.job.declarations import Setting
from clusterrun.job.hosts import expand_counts, expand_hosts, short_name
from clusterrun.job.job import TaskLayout
from clusterrun.job.this_process import ThisProcess
from clusterrun.job.values import LOOPBACK

_STEP = ("SLURM_STEP_ID", "SLURM_STEPID")
_JOB = ("SLURM_JOB_ID", "SLURM_JOBID")
_NODES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_HOSTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")

_FIRST_RESERVED_STEP = 0xFFFF_FFF0
"""Step ids from this one on are not srun's; one is the batch script's (slurm.h)."""

_IN_STEP_SHELL = ("--overlap", "--cpu-bind=none")
"""Options of srun in a shell that is itself a step: the new step shares the shell's nodes, and does not
inherit its SLURM_CPU_BIND."""

_FIRST_PORT = 20_000
_PORTS = 9_377
"""The number of ports for jobs; a prime, so different strides give different ports.

The last port is below 29500, the port of other launchers, below the kernel's ephemeral ports
(ip_local_port_range, from 32768 unless changed) and below those of Kubernetes services (from 30000).
"""


def parse_end_time(output: str, _now: float) -> float | None:
    """Read ``EndTime=2026-11-22T23:59:01`` in local time (scontrol(1)), or in seconds since the epoch.

    Slurm prints the latter if SLURM_TIME_FORMAT is ``%s``, as it is when ``scontrol`` is called.
    """
    found = re.search(r"\bEndTime=(\S+)", output)
    if found is None:
        return None
    if found[1].isdigit():
        return float(found[1])
    return local_time(found[1], "%Y-%m-%dT%H:%M:%S")


SCHEDULER = Scheduler(
    "Slurm",
    batch=("#SBATCH", "sbatch FILE"),
    requeue=("scontrol", "requeue"),
    end_command=("scontrol", "show", "job", "-o"),
    parse_end=parse_end_time,
    end_variable="SLURM_JOB_END_TIME",
    restarts_variable="SLURM_RESTART_COUNT",
)


def step(v: Variables, context: DetectionContext) -> Found | None:
    """A task of srun: the only one of its node, or one of several."""
    if not _is_task(v, context.process):
        return None
    nodes = v.require("SLURM_STEP_NUM_NODES", *_NODES)
    node = v.require("SLURM_NODEID")
    counts = _tasks_by_node(v, nodes, node)
    tasks = _layout(v, counts, node.value) if max(counts.value) > 1 else None
    hosts = _by_group(v, _listed(v))
    if hosts and len(hosts.value) != nodes.value:
        hosts = None
    other_order = _other_order(v, hosts, node)
    if other_order:
        hosts = None
    no_address_reason = other_order or (_arbitrary_distribution(v, hosts) if tasks else None)
    job, number = v.require(*_JOB), v.require(*_STEP)
    identity = Setting(f"{job.value}.{number.value}", f"{job.origin}, {number.origin}")
    return Found(
        nnodes=nodes,
        node_rank=node,
        hosts=hosts,
        tasks=tasks,
        nproc_per_node=None if tasks else v.gpus("SLURM_GPUS_ON_NODE"),
        master_addr=None if no_address_reason else _master_addr(hosts),
        no_address_reason=no_address_reason,
        ports=Setting(port_candidates(job.value, number.value), identity.origin),
        run_id=identity,
        secret=_secret(v, identity),
        warnings=_too_few_cpus(v, context.process.cpus, counts.value[node.value]),
    )


def port_candidates(job: int, step: int) -> tuple[int, ...]:
    """Return the ports of a step in the order to try them; they are the same on all of its nodes.

    The first port differs from that of the job's other steps and of the jobs just before and after
    it, which may run on the same nodes at the same time.
    """
    first = job * 1_009 + step
    return tuple(_FIRST_PORT + (first + stride) % _PORTS for stride in (0, 1_733, 3_467, 5_197))


def _is_task(v: Variables, process: ThisProcess) -> bool:
    """Return whether this process is a task of a step: not a batch script, and not a shell in the step."""
    return _has_step(v) and not _is_batch_script(v) and not _is_shell_of_step(v, process)


def _has_step(v: Variables) -> bool:
    step = v.text(*_STEP)
    return step is not None and step.value.isdigit() and int(step.value) < _FIRST_RESERVED_STEP


def _is_batch_script(v: Variables) -> bool:
    """Return whether this is a batch script that inherited a step because it was submitted in one.

    The steps of a batch script inherit ENVIRONMENT. srun sets SLURM_UMASK for each task (srun(1));
    slurmstepd removes it from the variables of a batch script (set_umask, since 16.05).
    """
    return v.get("ENVIRONMENT") == "BATCH" and not v.get("SLURM_UMASK")


def _is_shell_of_step(v: Variables, process: ThisProcess) -> bool:
    """Return whether a shell of ``srun --pty bash`` started this process.

    Only task 0 has the terminal; the shells of other tasks end at once. The variable alone is not
    enough: tasks that such a shell starts by srun inherit it, and ``srun --pty clusterrun`` has it.
    """
    return _has_step(v) and bool(v.get("SLURM_PTY_PORT")) and process.is_under_shell()


def _tasks_by_node(
    v: Variables, nodes: Setting[int], node: Setting[int]
) -> Setting[tuple[int, ...]]:
    listed = v.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    counts = _by_rank(v, expand_counts(listed)) if listed else (1,) * nodes.value
    origin = listed.origin if listed else nodes.origin
    if not node.value < len(counts) == nodes.value:
        raise UsageError(
            f"{node.origin} is {node.value}, {nodes.origin} is {nodes.value} and {origin} has"
            f" {len(counts)} entries: these values disagree",
            WITHOUT_CLUSTER,
        )
    if 0 in counts:
        raise UsageError(f"{origin} has a node without tasks", WITHOUT_CLUSTER)
    return Setting(counts, origin)


def _by_rank(v: Variables, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``counts``, which have the order of the list of hosts, in the order of the nodes' ranks."""
    listed = _listed(v)
    ranked = _by_group(v, listed)
    if listed is None or ranked is None or len(listed.value) != len(counts):
        return counts
    of_host = dict(zip(listed.value, counts, strict=True))
    return tuple(of_host[host] for host in ranked.value)


def _layout(v: Variables, counts: Setting[tuple[int, ...]], node: int) -> Setting[TaskLayout]:
    local_rank = v.require("SLURM_LOCALID").value
    gpus = v.number("SLURM_GPUS_ON_NODE")
    layout = TaskLayout(
        rank=GlobalRank(v.require("SLURM_PROCID").value),
        size=sum(counts.value),
        local_rank=LocalRank(local_rank),
        local_size=counts.value[node],
        node_rank=NodeRank(node),
        nodes=len(counts.value),
        own_cpus=_has_own_cpus(v, local_rank),
        gpus=None if gpus is None else gpus.value,
        all_tasks=f"srun -n {sum(counts.value)} clusterrun ...",
        one_per_node="srun --ntasks-per-node=1 clusterrun ...",
    )
    return Setting(layout, counts.origin)


def _has_own_cpus(v: Variables, local_rank: int) -> bool:
    """Return whether no other task on this node may use a CPU of this task's mask."""
    listed = v.get("SLURM_CPU_BIND_LIST", "")
    if not listed or not v.get("SLURM_CPU_BIND_TYPE", "").startswith("mask_cpu"):
        return False
    try:
        masks = [int(mask, 16) for mask in listed.split(",")]
    except ValueError:
        return False
    others = masks[:local_rank] + masks[local_rank + 1 :]
    return local_rank < len(masks) and not any(masks[local_rank] & other for other in others)


def _listed(v: Variables) -> Setting[tuple[str, ...]] | None:
    listed = v.text("SLURM_STEP_NODELIST", *_HOSTS)
    return expand_hosts(listed) if listed else None


def _master_addr(hosts: Setting[tuple[str, ...]] | None) -> Setting[str] | None:
    if hosts and len(hosts.value) == 1:
        return Setting(LOOPBACK, hosts.origin)
    return first_host(hosts)


def _other_order(
    v: Variables, hosts: Setting[tuple[str, ...]] | None, node: Setting[int]
) -> str | None:
    """Return how this node's id disagrees with the list, which may have another order than the ids."""
    own = v.get("SLURMD_NODENAME")
    if hosts is None or own not in hosts.value or hosts.value.index(own) == node.value:
        return None
    listed = f"number {hosts.value.index(own)} of {hosts.origin}, counted from 0"
    return f"this is {own}, {listed}, but {node.origin} is {node.value}"


def _arbitrary_distribution(v: Variables, hosts: Setting[tuple[str, ...]] | None) -> str | None:
    """Return why task 0 may be on any host; None if it is on the first.

    Slurm sorts the list by name, in whatever order srun got it.
    """
    name = "SLURM_DISTRIBUTION"
    if hosts is None or len(hosts.value) == 1 or v.get(name) != "arbitrary":
        return None
    return f"{name} is arbitrary, and rank 0 may be on any of {hosts.origin}"


def _secret(v: Variables, identity: Setting[str]) -> Setting[str]:
    """Return the ids of the step, which squeue shows to all users, and srun's port, which it does not.

    In a heterogeneous step the port differs between groups, so the ids must be enough.
    """
    port = v.text("SLURM_STEP_LAUNCHER_PORT")
    if port is None or _has_groups(v):
        return identity
    return Setting(f"{identity.value} {port.value}", f"{identity.origin}, {port.origin}")


def _too_few_cpus(v: Variables, cpus: int, tasks: int) -> tuple[str, ...]:
    """Return a warning if srun gave the first task fewer CPUs than its share of the node."""
    on_node, asked = v.number("SLURM_CPUS_ON_NODE"), v.number("SLURM_CPUS_PER_TASK")
    first = v.require("SLURM_PROCID").value == 0
    share = on_node.value // tasks if on_node else 0
    if on_node is None or not first or cpus >= share or (asked and asked.value <= cpus):
        return ()
    few = f"{cpus} of the {share} CPUs that it could have"
    return (f"srun bound this task to {few} ({on_node.origin}): run srun -c {share}",)


# Heterogeneous jobs and steps have groups of nodes with different requests. A step of several groups
# has one set of sizes and ranks. Its lists of hosts and tasks are sorted by name, but the ranks of
# nodes follow the groups (Slurm's "Heterogeneous Job Support").


def _has_groups(v: Variables) -> bool:
    return bool(v.get("SLURM_HET_SIZE"))


def _groups(v: Variables) -> range:
    return range(v.require("SLURM_HET_SIZE").value) if _has_groups(v) else range(0)


def _by_group(
    v: Variables, listed: Setting[tuple[str, ...]] | None
) -> Setting[tuple[str, ...]] | None:
    """Return the hosts of a step in the order of their ranks.

    The list is unchanged for a job without groups, and if two groups share a host, because the rank
    of that host is then unknown.
    """
    if listed is None or not _has_groups(v):
        return listed
    name, step = "SLURM_JOB_NODELIST_HET_GROUP_", set(listed.value)
    lists = (v.text(f"{name}{group}") for group in _groups(v))
    hosts = [host for text in lists if text for host in expand_hosts(text).value if host in step]
    if sorted(hosts) != sorted(listed.value):
        return listed
    return Setting(tuple(hosts), f"{listed.origin}, {name}*")


def allocation(v: Variables, context: DetectionContext) -> Found | None:
    """A process in an allocation that is not a task: a batch script, a shell, a notebook.

    The job has this node only; an error is set if the job cannot run on it alone. Containers may get
    the job's id alone, for programs that only show it; that is not an allocation.
    """
    if not v.text(*_NODES, *_HOSTS):
        return None
    is_shell = _is_shell_of_step(v, context.process)
    nodes = _allocated_nodes(v, in_step=is_shell)
    error: UsageError | None = None
    elsewhere_warning: str | None = None
    warnings: tuple[str, ...] = ()
    if v.get("ENVIRONMENT") == "BATCH" and not is_shell:
        if nodes.value > 1:
            error = UsageError(
                f"a batch script runs on the first node only, but the job has {nodes.value} nodes"
                f" ({nodes.origin})",
                f"put srun before clusterrun:\n  {_under_srun(v, context)}",
            )
    else:
        error = _on_other_host(v, context)
        elsewhere_warning = _elsewhere_warning(v, context, error) if error else None
        warnings = tuple(_unused_warnings(v, context, nodes, is_shell=is_shell))
    return Found(
        nnodes=Setting(1, nodes.origin if nodes.value == 1 else "a shell without srun"),
        nproc_per_node=v.gpus("SLURM_GPUS_ON_NODE"),
        overridable=True,
        error=error,
        elsewhere_warning=elsewhere_warning,
        warnings=warnings,
    )


def _unused_warnings(
    v: Variables, context: DetectionContext, nodes: Setting[int], *, is_shell: bool
) -> Iterator[str]:
    """Yield a warning if the job in a shell leaves nodes, or CPUs of this node, unused."""
    on_node, cpus = v.number("SLURM_CPUS_ON_NODE"), context.process.cpus
    if nodes.value > 1:
        what = (
            f"the job runs on this node only, though {nodes.value} are allocated ({nodes.origin})"
        )
    elif is_shell and on_node and cpus < on_node.value:
        # A shell is one task, so srun bound it to the CPUs of one task.
        what = (
            f"srun bound this shell to {cpus} of the {on_node.value} CPUs of this node"
            f" ({on_node.origin})"
        )
    else:
        return
    yield f"{what}; for all of them, run: {_under_srun(v, context)}"


def _allocated_nodes(v: Variables, *, in_step: bool) -> Setting[int]:
    """Return the number of nodes of the step, or of all groups of the allocation."""
    if in_step:
        return v.require("SLURM_STEP_NUM_NODES", *_NODES)
    if not _has_groups(v):
        return v.require(*_NODES)
    name = "SLURM_JOB_NUM_NODES_HET_GROUP_"
    return Setting(sum(v.require(f"{name}{group}").value for group in _groups(v)), f"{name}*")


def _on_other_host(v: Variables, context: DetectionContext) -> UsageError | None:
    """Return the error if this host, such as a login node, is not a node of the job."""
    listed, here = v.text(*_HOSTS), context.process.host
    hosts = {short_name(host) for host in expand_hosts(listed).value} if listed else set()
    own_names = {short_name(here), short_name(v.get("SLURMD_NODENAME", ""))}
    if listed is None or own_names & hosts:
        return None
    return UsageError(
        f"the job's nodes are {listed.value} ({listed.origin}), but this shell runs on {here}",
        f"put srun before clusterrun:\n  {_under_srun(v, context)}\n"
        f"or run the job on this host:\n  {context.line.quoted('--cluster', 'none')}",
    )


def _elsewhere_warning(v: Variables, context: DetectionContext, error: UsageError) -> str:
    """Return the warning if options nevertheless run the job on this host."""
    on_nodes = replace(context, line=context.line.without({"nnodes", "standalone"}))
    return f"{error.message}; to run on them: {_under_srun(v, on_nodes)}"


def _under_srun(v: Variables, context: DetectionContext) -> str:
    """Return the line to type; it asks for CPUs because srun may bind each task to one core otherwise."""
    # In a job of several groups, the names without a suffix describe the first group only.
    suffixes = [f"_HET_GROUP_{group}" for group in _groups(v)] or [""]
    share = min(_share(v, suffix) for suffix in suffixes)
    cpus = ("-c", str(share)) if share > 1 else ()
    numbers = ",".join(map(str, _groups(v)))
    groups = (f"--het-group={numbers}",) if numbers else ()
    in_shell = _IN_STEP_SHELL if _is_shell_of_step(v, context.process) else ()
    return context.line.quoted(before=("srun", *in_shell, *groups, *cpus))


def _share(v: Variables, suffix: str) -> int:
    """Return the CPUs to ask for: those asked for before, else a task's on the smallest node."""
    if cpus := v.number(f"SLURM_CPUS_PER_TASK{suffix}"):
        return cpus.value
    # If no tasks were requested, SLURM_TASKS_PER_NODE counts CPUs, and srun starts one task per node.
    asked = v.text(f"SLURM_NTASKS_PER_NODE{suffix}", f"SLURM_NTASKS{suffix}")
    tasks = v.text(f"SLURM_TASKS_PER_NODE{suffix}") if asked else None
    return _smallest_node(v, suffix) // max(1, *(expand_counts(tasks) if tasks else (1,)))


def _smallest_node(v: Variables, suffix: str = "") -> int:
    """Return the number of CPUs of the allocation's smallest node; 0 if it is unknown."""
    cpus = v.text(f"SLURM_JOB_CPUS_PER_NODE{suffix}")
    return min(expand_counts(cpus)) if cpus else 0


class Allocation(Struct, frozen=True):
    """Nodes on which this process can start steps by srun."""

    nodes: int
    cpus: int
    """The number of CPUs of the smallest node; 0 if it is unknown."""
    in_step: bool = False
    """This process is in a shell that is itself a step."""

    def srun(self, nodes: int) -> tuple[str, ...]:
        """Return the srun command, without a program, that starts one task on each of ``nodes`` nodes."""
        # srun may bind the task to one core unless it is asked for all CPUs.
        cpus = ("-c", str(self.cpus)) if self.cpus > 1 else ()
        counts = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
        # A program that runs many steps must end by one Ctrl-C, not by two within a second.
        in_shell = _IN_STEP_SHELL if self.in_step else ()
        return ("srun", "--quit-on-interrupt", *in_shell, *counts, *cpus)


def current_allocation(v: Variables, process: ThisProcess) -> Allocation | None:
    """Return the allocation of a batch script, or of a shell of salloc or srun.

    Returns None elsewhere, for an allocation of one node, which needs no step, and for an allocation
    of several groups, whose nodes differ.

    Raises:
        UsageError: a variable of Slurm has a wrong value.

    """
    is_allocation = v.text(*_JOB) and v.text(*_NODES, *_HOSTS) and not _is_task(v, process)
    if not is_allocation or _has_groups(v):
        return None
    in_step = _is_shell_of_step(v, process)
    nodes = _allocated_nodes(v, in_step=in_step).value
    return Allocation(nodes, _smallest_node(v), in_step) if nodes > 1 else None
