"""Slurm without srun: a batch script, a shell of salloc, a notebook in an allocation."""

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.host_lists import expand_counts, expand_hosts, short_name
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place
from clusterrun.sources.clusters.slurm import SlurmStep
from clusterrun.sources.clusters.slurm_groups import all_groups, has_groups, nodes_of_job
from clusterrun.sources.clusters.variables import Variables


class SlurmAllocation(Cluster):
    """A process in an allocation that srun did not start, so it runs on one node only."""

    yields_to_options = True
    markers = ("SLURM_JOB_ID", "SLURM_JOBID")

    def detect(self, variables: Variables) -> str:
        """Return the variable with the job's id, if its nodes are set as well.

        Containers may get the id alone, for programs that only show it.
        """
        has_nodes = variables.text(
            "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NODELIST", "SLURM_NODELIST"
        )
        return super().detect(variables) if has_nodes else ""

    def place(self, inputs: Inputs) -> Place:
        """Return this node as the only one, with an obstacle if the job cannot run on it alone."""
        variables = inputs.variables
        nodes = nodes_of_job(variables)
        batch = inputs.variables.get("ENVIRONMENT") == "BATCH"
        return Place(
            nnodes=Fact(1, nodes.origin if nodes.value == 1 else "a shell without srun"),
            nproc_per_node=variables.gpus("SLURM_GPUS_ON_NODE"),
            yields_to_options=True,
            obstacle=_in_batch_script(nodes, inputs) if batch else _on_other_host(inputs),
            warnings=() if batch or nodes.value == 1 else (_one_of_several(nodes, inputs),),
        )


class Allocation(Struct, frozen=True):
    """Nodes on which this process may start steps by srun."""

    nodes: int
    cpus: int
    """Of the smallest node."""

    def srun(self, nodes: int) -> tuple[str, ...]:
        """Return the words before a command that start it once on each of as many nodes."""
        # All CPUs of a node: srun may bind the task to one core otherwise.
        cpus = ("-c", str(self.cpus)) if self.cpus > 1 else ()
        counts = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
        # A program that runs many steps must end by one Ctrl-C, not by two within a second.
        return ("srun", "--quit-on-interrupt", *counts, *cpus)


def allocation_here(variables: Variables) -> Allocation | None:
    """Return the allocation of a batch script, or of a shell of salloc; None elsewhere.

    None also for an allocation of one node, where no step is needed, and for one of several groups,
    whose nodes differ.

    Raises:
        UsageError: a variable of Slurm's has a wrong value.

    """
    is_step = bool(SlurmStep().detect(variables))
    if is_step or not SlurmAllocation().detect(variables) or has_groups(variables):
        return None
    nodes = nodes_of_job(variables).value
    cpus = variables.text("SLURM_JOB_CPUS_PER_NODE")
    return Allocation(nodes, min(expand_counts(cpus)) if cpus else 0) if nodes > 1 else None


def _in_batch_script(nodes: Fact[int], inputs: Inputs) -> UsageError | None:
    if nodes.value == 1:
        return None
    return UsageError(
        f"a batch script runs on the first node only, but the job has {nodes.value} nodes"
        f" ({nodes.origin})",
        f"put srun before clusterrun:\n  {_under_srun(inputs)}",
    )


def _on_other_host(inputs: Inputs) -> UsageError | None:
    """Return the error for a shell on a host that is not a node of its job."""
    listed = inputs.variables.text("SLURM_JOB_NODELIST", "SLURM_NODELIST")
    hosts = {short_name(host) for host in expand_hosts(listed).value} if listed else set()
    own_names = {
        short_name(inputs.process.host),
        short_name(inputs.variables.get("SLURMD_NODENAME", "")),
    }
    if listed is None or own_names & hosts:
        return None
    return UsageError(
        f"the job's nodes are {listed.value} ({listed.origin}), but this shell runs on"
        f" {inputs.process.host}",
        f"put srun before clusterrun:\n  {_under_srun(inputs)}\n"
        f"or run the job on this host:\n  {inputs.command_line.line('--cluster', 'none')}",
    )


def _one_of_several(nodes: Fact[int], inputs: Inputs) -> str:
    return (
        f"the job runs on this node only, though {nodes.value} are allocated ({nodes.origin});"
        f" for all of them, type: {_under_srun(inputs)}"
    )


def _under_srun(inputs: Inputs) -> str:
    """Return the line to type. It asks for CPUs, as srun may bind each task to one core otherwise."""
    variables = inputs.variables
    asked = variables.number("SLURM_CPUS_PER_TASK")
    share = asked.value if asked else _smallest_share(variables)
    cpus = ("-c", str(share)) if share > 1 else ()
    return inputs.command_line.line(before=("srun", *all_groups(variables), *cpus))


def _smallest_share(variables: Variables) -> int:
    cpus = variables.text("SLURM_JOB_CPUS_PER_NODE")
    if cpus is None:
        return 0
    # If no tasks were asked for, SLURM_TASKS_PER_NODE counts CPUs, and srun starts one per node.
    asked = variables.text("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS")
    tasks = variables.text("SLURM_TASKS_PER_NODE") if asked else None
    return min(expand_counts(cpus)) // max(1, *(expand_counts(tasks) if tasks else (1,)))
