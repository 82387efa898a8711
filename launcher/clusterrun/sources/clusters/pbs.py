"""PBS and Torque: a file with the job's hosts, in which a process finds its own.

PBS starts a job's script on the first of its hosts alone; pbsdsh, ssh or an mpiexec has to start it
on the others, and PBS tells no process that it did.
"""

from collections.abc import Mapping
from pathlib import Path

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place, nowhere
from clusterrun.sources.clusters.variables import Variables
from clusterrun.sources.hosts.host_lists import short_name


class Pbs:
    """A process of a PBS job."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the file of hosts."""
        return Variables(environ).sign("PBS_NODEFILE")

    def place(self, inputs: Inputs) -> Place:
        """Return the place of this host among those of the job."""
        variables = Variables(inputs.variables)
        said = variables.text("PBS_NODEFILE") or Fact("", "PBS_NODEFILE")
        hosts = hosts_of_job(said)
        names = [short_name(host) for host in hosts.value]
        here = short_name(inputs.process.host)
        if here not in names:
            error = UsageError(
                f"{said.origin}: {said.value} lists {', '.join(hosts.value)}, and"
                f" {inputs.process.host} is none of them",
                "say which node this is: --nnodes, --node-rank, --master-addr;"
                " or run it here alone: --cluster none",
            )
            return nowhere(error)
        return Place(
            nnodes=Fact(len(names), said.origin),
            node_rank=Fact(names.index(here), said.origin),
            hosts=hosts,
            master_addr=Fact(hosts.value[0], said.origin),
            run_id=variables.text("PBS_JOBID"),
            tentative=True,
        )


def hosts_of_job(said: Fact[str]) -> Fact[tuple[str, ...]]:
    """Return the hosts that the file has, each once, in its order; it has a line for each slot.

    Raises:
        UsageError: it can't be read, or is empty.

    """
    try:
        lines = Path(said.value).read_text(encoding="utf-8", errors="replace").split()
    except OSError as error:
        raise UsageError(
            f"{said.origin}: {said.value} can't be read: {error.strerror}",
            "make it readable here, or ignore the cluster with --cluster none",
        ) from None
    if not lines:
        raise UsageError(
            f"{said.origin}: {said.value} is empty", "ignore the cluster with --cluster none"
        )
    return Fact(tuple(dict.fromkeys(lines)), said.origin)
