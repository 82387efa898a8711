"""Cray PALS, the mpiexec of HPE machines under PBS, such as Aurora and Polaris."""

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.pbs import read_nodefile
from clusterrun.sources.clusters.tasks import TaskLauncher, place_of_task


class Pals(TaskLauncher):
    """A task of PALS."""

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
