"""LSF, PBS and Flux: their batch scripts and ids. What their commands say of jobs is not read.

Sources: IBM's command reference, bsub; PBS Professional's qsub(1B), which OpenPBS has, too;
flux-batch(1).
"""

from collections.abc import Mapping, Sequence

from clusterrun.clients.submit.scheduler import Batch, Directive, Scheduler, when, with_value
from clusterrun.clients.submit.shell import (
    JobInShell,
    clock,
    command_lines,
    in_apptainer,
    memory_text,
    setup_lines,
    started_from_here,
    words_of,
)
from clusterrun.clients.submit.submission import Submission
from clusterrun.errors import UsageError
from clusterrun.job.sources import ENV_VARIABLE


def _cpus(job: Submission, title: str) -> int:
    """Return the CPUs of a node, which the scheduler ``title`` must be told.

    Raises:
        UsageError: they are not known.

    """
    if job.cpus is None:
        raise UsageError(
            f"the number of CPUs of each node is not set, and {title} gives it one unless it is asked for more",
            "type --cpus-per-gpu N, and --gpus-per-node N if that is not set",
        )
    return job.cpus


# LSF


def _slots_of_lsf(job: Submission) -> int:
    """Return the slots of a node; a slot is a core."""
    return 1 if job.request.exclusive and job.cpus is None else _cpus(job, "LSF")


def _nodes_of_lsf(job: Submission) -> str:
    slots = _slots_of_lsf(job)
    fewest, most = job.fewest_nodes * slots, job.nodes * slots
    return f"-n {most}" if fewest == most else f"-n {fewest},{most}"


def _gpus_of_lsf(job: Submission) -> str | None:
    if job.gpus is None or not job.gpus.number:
        return None
    model = f":gmodel={job.gpus.model}" if job.gpus.model else ""
    return f'-gpu "num={job.gpus.number}{model}"'


def _memory_of_lsf(job: Submission) -> str | None:
    return None if job.memory is None else f'-R "rusage[mem={memory_text(job.memory)}/host]"'


def _time_of_lsf(job: Submission) -> str | None:
    if job.request.time is None:
        return None
    minutes = -(-job.request.time // 60)
    return f"-W {minutes // 60}:{minutes % 60:02}"


DIRECTIVES_OF_LSF: Mapping[str, Directive] = {
    "job_name": lambda job: f'-J "{job.job_name}"',
    "nnodes": _nodes_of_lsf,
    "cpus_per_gpu": lambda job: f'-R "span[ptile={_slots_of_lsf(job)}]"',
    "gpus_per_node": _gpus_of_lsf,
    "memory_per_gpu": _memory_of_lsf,
    "exclusive": when("-x", lambda job: job.request.exclusive),
    "time": _time_of_lsf,
    "partition": with_value("-q ", lambda job: job.request.partition),
    "account": with_value("-P ", lambda job: job.request.account),
    "requeue": when("-r", lambda job: job.requeue),
}


def _start_of_lsf(job: Submission) -> list[str]:
    others = 'blaunch -z "$(tr , " " <<<"${hosts#*,}")" "${command[@]}" &'
    named = JobInShell('uniq "$LSB_DJOB_HOSTFILE"', "LSB_JOBID")
    return [*setup_lines(job), *started_from_here(job, "LSF", others, named)]


LSF = Scheduler(
    name="lsf",
    title="LSF",
    body=Batch("#BSUB", "bsub < FILE", DIRECTIVES_OF_LSF, _start_of_lsf),
    submit=("bsub",),
    cancel=lambda job_id: ("bkill", job_id),
    see="bjobs",
    instead={
        "qos": "type --directive='-sla VALUE'",
        "constraint": "type --directive='-R \"select[VALUE]\"'",
    },
    blamed={
        "queue": ("partition",),
        "project": ("account",),
        "resource": ("gpus_per_node", "memory_per_gpu"),
        "runlimit": ("time",),
        "run limit": ("time",),
        "slots": ("nnodes", "cpus_per_gpu"),
    },
    # "Job <1234> is submitted to queue <normal>."
    read_id=lambda printed, _job: printed.partition("Job <")[2].partition(">")[0],
)


# PBS

OTHERS_OF_PBS = """\
for ((node = 1; node < {nodes}; node++)); do
    pbsdsh -n "$node" -- /usr/bin/env --chdir="$PWD" "PATH=$PATH" \\
        "LD_LIBRARY_PATH=${{LD_LIBRARY_PATH-}}" {env}"${{command[@]}}" &
done"""
"""PBS starts a task with its own variables only."""

ENV_FILE = f"""\
# PBS starts a task with its own variables only: this file is for them, and this user alone reads it.
variables=$(mktemp "$PWD/.clusterrun-env.XXXXXX") || exit
trap 'rm -f "$variables"' EXIT
printf %s "${ENV_VARIABLE}" > "$variables"
"""

FROM_FILE = (
    "\\\n"
    rf'        sh -c "{ENV_VARIABLE}=\$(cat \"\$0\"); export {ENV_VARIABLE}; exec \"\$@\""'
    ' "$variables" '
)


def _chunks_of_pbs(job: Submission) -> str:
    gpus = job.gpus
    parts = [
        f"select={job.nodes}",
        f"ncpus={_cpus(job, 'PBS')}",
        *([f"ngpus={gpus.number}"] if gpus and gpus.number else []),
        *([f"gpu_model={gpus.model}"] if gpus and gpus.model else []),
        *([f"mem={job.memory}mb"] if job.memory is not None else []),
        # A line of the nodefile for each node.
        "mpiprocs=1",
    ]
    return f"-l {':'.join(parts)}"


def _in_the_chunks(_job: Submission) -> None:
    """Return no directive: the value is part of another one."""


DIRECTIVES_OF_PBS: Mapping[str, Directive] = {
    "job_name": with_value("-N ", lambda job: job.job_name),
    "nnodes": _chunks_of_pbs,
    **dict.fromkeys(("cpus_per_gpu", "gpus_per_node", "memory_per_gpu"), _in_the_chunks),
    "exclusive": lambda job: f"-l place=scatter{':excl' if job.request.exclusive else ''}",
    "time": with_value("-l walltime=", lambda job: job.request.time and clock(job.request.time)),
    "partition": with_value("-q ", lambda job: job.request.partition),
    "account": with_value("-A ", lambda job: job.request.account),
    "requeue": when("-r y", lambda job: job.requeue),
    "one_file": lambda _job: "-j oe",
}


def _start_of_pbs(job: Submission) -> list[str]:
    passes = bool(job.command.env) and job.nodes > 1
    others = OTHERS_OF_PBS.format(nodes=job.nodes, env=FROM_FILE if passes else "")
    named = JobInShell('uniq "$PBS_NODEFILE"', "${PBS_JOBID%%[!0-9]*}")
    return [
        # PBS starts a script in the home folder.
        *('cd "$PBS_O_WORKDIR" || exit', ""),
        *setup_lines(job),
        *([ENV_FILE] if passes else []),
        *started_from_here(job, "PBS", others, named),
    ]


PBS = Scheduler(
    name="pbs",
    title="PBS",
    body=Batch("#PBS", "qsub FILE", DIRECTIVES_OF_PBS, _start_of_pbs),
    submit=("qsub",),
    cancel=lambda job_id: ("qdel", job_id),
    see="qstat -x",
    instead={
        "qos": "type --directive='-l qos=VALUE' if your site has that",
        "constraint": "type --print > FILE, and add :VALUE to the line with select=",
    },
    blamed={
        "queue": ("partition",),
        "account": ("account",),
        "walltime": ("time",),
        "resource": ("gpus_per_node", "cpus_per_gpu", "memory_per_gpu"),
    },
)


# Flux


def _shares_of_flux(job: Submission) -> tuple[int, int]:
    """Return the CPUs and GPUs of a node; 0 and 0 of whole nodes."""
    if job.request.exclusive:
        return 0, 0
    return _cpus(job, "Flux"), job.gpus.number if job.gpus else 0


def _gpus_of_flux(job: Submission) -> str | None:
    if job.gpus and job.gpus.model:
        raise UsageError(
            f"{job.origins['gpus_per_node']}: Flux has no models of GPUs",
            f"type --gpus-per-node {job.gpus.number} --directive=--requires={job.gpus.model}",
        )
    _, gpus = _shares_of_flux(job)
    return f"--gpus-per-slot={gpus}" if gpus else None


DIRECTIVES_OF_FLUX: Mapping[str, Directive] = {
    "job_name": with_value("--job-name=", lambda job: job.job_name),
    "nnodes": lambda job: f"--nodes={job.nodes}",
    "slots": lambda job: None if job.request.exclusive else f"--nslots={job.nodes}",
    "cpus_per_gpu": with_value("--cores-per-slot=", lambda job: _shares_of_flux(job)[0]),
    "gpus_per_node": _gpus_of_flux,
    "exclusive": when("--exclusive", lambda job: job.request.exclusive),
    "time": with_value("--time-limit=", lambda job: job.request.time and f"{job.request.time}s"),
    "partition": with_value("--queue=", lambda job: job.request.partition),
    "account": with_value("--bank=", lambda job: job.request.account),
    # Any job of Flux may be submitted again.
    "requeue": lambda _job: None,
}


def _start_of_flux(job: Submission) -> list[str]:
    cpus, gpus = _shares_of_flux(job)
    each = [
        *(f"--nodes={job.nodes}", f"--ntasks={job.nodes}"),
        *(["--exclusive"] if job.request.exclusive else []),
        *([f"--cores-per-task={cpus}"] if cpus else []),
        *([f"--gpus-per-task={gpus}"] if gpus else []),
    ]
    launcher, *words = words_of(job.command)
    meeting: list[Sequence[str]] = [['--master-addr "$(hostname)"']] if job.nodes > 1 else []
    run = [["exec flux run"], each, *in_apptainer(job, "Flux"), launcher, *meeting, *words]
    return [
        *setup_lines(job),
        "# This script runs on the first node. exec: signals and the exit code are those of flux run.",
        *command_lines(run),
    ]


FLUX = Scheduler(
    name="flux",
    title="Flux",
    body=Batch("# flux:", "flux batch FILE", DIRECTIVES_OF_FLUX, _start_of_flux),
    submit=("flux", "batch"),
    cancel=lambda job_id: ("flux", "cancel", job_id),
    see="flux jobs -a",
    instead={
        "constraint": "type --directive='--requires=VALUE'",
        "memory_per_gpu": "Flux schedules no memory: leave it out",
    },
    blamed={
        "queue": ("partition",),
        "bank": ("account",),
        "duration": ("time",),
        "unsatisfiable": ("nnodes", "gpus_per_node", "cpus_per_gpu"),
    },
)
