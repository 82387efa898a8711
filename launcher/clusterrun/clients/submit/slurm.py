"""Slurm: a batch script (sbatch(1)) that starts one agent on each node by srun; states of its jobs."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from clusterrun.clients.submit.scheduler import (
    Ask,
    Batch,
    Directive,
    JobPhase,
    JobState,
    NoSchedulerAnswer,
    Scheduler,
    last_line,
    when,
    with_value,
)
from clusterrun.clients.submit.shell import (
    clock,
    command_lines,
    in_apptainer,
    is_of_apptainer,
    memory_text,
    quoted,
    setup_lines,
    words_of,
)
from clusterrun.clients.submit.submission import Submission
from clusterrun.errors import ExitCode, exit_code_of_signal

LIST_NODES = ("sinfo", "--noheader", "--Node", "--format=%c %G")
"""CPUs and generic resources of each node (sinfo(1))."""


def _nodes(job: Submission) -> str:
    fewest, most = job.fewest_nodes, job.nodes
    return f"--nodes={most if fewest == most else f'{fewest}-{most}'}"


def _memory(job: Submission) -> str | None:
    if job.memory is not None:
        return f"--mem={memory_text(job.memory)}"
    # All memory of the nodes.
    return "--mem=0" if job.request.exclusive else None


def _time(job: Submission) -> str | None:
    if job.request.time is None:
        return None
    days, rest = divmod(job.request.time, 86_400)
    return f"--time={f'{days}-' if days else ''}{clock(rest)}"


DIRECTIVES: Mapping[str, Directive] = {
    "job_name": with_value("--job-name=", lambda job: job.job_name),
    "nnodes": _nodes,
    # One agent on each node starts the workers of all of its GPUs.
    "tasks": lambda _job: "--ntasks-per-node=1",
    "gpus_per_node": with_value("--gpus-per-node=", lambda job: job.needs_gpus and job.gpus),
    "cpus_per_gpu": with_value("--cpus-per-task=", lambda job: job.cpus),
    "memory_per_gpu": _memory,
    "exclusive": when("--exclusive", lambda job: job.request.exclusive),
    "time": _time,
    "partition": with_value("--partition=", lambda job: job.request.partition),
    "account": with_value("--account=", lambda job: job.request.account),
    "qos": with_value("--qos=", lambda job: job.request.qos),
    "constraint": with_value(
        "--constraint=", lambda job: job.request.constraint and f'"{job.request.constraint}"'
    ),
    "lost_nodes": when("--no-kill", lambda job: job.outlives_nodes),
    "requeue": when("--requeue", lambda job: job.requeue),
    # The next turn does not overwrite what the last one has printed.
    "next_turn": when("--open-mode=append", lambda job: job.requeue),
}


def _start(job: Submission) -> list[str]:
    words = [["exec", "srun"], *_step(job), *_container(job), *words_of(job.command)]
    of_node = (
        "# The CPUs that the job has on each node: srun alone gives a task one core.",
        "cpus=${SLURM_JOB_CPUS_PER_NODE%%[(,]*}",
    )
    return [
        *setup_lines(job),
        *(of_node if job.cpus is None else ()),
        "# exec: signals and the exit code are those of srun.",
        *command_lines(words),
    ]


def _step(job: Submission) -> list[Sequence[str]]:
    """Return the options of srun, in groups."""
    # Whatever sbatch --export says.
    env = [["--export=ALL"]] if job.command.env else []
    # Since Slurm 22.05, srun does not take it from sbatch.
    cpus = '"$cpus"' if job.cpus is None else job.cpus
    return [
        *env,
        [f"--cpus-per-task={cpus}"],
        *([["--kill-on-bad-exit=0"]] if job.outlives_nodes else []),
    ]


def _container(job: Submission) -> list[Sequence[str]]:
    image = job.request.image
    if not image or is_of_apptainer(image):
        return in_apptainer(job, SLURM.title)
    mounts = ",".join(['"$PWD:$PWD"', *map(quoted, job.request.mounts)])
    return [
        [f"--container-image={quoted(image)}"],
        [f"--container-mounts={mounts}", '--container-workdir="$PWD"'],
    ]


def complete(job: Submission, ask: Ask) -> Submission:
    """Set the CPUs of a job that shares nodes: each GPU's part of a node of the partition."""
    request = job.request
    is_set = request.cpus_per_gpu is not None or request.exclusive
    if is_set or job.gpus is None or not job.needs_gpus:
        return job
    where = (f"--partition={request.partition}",) if request.partition else ()
    answer = ask([*LIST_NODES, *where])
    found = cpus_of_a_gpu(answer.out) if answer.code == 0 else None
    return replace(job, request=replace(request, cpus_per_gpu=found)) if found else job


def cpus_of_a_gpu(listed: str) -> int | None:
    """Return how many CPUs each GPU has on the node with the fewest; None: there is no such number.

    ``listed`` has lines such as ``64 gpu:h100:8(S:0-1)``.
    """
    found = [re.match(r"(\d+)\+? (.*)", line.strip()) for line in listed.splitlines()]
    parts = [
        int(each[1]) // gpus
        for each in found
        if each and (gpus := sum(map(int, re.findall(r"gpu:(?:[\w.-]+:)?(\d+)", each[2]))))
    ]
    return min(parts, default=0) or None


ACCOUNTING = (
    *("sacct", "--allocations", "--noheader", "--parsable2"),
    "--format=JobID,State,ExitCode",
)

ENDS: Mapping[str, int] = {
    "BOOT_FAIL": ExitCode.NODE_LOST,
    "CANCELLED": exit_code_of_signal(15),
    "COMPLETED": 0,
    "DEADLINE": 124,
    "FAILED": 1,
    "NODE_FAIL": ExitCode.NODE_LOST,
    "OUT_OF_MEMORY": exit_code_of_signal(9),
    "PREEMPTED": exit_code_of_signal(15),
    "REVOKED": 1,
    "TIMEOUT": 124,
}
"""States of a job that has ended ("JOB STATE CODES" of squeue(1)), and the exit code of one that has
no other; 124 as timeout(1) has it."""

RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "SUSPENDED", "RESIZING"}


def states(job_id: str, ask: Ask) -> tuple[JobState, ...]:
    """Return the states of a job; the controller forgets it some minutes after its end.

    (MinJobAge in slurm.conf(5).)
    """
    number, where = _on_cluster(job_id)
    answer = ask(["scontrol", "--oneliner", *where, "show", "job", number])
    if answer.code == 0:
        return read_scontrol(answer.out)
    if "Invalid job id" not in answer.trouble:
        raise NoSchedulerAnswer(answer.trouble)
    return read_sacct(ask([*ACCOUNTING, *where, f"--jobs={number}"]).out)


def _read_id(printed: str) -> str:
    """Return ``17``, or ``17@east`` for "17;east" (sbatch(1), --parsable): a shell would end a line at ;."""
    return last_line(printed).replace(";", "@")


def _on_cluster(job_id: str) -> tuple[str, Sequence[str]]:
    """Return Slurm's own number of a job, and the option with its cluster if it has one."""
    number, _, cluster = job_id.partition("@")
    return number, (f"--clusters={cluster}",) if cluster else ()


def _cancel(job_id: str) -> Sequence[str]:
    number, where = _on_cluster(job_id)
    return ("scancel", *where, number)


def read_scontrol(text: str) -> tuple[JobState, ...]:
    """Read ``scontrol --oneliner show job``: a line for each job of an array, or group of them.

    Of the groups of nodes of a heterogeneous job, the first one's line is that of its script.
    """
    # A path may have blanks: a value ends before the next name.
    pattern = re.compile(r"(\w+)=(.*?)(?= +[\w:/]+=|\s*$)")
    lines = (dict(pattern.findall(line)) for line in text.splitlines() if line.strip())
    return tuple(
        _described(fields)
        for fields in lines
        if "JobState" in fields and fields.get("HetJobOffset", "0") == "0"
    )


def read_sacct(text: str) -> tuple[JobState, ...]:
    """Read ``JobID|State|ExitCode`` lines; a state may be followed by words.

    The first group of nodes of a heterogeneous job has ``ID+0``.
    """
    rows = (line.split("|") for line in text.splitlines())
    return tuple(
        _state(job_id.removesuffix("+0"), state.partition(" ")[0], "", code)
        for job_id, state, code in (row for row in rows if len(row) == 3)
        if job_id.partition("+")[2] in {"", "0"}
    )


def _described(fields: Mapping[str, str]) -> JobState:
    task = fields.get("ArrayTaskId")
    job_id = f"{fields['ArrayJobId']}_{task}" if task else fields["JobId"]
    found = _state(
        job_id, fields["JobState"], fields.get("Reason", ""), fields.get("ExitCode", "0:0")
    )
    if found.phase is JobPhase.WAITING:
        return found
    output, error = (_path(fields.get(name, "")) for name in ("StdOut", "StdErr"))
    return replace(found, output=output, error=None if error == output else error)


def _state(job_id: str, state: str, reason: str, code: str) -> JobState:
    if state not in ENDS:
        phase = JobPhase.RUNNING if state in RUNNING else JobPhase.WAITING
        why = f" ({reason})" if reason not in {"", "None"} and phase is JobPhase.WAITING else ""
        return JobState(job_id, phase, state + why)
    status, _, number = code.partition(":")
    own = int(status) or (exit_code_of_signal(int(number)) if int(number or 0) else 0)
    # Slurm has signal 125 for a job that was killed for its memory.
    is_own = own and state in {"FAILED", "CANCELLED", "PREEMPTED"}
    return JobState(job_id, JobPhase.ENDED, state, own if is_own else ENDS[state])


def _path(text: str) -> Path | None:
    return Path(text) if text not in {"", "/dev/null", "(null)"} else None


SLURM = Scheduler(
    name="slurm",
    title="Slurm",
    body=Batch("#SBATCH", "sbatch FILE", DIRECTIVES, _start),
    submit=("sbatch", "--parsable"),
    cancel=_cancel,
    see="squeue -j",
    blamed={
        "partition": ("partition", "account"),
        "account": ("account",),
        "qos": ("qos",),
        "feature": ("constraint",),
        "constraint": ("constraint",),
        "time limit": ("time", "partition"),
        "memory": ("memory_per_gpu",),
        "processor": ("cpus_per_gpu",),
        "cpu count": ("cpus_per_gpu",),
        "generic resource": ("gpus_per_node",),
        "gres": ("gpus_per_node",),
        "node count": ("nnodes",),
        "node configuration": (
            *("nnodes", "gpus_per_node", "cpus_per_gpu", "memory_per_gpu"),
            *("constraint", "partition"),
        ),
    },
    read_id=lambda printed, _job: _read_id(printed),
    states=states,
    complete=complete,
)
