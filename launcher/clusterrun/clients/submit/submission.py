"""From the command line, the variables and the job file to what is handed to a scheduler."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from msgspec import Struct

from clusterrun.clients.submit.node_command import (
    NodeCommand,
    check_options,
    node_command,
    path_of_launcher,
)
from clusterrun.clients.submit.request import ROWS, Gpus, SchedulerRequest, find_scheduler
from clusterrun.clients.submit.sections import read_sections, shape_of
from clusterrun.errors import UsageError
from clusterrun.job.declaring import Fact, rows_of
from clusterrun.job.job_file import ALL_SCHEDULERS
from clusterrun.job.place import asked_nodes
from clusterrun.job.program import default_interpreter, find_program
from clusterrun.job.resolve import read_sources
from clusterrun.job.sources import CommandLine, Layer, find, layer_of, read, value_of
from clusterrun.job.this_process import ThisProcess

SECONDS_TO_REPORT = 5.0
"""For the verdict and the report, after all workers have ended."""


class Submission(Struct, frozen=True):
    """A job as it is submitted: what is asked for, and what runs on each node."""

    scheduler: Fact[str]
    """The one that gets it, and where it is set."""
    command: NodeCommand
    request: SchedulerRequest
    origins: Mapping[str, str]
    """Where each field of the request, ``nnodes`` and ``requeue`` are set; not of defaults."""
    job_name: str
    nodes: int
    """All nodes, spares included."""
    fewest_nodes: int
    """The fewest with which the job starts; otherwise as ``nodes``."""
    working_nodes: int
    """All nodes but spares."""
    outlives_nodes: bool
    """The job goes on without a lost node: the scheduler must not end it."""
    workers_per_node: int | None
    """None: one for each GPU."""
    gpus: Gpus | None
    """Of each node; None: all GPUs of whole nodes."""
    requeue: bool
    """The scheduler may start the job again."""
    grace: float
    """Seconds that the job may need to end: to save and to stop its workers."""
    token: str
    """A secret by which the job's agents may know each other."""
    warning: str
    """What may not be meant; "": nothing."""

    @property
    def needs_gpus(self) -> bool:
        return self.gpus is None or self.gpus.number > 0

    @property
    def units(self) -> int | None:
        """How many GPUs, or workers without one, a node has; None: unknown."""
        if self.gpus is None or not self.gpus.number:
            return self.workers_per_node or (1 if self.gpus else None)
        return self.gpus.number

    @property
    def cpus(self) -> int | None:
        """CPUs of each node; None: not set, or unknown. A worker without a GPU needs one at least."""
        per = self.request.cpus_per_gpu
        if per is None and not self.needs_gpus and not self.request.exclusive:
            return self.workers_per_node
        return None if per is None or self.units is None else per * self.units

    @property
    def memory(self) -> int | None:
        """MiB of each node; None: not set, or unknown."""
        per, units = self.request.memory_per_gpu, self.units
        return None if per is None or units is None else per * units


def describe(line: CommandLine, environ: Mapping[str, str], process: ThisProcess) -> Submission:
    """Return what the command line, ``environ`` and the job file describe.

    Raises:
        UsageError: something is impossible; nothing has been submitted.

    """
    given, words = read_sources(line, environ)
    sections = read_sections(value_of("config", given))
    shared = sections.get(ALL_SCHEDULERS, {})
    path = environ.get("PATH", "")
    scheduler = find_scheduler((line.options, shared), path)
    asked = (line.options, sections.get(scheduler.value, {}), shared)
    job = (*given[:-1], shape_of(sections, scheduler.value), given[-1])
    check_options(job)
    request = read(SchedulerRequest, asked)
    # The set-up may activate an environment with another clusterrun.
    is_on_path = bool(request.image or request.setup)
    if not request.image or not words.value:
        program = find_program(words, job, path)
        if program.value.is_standard_input:
            raise UsageError(
                f"a script on standard input ({program.value.name}) can't wait in a queue",
                "save it to a file, and give the file",
            )
        python = default_interpreter(program.value, process, environ)
        if python.origin != "default" and not is_on_path:
            # The environment that is active now may not be active on the nodes.
            job = (*job, layer_of(python=python))
    started_by = ("clusterrun",) if is_on_path else path_of_launcher(process.python)
    command = node_command(job, words.value, started_by)
    gpus = _gpus(request, asked, job)
    nodes = asked_nodes(job)[0] or Fact(1, "default")
    nnodes, requeue = value_of("nnodes", job), value_of("requeue", job)
    is_elastic = nnodes.value.fewest != nnodes.value.most
    set_by = {
        name: fact.origin for name in rows_of(SchedulerRequest) if (fact := find(name, asked, ROWS))
    }
    others = {"nnodes": nodes, "gpus_per_node": gpus, "requeue": requeue}
    origins = {name: fact.origin for name, fact in others.items() if fact.origin != "default"}
    _check(request, set_by, gpus, job)
    # To reach the agreed step and save, then for workers that do not stop.
    grace = value_of("suspend_grace", job).value + value_of("shutdown_timeout", job).value
    return Submission(
        scheduler=scheduler,
        command=command,
        request=request,
        origins={"job_name": words.origin, **set_by, **origins},
        job_name=request.job_name or _stem(command, job),
        nodes=nodes.value,
        fewest_nodes=nnodes.value.fewest if is_elastic else nodes.value,
        working_nodes=nnodes.value.most,
        outlives_nodes=_outlives_nodes(job, nodes.value, is_elastic=is_elastic),
        workers_per_node=_workers(job),
        gpus=gpus.value,
        requeue=requeue.value,
        grace=grace + SECONDS_TO_REPORT,
        token=secrets.token_hex(32),
        warning=_requeue_warning(scheduler.value, request, job),
    )


def _gpus(
    request: SchedulerRequest, asked: Sequence[Layer], job: Sequence[Layer]
) -> Fact[Gpus | None]:
    """Return the GPUs of a node: as set, else one or more for each worker.

    Raises:
        UsageError: neither they nor the workers are set, nor whole nodes.

    """
    if given := find("gpus_per_node", asked, ROWS):
        return given
    if workers := _workers(job):
        each = value_of("gpus_per_worker", job).value
        number = workers * (1 if each is None else each)
        return Fact(Gpus(number), value_of("nproc_per_node", job).origin)
    if request.exclusive:
        return Fact(None, value_of("exclusive", asked, rows=ROWS).origin)
    raise UsageError(
        "the number of GPUs of each node is not set",
        "type --gpus-per-node N, 0 for none, or --exclusive for whole nodes",
    )


def _workers(job: Sequence[Layer]) -> int | None:
    workers = value_of("nproc_per_node", job).value
    return workers if isinstance(workers, int) else None


def _stem(command: NodeCommand, job: Sequence[Layer]) -> str:
    """Return a name for the job: ``train`` for train.py, ``pkg.train`` for a module."""
    script = command.words[0]
    name = script if value_of("module", job).value else PurePath(script).stem
    plain = "".join(each if each.isalnum() or each in "._-" else "-" for each in name)
    return plain.strip("-.") or "clusterrun"


def _outlives_nodes(job: Sequence[Layer], nodes: int, *, is_elastic: bool) -> bool:
    spares, rejoin = value_of("spares", job).value, value_of("rejoin_timeout", job).value
    return nodes > 1 and (is_elastic or spares > 0 or rejoin > 0)


def _check(
    request: SchedulerRequest,
    origins: Mapping[str, str],
    gpus: Fact[Gpus | None],
    job: Sequence[Layer],
) -> None:
    """Check values against each other.

    Raises:
        UsageError: two cannot both hold.

    """
    before = value_of("suspend_before", job)
    if request.time is not None and before.value and before.value >= request.time:
        raise UsageError(
            f"{before.origin}: {before.value:g} s before the end of a job of {request.time} s"
            f" ({origins['time']}) is before its start",
            "give a longer time, or fewer seconds",
        )
    for name in ("cpus_per_gpu", "memory_per_gpu"):
        if name in origins and gpus.value is None:
            raise UsageError(
                f"{origins[name]}: how many GPUs a node has is not known with {gpus.origin} alone",
                f"type --gpus-per-node N, or leave {origins[name]} out: whole nodes have all of"
                " theirs",
            )


def _requeue_warning(scheduler: str, request: SchedulerRequest, job: Sequence[Layer]) -> str:
    """Return a warning if the job is to be put back, and nothing suspends it before its end; or "".

    It may be meant: SIGTERM asks for a suspension too, when another job takes the nodes. Kubernetes,
    which gives a job no end, evicts pods with it.
    """
    requeue = value_of("requeue", job)
    ways = ("suspend_before", "suspend_signal", "suspend_hook")
    is_asked = any(value_of(name, job).value for name in ways)
    is_signalled = any("--signal" in each for each in request.directive)
    if not requeue.value or scheduler == "kubernetes" or is_asked or is_signalled:
        return ""
    return (
        f"{requeue.origin}: nothing suspends the job before its time limit, which ends it for good:"
        " type --suspend-before 300, too"
    )
