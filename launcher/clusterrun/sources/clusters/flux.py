"""Flux: what its shell sets for each task (flux-core, src/shell/task.c)."""

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.tasks import Task, TaskLauncher
from clusterrun.sources.clusters.variables import Variables


class Flux(TaskLauncher):
    rank = "FLUX_TASK_RANK"
    size = "FLUX_JOB_SIZE"
    local_rank = "FLUX_TASK_LOCAL_ID"
    run_id = secret = ("FLUX_JOB_ID",)

    def task(self, variables: Variables) -> Task:
        size, nodes = variables.require(self.size), variables.require("FLUX_JOB_NNODES")
        if not nodes.value or size.value % nodes.value:
            raise UsageError(
                f"{size.origin} is {size.value} and {nodes.origin} is {nodes.value}: nodes have"
                " different numbers of tasks, and the number on this one is unknown",
                f"start one task on each node:\n  flux run -N{nodes.value} -n{nodes.value}"
                " clusterrun ...",
            )
        return Task(
            rank=variables.require(self.rank),
            size=size,
            local_rank=variables.require(self.local_rank),
            local_size=Fact(size.value // nodes.value, f"{size.origin}, {nodes.origin}"),
            nodes=nodes,
        )
