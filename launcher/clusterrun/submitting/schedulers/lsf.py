"""LSF: a batch script (IBM's command reference, bsub) that starts the other nodes by blaunch."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from clusterrun.domain.submissions.job_state import JobState, Phase
from clusterrun.domain.submissions.submission import (
    ArrayRange,
    ContainerRuntime,
    DependencyKind,
    Submission,
)
from clusterrun.errors import UsageError
from clusterrun.submitting.node_lines import Places, setup_lines, started_from_here
from clusterrun.submitting.refusals import expect_cpus, refuse
from clusterrun.submitting.scheduler import Ask, NoAnswer, Scheduler
from clusterrun.submitting.shell import memory

HEAD = """\
#!/usr/bin/env bash
# Written by clusterrun submit. Edit it as you like; to submit it: bsub < FILE"""

OTHERS = 'blaunch -z "$(tr , " " <<<"${hosts#*,}")" "${command[@]}" &'

CONDITIONS = {
    DependencyKind.AFTER: "started",
    DependencyKind.AFTER_OK: "done",
    DependencyKind.AFTER_NOT_OK: "exit",
    DependencyKind.AFTER_ANY: "ended",
}

STATES = ("bjobs", "-a", "-noheader", "-o")
FIELDS = "jobid jobindex stat exit_code output_file error_file delimiter='|'"
RUNNING = {"RUN", "USUSP", "SSUSP"}

RUN_LIMIT = 140
"""The exit code of a job that LSF has ended at its run limit: 128 + SIGUSR2."""


class Lsf(Scheduler):
    """bsub, bjobs, bkill."""

    name = "lsf"
    title = "LSF"
    submit = ("bsub",)
    blamed: ClassVar = {
        "queue": ("partition",),
        "project": ("account",),
        "dependency": ("dependency",),
        "resource": ("gpus_per_node", "memory_per_gpu", "constraint"),
        "runlimit": ("time",),
        "run limit": ("time",),
        "slots": ("nodes", "cpus_per_gpu"),
    }

    def script(self, job: Submission) -> str:
        refuse(job, self.title, {"qos": "type --directive='-sla NAME'"})
        if job.image.value and job.container.value is not ContainerRuntime.APPTAINER:
            raise UsageError(
                f"{job.container.origin}: LSF starts no containers of pyxis",
                "type --container apptainer",
            )
        if job.array.value and any(each.first == 0 for each in job.array.value.ranges):
            raise UsageError(
                f"{job.array.origin}: numbers of LSF's arrays begin with 1",
                "give, for example, 1-16",
            )
        if not job.exclusive.value:
            expect_cpus(job, self.title)
        directives = [f"#BSUB {line}" for line in _directives(job)]
        own = [f"#BSUB {line.value}" for line in job.directive]
        lines = started_from_here(job, OTHERS, Places('uniq "$LSB_DJOB_HOSTFILE"', "LSB_JOBID"))
        return "\n".join([HEAD, *directives, *own, "", *setup_lines(job), *lines, ""])

    def read_id(self, printed: str, _job: Submission) -> str:
        # "Job <1234> is submitted to queue <normal>."
        return printed.partition("<")[2].partition(">")[0]

    def states(self, job_id: str, ask: Ask) -> tuple[JobState, ...]:
        answer = ask([*STATES, FIELDS, job_id])
        if "is not found" in answer.trouble:
            return ()
        if answer.code:
            raise NoAnswer(answer.trouble)
        return read_bjobs(answer.out)

    def cancel(self, job_id: str) -> tuple[str, ...]:
        return ("bkill", job_id)


def read_bjobs(text: str) -> tuple[JobState, ...]:
    """Read ``JOBID|INDEX|STAT|EXIT_CODE|OUTPUT|ERROR`` lines; - is no value."""
    rows = (line.strip().split("|") for line in text.splitlines() if line.strip())
    return tuple(_state(*row) for row in rows if len(row) == 6)


def _state(job: str, index: str, state: str, code: str, output: str, error: str) -> JobState:  # noqa: PLR0913, PLR0917 - the columns
    job_id = job if index in {"-", "0"} else f"{job}[{index}]"
    files = (None if path == "-" else Path(path) for path in (output, error))
    if state == "DONE":
        return JobState(job_id, Phase.ENDED, state, 0, *files)
    if state in {"EXIT", "ZOMBI"}:
        number = int(code) if code.isdigit() else 1
        return JobState(job_id, Phase.ENDED, state, 124 if number == RUN_LIMIT else number, *files)
    phase = Phase.RUNNING if state in RUNNING else Phase.WAITING
    return JobState(job_id, phase, state, 0, *files)


def _directives(job: Submission) -> Iterator[str]:
    array = job.array.value
    numbers = f"[{','.join(map(_range, array.ranges))}]" if array else ""
    at_once = f"%{array.at_once}" if array and array.at_once else ""
    yield f'-J "{job.job_name.value}{numbers}{at_once}"'
    # A slot is a core; the other tasks of a node are its agent's threads and workers.
    slots = job.cpus or 1
    fewest, most = job.fewest_nodes.value * slots, job.nodes.value * slots
    yield f"-n {most}" if fewest == most else f"-n {fewest},{most}"
    yield f'-R "span[ptile={slots}]"'
    if gpus := job.gpus_per_node.value:
        model = f":gmodel={gpus.model}" if gpus.model else ""
        if gpus.number:
            yield f'-gpu "num={gpus.number}{model}"'
    if job.memory is not None:
        yield f'-R "rusage[mem={memory(job.memory)}/host]"'
    if job.constraint.value:
        yield f'-R "select[{job.constraint.value}]"'
    if job.exclusive.value:
        yield "-x"
    yield from _schedule(job)


def _schedule(job: Submission) -> Iterator[str]:
    if job.time.value is not None:
        minutes = -(-job.time.value // 60)
        yield f"-W {minutes // 60}:{minutes % 60:02}"
    for flag, fact in (("-q", job.partition), ("-P", job.account)):
        if fact.value:
            yield f"{flag} {fact.value}"
    if job.dependency.value:
        conditions = (
            f"{CONDITIONS[each.kind]}({job_id})"
            for each in job.dependency.value
            for job_id in each.ids
        )
        yield f'-w "{" && ".join(conditions)}"'
    if signal := job.signal.value:
        yield f"-wa {signal.name} -wt {-(-signal.seconds // 60)}"
    if job.requeue.value:
        yield "-r"
    # -o appends, as the next turn of a job that is started again needs it.
    if job.output.value:
        yield f"-o {job.output.value}"
    if job.error.value:
        yield f"-e {job.error.value}"


def _range(numbers: ArrayRange) -> str:
    if numbers.first == numbers.last:
        return str(numbers.first)
    step = f":{numbers.step}" if numbers.step > 1 else ""
    return f"{numbers.first}-{numbers.last}{step}"
