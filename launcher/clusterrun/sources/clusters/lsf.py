"""LSF: tasks that jsrun started (Lightning's LSFEnvironment reads the same variables)."""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.tasks import Task, place_of
from clusterrun.sources.clusters.variables import Variables


class JsRun:
    """A task that jsrun, LSF's job step manager, started."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the task's rank."""
        return Variables(environ).sign("JSM_NAMESPACE_RANK")

    def place(self, inputs: Inputs) -> Place:
        """Return the node's place, or the task's own where a node has several."""
        variables = Variables(inputs.variables)
        task = Task(
            rank=variables.expect("JSM_NAMESPACE_RANK"),
            size=variables.expect("JSM_NAMESPACE_SIZE"),
            local_rank=variables.expect("JSM_NAMESPACE_LOCAL_RANK"),
            local_size=variables.expect("JSM_NAMESPACE_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        )
        nodes = task.size.value // max(1, task.local_size.value)
        job = variables.text("LSB_JOBID")
        return place_of(task, hosts=_hosts(variables, nodes), run_id=job, secret=job)


def _hosts(variables: Variables, nodes: int) -> Fact[tuple[str, ...]]:
    """Return the hosts of the tasks: LSF also lists the one that jsrun was typed on, as the first."""
    # "launch 1 host1 42 host2 42", or a name for each slot.
    said = variables.text("LSB_MCPU_HOSTS", "LSB_HOSTS")
    if said is None:
        return Fact((), "default")
    names = tuple(dict.fromkeys(word for word in said.value.split() if not word.isdigit()))
    return Fact(names[1:] if len(names) == nodes + 1 else names, said.origin)
