"""LSF: tasks that jsrun started, and the commands of a job."""

from clusterrun.job.clusters.found import DetectionContext, Found, Variables
from clusterrun.job.clusters.scheduler import Scheduler, parse_time_left
from clusterrun.job.clusters.tasks import StartCommands, TaskNumbers, task_placement
from clusterrun.job.declarations import Setting

SCHEDULER = Scheduler(
    "LSF",
    batch=("#BSUB", "bsub < FILE"),
    index_variable="LSB_JOBINDEX",
    requeue=("brequeue",),
    end_command=("bjobs", "-noheader", "-o", "time_left"),
    parse_end=parse_time_left,
)

JSRUN = StartCommands("jsrun -n {size} clusterrun ...", "jsrun -r 1 clusterrun ...")


def jsrun(v: Variables, _: DetectionContext) -> Found:
    """A task of jsrun (Lightning's LSFEnvironment reads the same variables)."""
    task = TaskNumbers(
        JSRUN,
        rank=v.require("JSM_NAMESPACE_RANK"),
        size=v.require("JSM_NAMESPACE_SIZE"),
        local_rank=v.require("JSM_NAMESPACE_LOCAL_RANK"),
        local_size=v.require("JSM_NAMESPACE_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    )
    job = v.text("LSB_JOBID")
    job = job and SCHEDULER.id_of(job, v)
    return task_placement(task, hosts=_hosts_of_lsf(v, task), run_id=job, secret=job)


def _hosts_of_lsf(v: Variables, task: TaskNumbers) -> Setting[tuple[str, ...]] | None:
    """Return the hosts of the tasks, without LSF's first host if jsrun only runs there."""
    # LSB_MCPU_HOSTS is "launch 1 host1 42 host2 42"; LSB_HOSTS has a name for each slot.
    listed = v.text("LSB_MCPU_HOSTS", "LSB_HOSTS")
    if listed is None:
        return None
    nodes = task.size.value // max(1, task.local_size.value)
    names = tuple(dict.fromkeys(word for word in listed.value.split() if not word.isdigit()))
    return Setting(names[1:] if len(names) == nodes + 1 else names, listed.origin)
