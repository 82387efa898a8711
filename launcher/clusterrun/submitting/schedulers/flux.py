"""Flux: a batch script (flux-batch(1)) that starts one clusterrun on each node by flux run."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from clusterrun.domain.submissions.job_state import JobState, Phase
from clusterrun.domain.submissions.submission import ContainerRuntime, Submission
from clusterrun.errors import UsageError, exit_code_of_signal
from clusterrun.submitting.node_lines import in_container, setup_lines, words_of
from clusterrun.submitting.refusals import expect_cpus, refuse
from clusterrun.submitting.scheduler import Ask, NoAnswer, Scheduler
from clusterrun.submitting.shell import command_lines

HEAD = """\
#!/usr/bin/env bash
# Written by clusterrun submit. Edit it as you like; to submit it: flux batch FILE"""

NOTHING_FOR = {
    "array": "submit once for each number",
    "qos": "",
    "memory_per_gpu": "Flux schedules no memory",
}

LIST = ("flux", "jobs", "--no-header", "--format={status}|{returncode}")
ENDED = {"COMPLETED": 0, "FAILED": 1, "CANCELED": exit_code_of_signal(15), "TIMEOUT": 124}


class Flux(Scheduler):
    """flux batch, flux jobs, flux cancel."""

    name = "flux"
    title = "Flux"
    submit = ("flux", "batch")
    blamed: ClassVar = {
        "queue": ("partition",),
        "bank": ("account",),
        "constraint": ("constraint",),
        "duration": ("time",),
        "unsatisfiable": ("nodes", "gpus_per_node", "cpus_per_gpu", "constraint"),
        "dependency": ("dependency",),
    }

    def script(self, job: Submission) -> str:
        refuse(job, self.title, NOTHING_FOR)
        if job.image.value and job.container.value is not ContainerRuntime.APPTAINER:
            raise UsageError(
                f"{job.container.origin}: Flux starts no containers of pyxis",
                "type --container apptainer",
            )
        gpus = job.gpus_per_node
        if gpus.value and gpus.value.model:
            raise UsageError(
                f"{gpus.origin}: Flux has no models of GPUs",
                f"type --gpus-per-node {gpus.value.number} --constraint {gpus.value.model}",
            )
        if not job.exclusive.value:
            expect_cpus(job, self.title)
        directives = [f"# flux: {line}" for line in _directives(job)]
        own = [f"# flux: {line.value}" for line in job.directive]
        body = [*setup_lines(job), *_command(job)]
        return "\n".join([HEAD, *directives, *own, "", *body, ""])

    def read_id(self, printed: str, _job: Submission) -> str:
        return printed.strip()

    def states(self, job_id: str, ask: Ask) -> tuple[JobState, ...]:
        answer = ask([*LIST, job_id])
        if answer.code and ("unknown" in answer.trouble or "not found" in answer.trouble):
            return ()
        if answer.code:
            raise NoAnswer(answer.trouble)
        states = [_state(job_id, line) for line in answer.out.splitlines() if "|" in line]
        if all(state.phase is Phase.WAITING for state in states):
            return tuple(states)
        output, error = _files(job_id, ask)
        return tuple(replace(state, output=output, error=error) for state in states)

    def cancel(self, job_id: str) -> tuple[str, ...]:
        return ("flux", "cancel", job_id)


def _state(job_id: str, line: str) -> JobState:
    state, _, code = line.strip().partition("|")
    if state in ENDED:
        own = int(code) if code.lstrip("-").isdigit() else 0
        # A negative code is that of a signal.
        own = exit_code_of_signal(-own) if own < 0 else own
        known = state in {"CANCELED", "TIMEOUT"}
        return JobState(job_id, Phase.ENDED, state, ENDED[state] if known or not own else own)
    return JobState(job_id, Phase.RUNNING if state in {"RUN", "CLEANUP"} else Phase.WAITING, state)


def _files(job_id: str, ask: Ask) -> tuple[Path | None, Path | None]:
    """Return where a job prints; None for what goes to Flux's own store, or with the other."""
    answer = ask(["flux", "job", "info", job_id, "jobspec"])
    if answer.code:
        return (None, None)
    if job_id.isdigit():
        # Names of files have the id in another form.
        job_id = ask(["flux", "job", "id", "--to=f58", job_id]).out.strip()
    return read_files(answer.out, job_id)


def read_files(jobspec: str, job_id: str) -> tuple[Path | None, Path | None]:
    """Read a job's files from its jobspec (RFC 25), where ``flux batch`` has written ``--output``.

    Their names are templates (flux-batch(1), "STANDARD I/O"): {{id}} and {{jobid}} are the id.
    """
    system = json.loads(jobspec)["attributes"]["system"]
    streams = system.get("shell", {}).get("options", {}).get("output", {})
    return (
        _path(streams.get("stdout", {}), system["cwd"], job_id),
        _path(streams.get("stderr", {}), system["cwd"], job_id),
    )


def _path(stream: Mapping[str, str], folder: str, job_id: str) -> Path | None:
    if stream.get("type") != "file":
        return None
    name = re.sub(r"\{\{(job)?id(\.f58)?\}\}", job_id, stream["path"])
    return None if "{{" in name else Path(folder, name)


def _resources(job: Submission) -> list[str]:
    """Return the options of a slot on each node, the same for the batch job and its step."""
    gpus = job.gpus_per_node.value
    return [
        f"--nodes={job.nodes.value}",
        *([] if job.exclusive.value else [f"--nslots={job.nodes.value}"]),
        *([f"--cores-per-slot={job.cpus}"] if job.cpus and not job.exclusive.value else []),
        *(
            [f"--gpus-per-slot={gpus.number}"]
            if gpus and gpus.number and not job.exclusive.value
            else []
        ),
    ]


def _directives(job: Submission) -> Iterator[str]:
    yield f"--job-name={job.job_name.value}"
    yield from _resources(job)
    if job.exclusive.value:
        yield "--exclusive"
    if job.time.value is not None:
        yield f"--time-limit={job.time.value}s"
    for flag, fact in (("--queue", job.partition), ("--bank", job.account)):
        if fact.value:
            yield f"{flag}={fact.value}"
    if job.constraint.value:
        yield f'--requires="{job.constraint.value}"'
    for each in job.dependency.value:
        for job_id in each.ids:
            yield f"--dependency={each.kind.value}:{job_id}"
    if signal := job.signal.value:
        yield f"--signal=SIG{signal.name}@{signal.seconds}s"
    if job.output.value:
        yield f"--output={job.output.value}"
    if job.error.value:
        yield f"--error={job.error.value}"


def _command(job: Submission) -> list[str]:
    nodes = job.nodes.value
    gpus = job.gpus_per_node.value
    each = [f"--nodes={nodes}", f"--ntasks={nodes}"]
    if job.exclusive.value:
        each.append("--exclusive")
    else:
        each += [f"--cores-per-task={job.cpus}"] if job.cpus else []
        each += [f"--gpus-per-task={gpus.number}"] if gpus and gpus.number else []
    words = [*in_container(job), *words_of(job.command)]
    place = len(list(in_container(job))) + 1
    meeting = [['--master-addr "$(hostname)"']] if nodes > 1 else []
    return [
        "# This script runs on the first node. exec: signals and the exit code are those of flux run.",
        *command_lines([["exec flux run"], each, *words[:place], *meeting, *words[place:]]),
    ]
