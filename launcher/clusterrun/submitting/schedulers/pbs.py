"""PBS Professional and OpenPBS: a batch script (qsub(1B)) that starts the other nodes by pbsdsh."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from clusterrun.domain.submissions.job_state import JobState, Phase
from clusterrun.domain.submissions.submission import ContainerRuntime, Submission
from clusterrun.errors import UsageError, exit_code_of_signal
from clusterrun.job.sources import ENV_VARIABLE
from clusterrun.submitting.node_lines import Places, setup_lines, started_from_here
from clusterrun.submitting.refusals import expect_cpus, refuse
from clusterrun.submitting.scheduler import Ask, NoAnswer, Scheduler
from clusterrun.submitting.shell import clock

HEAD = """\
#!/usr/bin/env bash
# Written by clusterrun submit. Edit it as you like; to submit it: qsub FILE"""

NOTHING_FOR = {
    "qos": "type --directive='-l qos=NAME' if your site has that",
    "signal": "use --suspend-before",
}

# PBS starts a script in the home folder.
FOLDER = ('cd "$PBS_O_WORKDIR" || exit', "")

# PBS starts a task with its own variables only.
OTHERS = """\
for ((node = 1; node < {nodes}; node++)); do
    pbsdsh -n "$node" -- /usr/bin/env --chdir="$PWD" "PATH=$PATH" \\
        "LD_LIBRARY_PATH=${{LD_LIBRARY_PATH-}}" {env}"${{command[@]}}" &
done"""

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

WAITING = {"Q", "H", "W", "T", "B"}
"""B: an array whose jobs begin; its own state is that of the whole."""

FIRST_SIGNAL = 256
"""PBS has 256 + N as Exit_status of a job that signal N has ended (pbs_job_attributes(7B))."""

TIME_LIMIT = "Exit_status = -29"
"""JOB_EXEC_KILL_WALLTIME of OpenPBS's job.h."""


class Pbs(Scheduler):
    """qsub, qstat, qdel."""

    name = "pbs"
    title = "PBS"
    submit = ("qsub",)
    blamed: ClassVar = {
        "queue": ("partition",),
        "account": ("account",),
        "walltime": ("time",),
        "resource": ("gpus_per_node", "cpus_per_gpu", "memory_per_gpu", "constraint"),
        "dependency": ("dependency",),
        "array": ("array",),
    }

    def script(self, job: Submission) -> str:
        refuse(job, self.title, NOTHING_FOR)
        if job.image.value and job.container.value is not ContainerRuntime.APPTAINER:
            raise UsageError(
                f"{job.container.origin}: PBS starts no containers of pyxis",
                "type --container apptainer",
            )
        if job.array.value and len(job.array.value.ranges) > 1:
            raise UsageError(
                f"{job.array.origin}: an array of PBS has one range", "give, for example, 0-15:2"
            )
        expect_cpus(job, self.title)
        directives = [f"#PBS {line}" for line in _directives(job)]
        own = [f"#PBS {line.value}" for line in job.directive]
        passes = bool(job.command.env) and job.nodes.value > 1
        others = OTHERS.format(nodes=job.nodes.value, env=FROM_FILE if passes else "")
        places = Places('uniq "$PBS_NODEFILE"', "${PBS_JOBID%%[!0-9]*}")
        env = [ENV_FILE] if passes else []
        lines = [*FOLDER, *setup_lines(job), *env, *started_from_here(job, others, places)]
        return "\n".join([HEAD, *directives, *own, "", *lines, ""])

    def read_id(self, printed: str, _job: Submission) -> str:
        return printed.strip()

    def states(self, job_id: str, ask: Ask) -> tuple[JobState, ...]:
        # -x: jobs that have ended, too.
        answer = ask(["qstat", "-x", "-f", job_id])
        if "Unknown Job" in answer.trouble:
            return ()
        if answer.code:
            raise NoAnswer(answer.trouble)
        return (read_qstat(job_id, answer.out),)

    def cancel(self, job_id: str) -> tuple[str, ...]:
        return ("qdel", job_id)


def read_qstat(job_id: str, text: str) -> JobState:
    """Read ``qstat -f``: a line for each attribute, which goes on after a tab."""
    found = dict(re.findall(r"(?m)^ {4}([\w.]+) = (.*)$", text.replace("\n\t", "")))
    state = found.get("job_state", "?")
    files = [_path(found.get(name, "")) for name in ("Output_Path", "Error_Path")]
    if found.get("Join_Path") == "oe":
        files[1] = None
    if state in {"F", "X"}:
        code = int(found.get("Exit_status", "1"))
        if code >= FIRST_SIGNAL:
            code = exit_code_of_signal(code - FIRST_SIGNAL)
        code = 124 if TIME_LIMIT in text else code
        return JobState(job_id, Phase.ENDED, state, code if code >= 0 else 1, *files)
    phase = Phase.WAITING if state in WAITING else Phase.RUNNING
    return JobState(job_id, phase, state, 0, *files)


def _path(text: str) -> Path | None:
    # "host:/home/me/train.o1234".
    path = text.partition(":")[2]
    return Path(path) if path else None


def _directives(job: Submission) -> Iterator[str]:
    yield f"-N {job.job_name.value}"
    gpus = job.gpus_per_node.value
    chunk = [
        f"select={job.nodes.value}",
        f"ncpus={job.cpus or 1}",
        *([f"ngpus={gpus.number}"] if gpus and gpus.number else []),
        *([f"gpu_model={gpus.model}"] if gpus and gpus.model else []),
        *([f"mem={job.memory}mb"] if job.memory is not None else []),
        *([job.constraint.value] if job.constraint.value else []),
        # A line of the nodefile for each node.
        "mpiprocs=1",
    ]
    yield f"-l {':'.join(chunk)}"
    yield f"-l place=scatter{':excl' if job.exclusive.value else ''}"
    if job.time.value is not None:
        yield f"-l walltime={clock(job.time.value)}"
    for flag, fact in (("-q", job.partition), ("-A", job.account)):
        if fact.value:
            yield f"{flag} {fact.value}"
    if array := job.array.value:
        (numbers,) = array.ranges
        step = f":{numbers.step}" if numbers.step > 1 else ""
        at_once = f"%{array.at_once}" if array.at_once else ""
        yield f"-J {numbers.first}-{numbers.last}{step}{at_once}"
    if job.dependency.value:
        conditions = (":".join([each.kind.value, *each.ids]) for each in job.dependency.value)
        yield f"-W depend={','.join(conditions)}"
    if job.requeue.value:
        yield "-r y"
    if job.output.value:
        yield f"-o {job.output.value}"
    yield f"-e {job.error.value}" if job.error.value else "-j oe"
