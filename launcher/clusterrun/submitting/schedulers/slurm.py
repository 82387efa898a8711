"""Slurm: a batch script (sbatch(1)) that starts one clusterrun on each node by srun."""

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from msgspec.structs import replace

from clusterrun.domain.submissions.job_state import JobState
from clusterrun.domain.submissions.submission import ArrayRange, ContainerRuntime, Submission
from clusterrun.job.declaring import Fact
from clusterrun.submitting.node_lines import in_container, setup_lines, words_of
from clusterrun.submitting.scheduler import Ask, NoAnswer, Scheduler
from clusterrun.submitting.schedulers.slurm_states import (
    ACCOUNTING,
    read_sacct,
    read_scontrol,
)
from clusterrun.submitting.shell import clock, command_lines, memory, quoted

HEAD = """\
#!/usr/bin/env bash
# Written by clusterrun submit. Edit it as you like; to submit it: sbatch FILE"""


LIST_NODES = ("sinfo", "--noheader", "--Node", "--format=%c %G")
"""CPUs and generic resources of each node (sinfo(1))."""


class Slurm(Scheduler):
    """sbatch, sinfo."""

    name = "slurm"
    title = "Slurm"
    submit = ("sbatch", "--parsable")
    blamed: ClassVar = {
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
        "node count": ("nodes",),
        "node configuration": (
            *("nodes", "gpus_per_node", "cpus_per_gpu", "memory_per_gpu"),
            *("constraint", "partition"),
        ),
        "dependency": ("dependency",),
        "array": ("array",),
        "signal": ("signal",),
    }

    def complete(self, job: Submission, ask: Ask) -> Submission:
        """Set the CPUs of a job that shares nodes: each GPU's part of a node of the partition."""
        if job.groups:
            return replace(job, groups=tuple(self.complete(group, ask) for group in job.groups))
        if job.cpus_per_gpu.value is not None or job.exclusive.value:
            return job
        where = (f"--partition={job.partition.value}",) if job.partition.value else ()
        answer = ask([*LIST_NODES, *where])
        found = cpus_of_a_gpu(answer.out) if answer.code == 0 else None
        needed = job.gpus_per_node.value
        if not found or needed is None or not needed.number:
            return job
        return replace(job, cpus_per_gpu=Fact(found, "sinfo"))

    def script(self, job: Submission) -> str:
        return script(job)

    def read_id(self, printed: str, _job: Submission) -> str:
        # JOBID, or JOBID;CLUSTER (sbatch(1), --parsable).
        return printed.strip().partition(";")[0]

    def states(self, job_id: str, ask: Ask) -> tuple[JobState, ...]:
        # The controller forgets a job some minutes after its end (MinJobAge in slurm.conf(5)).
        answer = ask(["scontrol", "--oneliner", "show", "job", job_id])
        if answer.code == 0:
            return read_scontrol(answer.out)
        if "Invalid job id" not in answer.trouble:
            raise NoAnswer(answer.trouble)
        return read_sacct(ask([*ACCOUNTING, f"--jobs={job_id}"]).out)

    def cancel(self, job_id: str) -> tuple[str, ...]:
        return ("scancel", job_id)


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


def script(job: Submission) -> str:
    """Return the batch script."""
    directives = [f"#SBATCH {line}" for line in _directives(job)]
    own = [f"#SBATCH {line.value}" for line in job.directive]
    more = [f"#SBATCH {line}" for line in _more_groups(job)]
    body = [*setup_lines(job), *_cpus(job), *_token(job), *_command(job)]
    return "\n".join([HEAD, *directives, *own, *more, "", *body, ""])


def _directives(job: Submission) -> Iterator[str]:
    yield f"--job-name={job.job_name.value}"
    yield from _resources(job.groups[0] if job.groups else job)
    yield from _schedule(job)
    yield from _files(job)


def _more_groups(job: Submission) -> Iterator[str]:
    for group in job.groups[1:]:
        yield "hetjob"
        yield from _resources(group)


def _resources(job: Submission) -> Iterator[str]:
    yield f"--nodes={_nodes(job)}"
    # One agent on each node starts the workers of all of its GPUs.
    yield "--ntasks-per-node=1"
    gpus = job.gpus_per_node.value
    if gpus is not None and gpus.number:
        yield f"--gpus-per-node={gpus}"
    if job.cpus is not None:
        yield f"--cpus-per-task={job.cpus}"
    if job.memory is not None:
        yield f"--mem={memory(job.memory)}"
    elif job.exclusive.value:
        # All memory of the nodes.
        yield "--mem=0"
    if job.exclusive.value:
        yield "--exclusive"
    yield from _placement(job)


def _placement(job: Submission) -> Iterator[str]:
    if job.time.value is not None:
        yield f"--time={_time(job.time.value)}"
    texts = (("partition", job.partition), ("account", job.account), ("qos", job.qos))
    for name, text in texts:
        if text.value:
            yield f"--{name}={text.value}"
    if job.constraint.value:
        yield f'--constraint="{job.constraint.value}"'


def _schedule(job: Submission) -> Iterator[str]:
    if array := job.array.value:
        limit = f"%{array.at_once}" if array.at_once else ""
        yield f"--array={','.join(map(_range, array.ranges))}{limit}"
    if job.dependency.value:
        conditions = (":".join([each.kind.value, *each.ids]) for each in job.dependency.value)
        yield f"--dependency={','.join(conditions)}"
    if signal := job.signal.value:
        yield f"--signal={signal.name}@{signal.seconds}"
    if job.outlives_nodes:
        yield "--no-kill"
    if job.requeue.value:
        yield "--requeue"


def _files(job: Submission) -> Iterator[str]:
    if job.requeue.value:
        # The next turn does not overwrite what the last one has printed.
        yield "--open-mode=append"
    for name, path in (("output", job.output), ("error", job.error)):
        if path.value:
            yield f"--{name}={path.value}"


def _cpus(job: Submission) -> Iterator[str]:
    unknown = [number for number, group in enumerate(job.groups or (job,)) if group.cpus is None]
    if unknown:
        yield "# The CPUs that the job has on each node: srun alone gives a task one core."
    for number in unknown:
        which = f"_HET_GROUP_{number}" if job.groups else ""
        yield f"{_variable(job, number)}=${{SLURM_JOB_CPUS_PER_NODE{which}%%[(,]*}}"


def _variable(job: Submission, number: int) -> str:
    return f"cpus{number}" if job.groups else "cpus"


def _token(job: Submission) -> Iterator[str]:
    if job.groups and not any(option[0] == "--token-file" for option in job.command.options):
        yield "# What the job's agents know each other by; srun has nothing for several groups."
        yield "CLUSTERRUN_TOKEN=${CLUSTERRUN_TOKEN:-$(head -c 24 /dev/urandom | base64)}"
        yield "export CLUSTERRUN_TOKEN"


def _command(job: Submission) -> list[str]:
    return [
        "# exec: signals and the exit code are those of srun.",
        *command_lines(
            [["exec", "srun"], *_steps(job), *in_container(job), *words_of(job.command)]
        ),
    ]


def _steps(job: Submission) -> Iterator[Sequence[str]]:
    if not job.groups:
        yield from _step(job, job.cpus, "cpus")
    for number, group in enumerate(job.groups):
        # A colon separates the options of groups; the command after the last is that of all.
        yield [*([":"] if number else []), f"--het-group={number}"]
        yield from _step(job, group.cpus, _variable(job, number))


def _step(job: Submission, cpus: int | None, variable: str) -> Iterator[Sequence[str]]:
    if job.command.env:
        # Whatever sbatch --export says.
        yield ["--export=ALL"]
    # Since Slurm 22.05, srun does not take it from sbatch.
    yield [f'--cpus-per-task="${variable}"' if cpus is None else f"--cpus-per-task={cpus}"]
    if job.outlives_nodes:
        yield ["--kill-on-bad-exit=0"]
    if job.image.value and job.container.value is ContainerRuntime.PYXIS:
        mounts = ['"$PWD:$PWD"', *map(quoted, job.mounts.value)]
        yield [f"--container-image={quoted(job.image.value)}"]
        yield [f"--container-mounts={','.join(mounts)}", '--container-workdir="$PWD"']


def _nodes(job: Submission) -> str:
    fewest, most = job.fewest_nodes.value, job.nodes.value
    return str(most) if fewest == most else f"{fewest}-{most}"


def _range(numbers: ArrayRange) -> str:
    if numbers.first == numbers.last:
        return str(numbers.first)
    step = f":{numbers.step}" if numbers.step > 1 else ""
    return f"{numbers.first}-{numbers.last}{step}"


def _time(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    return f"{days}-{clock(rest)}" if days else clock(rest)
