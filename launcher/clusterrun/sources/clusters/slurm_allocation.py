"""Slurm without srun: the batch script, a shell of salloc's, a notebook in an allocation."""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.slurm import gpus_given
from clusterrun.sources.clusters.variables import Variables
from clusterrun.sources.hosts.host_lists import expand_counts, expand_hosts, short_name


class SlurmAllocation:
    """A process in an allocation that srun did not start: nothing starts it on other nodes."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the job's id, where its nodes are told, too.

        Containers are given the id alone, for programs that only show it.
        """
        variables = Variables(environ)
        nodes = variables.sign(
            "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NODELIST", "SLURM_NODELIST"
        )
        return variables.sign("SLURM_JOB_ID", "SLURM_JOBID") if nodes else ""

    def place(self, inputs: Inputs) -> Place:
        """Return this node as the only one, with an obstacle where that can't be meant."""
        nodes = Variables(inputs.variables).expect("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
        batch = inputs.variables.get("ENVIRONMENT") == "BATCH"
        return Place(
            nnodes=Fact(1, nodes.origin if nodes.value == 1 else "a shell without srun"),
            node_rank=Fact(None, "default"),
            hosts=Fact((), "default"),
            nproc_per_node=gpus_given(inputs.variables),
            tentative=True,
            obstacle=_in_batch_script(nodes, inputs) if batch else _off_the_nodes(inputs),
            warnings=() if batch or nodes.value == 1 else (_one_of_several(nodes, inputs),),
        )


def _in_batch_script(nodes: Fact[int], inputs: Inputs) -> UsageError | None:
    if nodes.value == 1:
        return None
    return UsageError(
        f"this is a batch script, which runs on the first of {nodes.value} nodes"
        f" ({nodes.origin}) alone",
        f"put srun before it:\n  {_under_srun(inputs)}",
    )


def _off_the_nodes(inputs: Inputs) -> UsageError | None:
    """Return why a shell can't run the job where it is; None where it stands on a node of it."""
    said = Variables(inputs.variables).text("SLURM_JOB_NODELIST", "SLURM_NODELIST")
    hosts = {short_name(host) for host in expand_hosts(said).value} if said else set()
    here = {
        short_name(inputs.process.host),
        short_name(inputs.variables.get("SLURMD_NODENAME", "")),
    }
    if said is None or here & hosts:
        return None
    return UsageError(
        f"this shell has the nodes {said.value} ({said.origin}), and {inputs.process.host} is none of them",
        f"put srun before it:\n  {_under_srun(inputs)}\n"
        f"or run it here:\n  {inputs.typed.line('--cluster', 'none')}",
    )


def _one_of_several(nodes: Fact[int], inputs: Inputs) -> str:
    return (
        f"the job runs on this one of {nodes.value} nodes ({nodes.origin}) alone;"
        f" on all of them: {_under_srun(inputs)}"
    )


def _under_srun(inputs: Inputs) -> str:
    """Return the line to type. It asks for CPUs, for srun alone may bind each task to one core."""
    variables = Variables(inputs.variables)
    asked = variables.number("SLURM_CPUS_PER_TASK")
    share = asked.value if asked else _smallest_share(variables)
    return inputs.typed.line(before=("srun", *(("-c", str(share)) if share > 1 else ())))


def _smallest_share(variables: Variables) -> int:
    cpus = variables.text("SLURM_JOB_CPUS_PER_NODE")
    if cpus is None:
        return 0
    # Where no tasks were asked for, SLURM_TASKS_PER_NODE counts CPUs, and srun starts one per node.
    asked = variables.text("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS")
    tasks = variables.text("SLURM_TASKS_PER_NODE") if asked else None
    return min(expand_counts(cpus)) // max(1, *(expand_counts(tasks) if tasks else (1,)))
