"""Cray PALS, the mpiexec of HPE machines under PBS, such as Aurora and Polaris."""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.pbs import hosts_of_job
from clusterrun.sources.clusters.tasks import Task, place_of
from clusterrun.sources.clusters.variables import Variables


class Pals:
    """A task that PALS started."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the task's rank."""
        return Variables(environ).sign("PALS_RANKID")

    def place(self, inputs: Inputs) -> Place:
        """Return the node's place, or the task's own where a node has several."""
        variables = Variables(inputs.variables)
        task = Task(
            rank=variables.expect("PALS_RANKID"),
            size=variables.expect("PMI_SIZE"),
            local_rank=variables.expect("PALS_LOCAL_RANKID"),
            local_size=variables.expect("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
            node_rank=variables.number("PALS_NODEID"),
        )
        said = variables.text("PBS_NODEFILE")
        hosts = hosts_of_job(said) if said else Fact((), "default")
        application = variables.text("PALS_APID")
        return place_of(task, hosts=hosts, run_id=application, secret=application)
