"""Flux: what its shell sets for each task (flux-core, src/shell/task.c)."""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.tasks import Task, place_of
from clusterrun.sources.clusters.variables import Variables


class Flux:
    """A task of ``flux run`` or ``flux submit``."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the task's rank."""
        return Variables(environ).sign("FLUX_TASK_RANK")

    def place(self, inputs: Inputs) -> Place:
        """Return the node's place, or the task's own where a node has several."""
        variables = Variables(inputs.variables)
        size = variables.expect("FLUX_JOB_SIZE")
        nodes = variables.expect("FLUX_JOB_NNODES")
        if not nodes.value or size.value % nodes.value:
            raise UsageError(
                f"{size.origin} is {size.value}, and {nodes.origin} {nodes.value}: nodes have"
                " different numbers of tasks, and nothing tells how many are on this one",
                f"start one task on each node:\n  flux run -N{nodes.value} -n{nodes.value}"
                " clusterrun ...",
            )
        job = variables.text("FLUX_JOB_ID")
        return place_of(
            Task(
                rank=variables.expect("FLUX_TASK_RANK"),
                size=size,
                local_rank=variables.expect("FLUX_TASK_LOCAL_ID"),
                local_size=Fact(size.value // nodes.value, f"{size.origin}, {nodes.origin}"),
                nodes=nodes,
            ),
            run_id=job,
            secret=job,
        )
