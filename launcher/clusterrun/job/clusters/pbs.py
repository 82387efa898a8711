"""PBS and Torque: a file with the job's hosts, and the commands of a job."""

import re
from pathlib import Path

from msgspec.structs import replace

from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import DetectionContext, Found, Variables, node, unplaced
from clusterrun.job.clusters.scheduler import Scheduler, local_time, seconds_of
from clusterrun.job.declarations import Setting
from clusterrun.job.hosts import short_name


def parse_qstat(output: str, _now: float) -> float | None:
    """Read the start and the limit as ``qstat -f`` prints them (pbs_job_attributes(7B)).

    PBS Professional and OpenPBS print ``stime``, Torque prints ``start_time``. A long line continues
    after a tab.
    """
    text = output.replace("\n\t", "")
    started = re.search(r"^\s*(?:stime|start_time) = (.+)$", text, re.MULTILINE)
    limit = re.search(r"^\s*Resource_List\.walltime = ([\d:]+)$", text, re.MULTILINE)
    if started is None or limit is None:
        return None
    since = local_time(started[1].strip(), "%a %b %d %H:%M:%S %Y")
    return None if since is None else since + seconds_of(limit[1])


SCHEDULER = Scheduler(
    "PBS",
    batch=("#PBS", "qsub FILE"),
    requeue=("qrerun",),
    end_command=("qstat", "-f"),
    parse_end=parse_qstat,
)


def node_in_nodefile(v: Variables, context: DetectionContext) -> Found:
    """A process of a PBS job: its rank is the position of its host in the nodefile.

    PBS starts the job's script on the first host. pbsdsh, ssh or mpiexec must start it on the others,
    but no variable of PBS shows that they did.
    """
    file = Setting(v["PBS_NODEFILE"], "PBS_NODEFILE")
    hosts, here = read_nodefile(file), context.process.host
    names = [short_name(host) for host in hosts.value]
    if short_name(here) not in names:
        lists = (
            f"{file.origin}: {file.value} lists {', '.join(hosts.value)}, but not this host, {here}"
        )
        found = unplaced(
            lists,
            "set --nnodes, --node-rank and --master-addr;"
            " or run the job on this host alone: --cluster none",
        )
        return replace(found, elsewhere_warning=lists)
    found = node(
        Setting(len(names), file.origin),
        Setting(names.index(short_name(here)), file.origin),
        hosts=hosts,
        run_id=v.text("PBS_JOBID"),
    )
    return replace(found, overridable=True)


def read_nodefile(file: Setting[str]) -> Setting[tuple[str, ...]]:
    """Return the hosts of the file in its order, each once; the file has a line for each slot.

    Raises:
        UsageError: the file can't be read or is empty.

    """
    try:
        lines = Path(file.value).read_text(encoding="utf-8", errors="replace").split()
    except OSError as error:
        raise UsageError(
            f"{file.origin}: {file.value} can't be read: {error.strerror}",
            "make it readable on this host, or ignore the cluster with --cluster none",
        ) from None
    if not lines:
        raise UsageError(
            f"{file.origin}: {file.value} is empty", "ignore the cluster with --cluster none"
        )
    return Setting(tuple(dict.fromkeys(lines)), file.origin)
