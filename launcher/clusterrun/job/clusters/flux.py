"""Flux: its tasks, and the commands of a job."""

from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import DetectionContext, Found, Variables
from clusterrun.job.clusters.scheduler import Scheduler, parse_time_left
from clusterrun.job.clusters.tasks import StartCommands, TaskNumbers, task_placement
from clusterrun.job.declarations import Setting

# Flux has no command that requeues a running job, so the same job is submitted again. flux run in a
# script of flux batch starts a job of the batch job's own instance, which ends with the script: then
# the batch job is submitted again (flux-environment(7), flux(1)). flux alloc's instance, which has a
# terminal, is not.
_SUBMIT_AGAIN = """\
if flux getattr parent-uri >/dev/null 2>&1; then
    id=$(flux getattr jobid) && spec=$(flux --parent job info "$id" jobspec) || exit
    case $spec in *'"pty"'*) ;; *) printf %s "$spec" | flux --parent job submit; exit ;; esac
fi
spec=$(flux job info "$0" jobspec) && printf %s "$spec" | flux job submit
"""

SCHEDULER = Scheduler(
    "Flux",
    batch=("#flux:", "flux batch FILE"),
    requeue=("sh", "-c", _SUBMIT_AGAIN),
    end_command=("flux", "job", "timeleft"),
    parse_end=parse_time_left,
)

FLUX = StartCommands(
    "flux run -n{size} clusterrun ...", "flux run -N{nodes} -n{nodes} clusterrun ..."
)


def task(v: Variables, _: DetectionContext) -> Found:
    """A task of ``flux run`` (flux-core, src/shell/task.c)."""
    size, nodes = v.require("FLUX_JOB_SIZE"), v.require("FLUX_JOB_NNODES")
    if not nodes.value or size.value % nodes.value:
        raise UsageError(
            f"{size.origin} is {size.value} and {nodes.origin} is {nodes.value}: nodes have"
            " different numbers of tasks, and the number on this one is unknown",
            "start one task on each node:\n  "
            + FLUX.one_per_node.format(nodes=nodes.value, size=size.value),
        )
    numbers = TaskNumbers(
        FLUX,
        rank=v.require("FLUX_TASK_RANK"),
        size=size,
        local_rank=v.require("FLUX_TASK_LOCAL_ID"),
        local_size=Setting(size.value // nodes.value, f"{size.origin}, {nodes.origin}"),
        nodes=nodes,
    )
    job = v.text("FLUX_JOB_ID")
    return task_placement(numbers, run_id=job, secret=job)
