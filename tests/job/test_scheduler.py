"""The scheduler's job: its end, its requeue command, the number of its restarts."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from clusterrun.errors import UsageError
from clusterrun.job.clusters.pbs import parse_qstat
from clusterrun.job.clusters.scheduler import parse_time_left
from clusterrun.job.clusters.slurm import parse_end_time
from clusterrun.job.declarations import Setting
from clusterrun.job.job import Job, SchedulerJob
from clusterrun.job.resolve import resolve
from clusterrun.job.this_process import CommandResult, ThisProcess, run_command

from tests.command_lines import command_line

BATCH = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_NODELIST": "n0",
    "ENVIRONMENT": "BATCH",
}
SCHEDULED: Sequence[tuple[Mapping[str, str], str, str]] = [
    (BATCH, "scontrol show job -o 17", "scontrol requeue 17"),
    ({"PBS_JOBID": "17.server"}, "qstat -f 17.server", "qrerun 17.server"),
    ({"LSB_JOBID": "17"}, "bjobs -noheader -o time_left 17", "brequeue 17"),
    ({**BATCH, "PET_STANDALONE": "1"}, "scontrol show job -o 17", "scontrol requeue 17"),
    ({"FLUX_JOB_ID": "17"}, "flux job timeleft 17", "sh -c"),
]
NO_LIMIT = {"scontrol": "EndTime=Unknown", "qstat": "", "bjobs": "-", "flux": "4294967295"}
IN_AN_HOUR = {
    "scontrol": "EndTime=4600",
    "qstat": f"  stime = {time.ctime(1000.0)}\n  Resource_List.walltime = 01:00:00\n",
    "bjobs": "1:00 L",
    "flux": "3600",
}


class FakeScheduler:
    """Prints prepared output for each command, and records the commands."""

    def __init__(self, answers: Mapping[str, str], error: str = "") -> None:
        self.answers = answers
        self.error = error
        self.commands: list[str] = []

    def __call__(self, command: Sequence[str], environ: Mapping[str, str]) -> CommandResult:
        assert "LD_PRELOAD" not in environ
        # Times in seconds since the epoch.
        assert environ["SLURM_TIME_FORMAT"] == "%s"
        self.commands.append(" ".join(command))
        return CommandResult(self.answers[command[0]], self.error, 1 if self.error else 0)


def resolved(
    variables: Mapping[str, str], scheduler: FakeScheduler, **flags: str | bool
) -> tuple[Job, tuple[str, ...]]:
    process = ThisProcess(
        host="n0", cpus=4, python="/bin/sh", run_id="own", run_command=scheduler, now=lambda: 1000.0
    )
    line = command_line({**flags, "no_python": True}, "true")
    found = resolve(line, {"PATH": "/usr/bin:/bin", **variables}, process)
    return found.job, found.warnings


@pytest.mark.parametrize(("variables", "question", "requeue"), SCHEDULED)
def test_commands_of_each_scheduler(
    variables: Mapping[str, str], question: str, requeue: str
) -> None:
    """The end is asked once. The run id is the id of the job, which stays the same after a requeue."""
    limited, unlimited = FakeScheduler(IN_AN_HOUR), FakeScheduler(NO_LIMIT)

    job, warnings = resolved(variables, limited, suspend_before="300", requeue=True)
    endless, [warning] = resolved(variables, unlimited, suspend_before="300")

    assert limited.commands == unlimited.commands == [question]
    assert (job.ends_at, job.origin("ends_at"), warnings) == (4600.0, question, ())
    assert endless.ends_at is None
    assert question in warning
    assert "no time limit" in warning
    assert job.scheduler is not None
    assert " ".join(job.scheduler.requeue).startswith(requeue)
    assert job.join.run_id == next(iter(variables.values()))


def test_end_is_not_asked_if_known_or_not_needed() -> None:
    """A variable may have the end, and only --suspend-before needs it."""
    scheduler = FakeScheduler({})

    known, _ = resolved({**BATCH, "SLURM_JOB_END_TIME": "9000"}, scheduler, suspend_before="300")
    resolved(BATCH, scheduler)

    assert (known.ends_at, known.origin("ends_at")) == (9000.0, "SLURM_JOB_END_TIME")
    assert scheduler.commands == []


def test_only_node_0_asks_for_the_end() -> None:
    """Other nodes leave the time unknown, without a warning."""
    scheduler = FakeScheduler(IN_AN_HOUR)
    step = {
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_ID": "0",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "1",
        "SLURM_PROCID": "1",
        "MASTER_ADDR": "n0",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }

    job, warnings = resolved(step, scheduler, suspend_before="300")

    assert job.ends_at is None
    assert scheduler.commands == []
    assert warnings == ()


def test_failed_command_is_quoted_in_the_warning() -> None:
    scheduler = FakeScheduler(
        IN_AN_HOUR, "slurm_load_jobs error: Unable to contact slurm controller"
    )

    _, warnings = resolved(BATCH, scheduler, suspend_before="300")

    assert "Unable to contact slurm controller" in warnings[0]


def test_suspend_before_without_a_scheduler_has_a_warning() -> None:
    _, warnings = resolved({}, FakeScheduler({}), suspend_before="300")

    assert warnings == ("--suspend-before 300 has no effect: no scheduler says when this job ends",)


def test_requeue_in_kubernetes_needs_no_command() -> None:
    """The exit code is enough, and no variable has an id for the run."""
    job, _ = resolved({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, FakeScheduler({}), requeue=True)

    assert job.scheduler is not None
    assert job.scheduler.requeue == ()
    assert job.join.run_id == "own"


NESTED = {"LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "17.0"}


OUTSIDE = r"requeue works only in a job of .* or Kubernetes,"
IGNORED = "requeue needs the scheduler, but cluster is none "


@pytest.mark.parametrize("standalone", [False, True])
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, OUTSIDE),
        ({**BATCH, "CLUSTERRUN_CLUSTER": "none"}, rf"{IGNORED}\(CLUSTERRUN_CLUSTER\)"),
        ({**BATCH, **NESTED}, rf"{IGNORED}\(inside a worker\)"),
    ],
)
def test_requeue_without_a_scheduler_is_an_error(
    variables: Mapping[str, str], message: str, *, standalone: bool
) -> None:
    with pytest.raises(UsageError, match=message):
        resolved(variables, FakeScheduler({}), requeue=True, standalone=standalone)


def test_slurm_counts_restarts() -> None:
    first, _ = resolved(BATCH, FakeScheduler({}))
    third, _ = resolved({**BATCH, "SLURM_RESTART_COUNT": "2"}, FakeScheduler({}))

    assert (first.resumed, third.resumed) == (0, 2)


@pytest.mark.parametrize(
    ("command", "out", "failure"),
    [
        (("echo", "1"), "1\n", ""),
        (("sh", "-c", "echo one; echo two >&2; exit 3"), "one\n", "two (exit code 3)"),
        (("sh", "-c", "kill -9 $$"), "", "signal 9"),
        (("no-such-command",), "", "no-such-command: No such file or directory"),
        (("sleep", "9"), "", "sleep: no answer in 0.1 s"),
    ],
)
def test_run_command_returns_output_or_failure(
    command: Sequence[str], out: str, failure: str
) -> None:
    """No failure raises an exception."""
    answer = run_command(command, {"PATH": "/usr/bin:/bin"}, seconds=0.1 if "9" in command else 9)

    assert (answer.out, answer.failure) == (out, failure)


AT = time.mktime((2026, 11, 23, 1, 0, 0, 0, 0, -1))
QSTAT = """\
Job Id: 17.server
    Job_Name = train
    Resource_List.select = 2:ncpus=8:\n\tngpus=4
    Resource_List.walltime = 01:30:00
    stime = Mon Nov 23 01:00:00 2026
    resources_used.walltime = 00:10:00
"""


@pytest.mark.parametrize(
    ("parse", "answer", "end"),
    [
        # In seconds since the epoch or in local time.
        (parse_end_time, "JobId=17 StartTime=1 EndTime=1795395600 Deadline=N/A", 1795395600.0),
        (parse_end_time, "JobId=17 EndTime=2026-11-23T01:00:00 Deadline=N/A", AT),
        (parse_end_time, "JobId=17 EndTime=Unknown Deadline=N/A", None),
        (parse_end_time, "", None),
        # The start, whose name in Torque is another than in OpenPBS, and the limit.
        (parse_qstat, QSTAT, AT + 5400),
        (parse_qstat, QSTAT.replace("stime", "start_time"), AT + 5400),
        (parse_qstat, QSTAT.replace("stime", "ctime"), None),
        (parse_qstat, QSTAT.replace("01:30:00", ""), None),
        (parse_qstat, "", None),
        # Flux prints seconds, LSF hours and minutes; UINT_MAX and "-" mean no limit.
        (parse_time_left, "3600\n", 1000.0 + 3600),
        (parse_time_left, "0:50 L\n", 1000.0 + 3000),
        (parse_time_left, "12:05 E\n", 1000.0 + 43500),
        (parse_time_left, "00:50:30 L\n", 1000.0 + 3030),
        (parse_time_left, "4294967295\n", None),
        (parse_time_left, "-\n", None),
    ],
)
def test_end_of_an_answer(
    parse: Callable[[str, float], float | None], answer: str, end: float | None
) -> None:
    """By the answer of scontrol, qstat, flux or bjobs at 1000 s since the epoch."""
    assert parse(answer, 1000.0) == end


def test_scheduler_job_as_text() -> None:
    assert str(SchedulerJob("Slurm", "17", (), ())) == "Slurm job 17"
    assert str(SchedulerJob("Kubernetes", "", (), ())) == "Kubernetes"


def test_requeue_in_an_array_of_lsf_names_the_element() -> None:
    """All elements have the same id, which brequeue takes for all of them."""
    scheduler = FakeScheduler(IN_AN_HOUR)
    job, _ = resolved(
        {"LSB_JOBID": "17", "LSB_JOBINDEX": "3"}, scheduler, suspend_before="300", requeue=True
    )

    assert scheduler.commands == ["bjobs -noheader -o time_left 17[3]"]
    assert job.scheduler is not None
    assert job.scheduler.requeue == ("brequeue", "17[3]")
    assert job.setting("run_id") == Setting("17[3]", "LSB_JOBID, LSB_JOBINDEX")


# The instance of flux batch or flux alloc has a parent; only the parent knows the enclosing job.
FLUX = """#!/bin/sh
case "$*" in
"getattr parent-uri") [ "$ENCLOSING" ] && echo local:///run/flux ;;
"getattr jobid") echo fBatch ;;
"--parent job info fBatch jobspec") printf %s "$ENCLOSING" ;;
"job info 17 jobspec") echo inner ;;
"--parent job submit" | "job submit") echo "$*: $(cat)" ;;
*) exit 64 ;;
esac
"""


@pytest.mark.parametrize(
    ("enclosing", "submitted"),
    [
        ("", "job submit: inner"),
        ('{"script": "%s"}', '--parent job submit: {"script": "%s"}'),
        ('{"pty": {"interactive": 1}}', "job submit: inner"),
    ],
)
def test_requeue_in_flux_submits_the_batch_job(
    enclosing: str, submitted: str, tmp_path: Path
) -> None:
    """Jobs in its own instance would end with it; an interactive instance lives on."""
    (tmp_path / "flux").write_text(FLUX)
    (tmp_path / "flux").chmod(0o755)
    job, _ = resolved({"FLUX_JOB_ID": "17"}, FakeScheduler({}), requeue=True)
    assert job.scheduler is not None
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ENCLOSING": enclosing}

    done = subprocess.run(
        job.scheduler.requeue, env=environ, capture_output=True, text=True, timeout=10, check=True
    )

    assert done.stdout == f"{submitted}\n"
