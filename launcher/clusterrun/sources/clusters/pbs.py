"""PBS and Torque: a file with the job's hosts, in which a process finds its own.

PBS starts a job's script on the first of its hosts; pbsdsh, ssh or an mpiexec has to start it on
the others, and no variable of PBS shows that it did.
"""

from pathlib import Path

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.host_lists import short_name
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place, no_place


class Pbs(Cluster):
    yields_to_options = True
    markers = ("PBS_NODEFILE",)

    def place(self, inputs: Inputs) -> Place:
        variables = inputs.variables
        file = Fact(inputs.variables["PBS_NODEFILE"], "PBS_NODEFILE")
        hosts = read_nodefile(file)
        names = [short_name(host) for host in hosts.value]
        own = short_name(inputs.process.host)
        if own not in names:
            return no_place(
                f"{file.origin}: {file.value} lists {', '.join(hosts.value)}, but not this host,"
                f" {inputs.process.host}",
                "set the place of this node: --nnodes, --node-rank, --master-addr;"
                " or run the job on this host alone: --cluster none",
            )
        return Place(
            nnodes=Fact(len(names), file.origin),
            node_rank=Fact(names.index(own), file.origin),
            hosts=hosts,
            master_addr=Fact(hosts.value[0], file.origin),
            run_id=variables.text("PBS_JOBID"),
            yields_to_options=True,
        )


def read_nodefile(file: Fact[str]) -> Fact[tuple[str, ...]]:
    """Return the hosts of the file, each once, in its order; it has a line for each slot."""
    try:
        lines = Path(file.value).read_text(encoding="utf-8", errors="replace").split()
    except OSError as error:
        raise UsageError(
            f"{file.origin}: {file.value} cannot be read: {error.strerror}",
            "make it readable here, or ignore the cluster with --cluster none",
        ) from None
    if not lines:
        raise UsageError(
            f"{file.origin}: {file.value} is empty", "ignore the cluster with --cluster none"
        )
    return Fact(tuple(dict.fromkeys(lines)), file.origin)
