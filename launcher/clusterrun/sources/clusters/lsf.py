"""LSF: tasks that jsrun started (Lightning's LSFEnvironment reads the same variables)."""

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.tasks import NO_HOSTS, Task, TaskLauncher, place_of_task
from clusterrun.sources.clusters.variables import Variables


class JsRun(TaskLauncher):
    rank = "JSM_NAMESPACE_RANK"
    size = "JSM_NAMESPACE_SIZE"
    local_rank = "JSM_NAMESPACE_LOCAL_RANK"
    local_size = ("JSM_NAMESPACE_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")

    def place(self, inputs: Inputs) -> Place:
        variables = inputs.variables
        task = self.task(variables)
        job = variables.text("LSB_JOBID")
        return place_of_task(task, hosts=_hosts(variables, task), run_id=job, secret=job)


def _hosts(variables: Variables, task: Task) -> Fact[tuple[str, ...]]:
    """Return the hosts of the tasks, without the one on which jsrun was typed: LSF's first."""
    # "launch 1 host1 42 host2 42", or a name for each slot.
    listed = variables.text("LSB_MCPU_HOSTS", "LSB_HOSTS")
    if listed is None:
        return NO_HOSTS
    nodes = task.size.value // max(1, task.local_size.value)
    names = tuple(dict.fromkeys(word for word in listed.value.split() if not word.isdigit()))
    return Fact(names[1:] if len(names) == nodes + 1 else names, listed.origin)
