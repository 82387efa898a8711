"""The scheduler's job: its end, its way back into the queue, the number of its starts."""

import time
from collections.abc import Mapping, Sequence

import pytest
from clusterrun.errors import UsageError
from clusterrun.job.clusters.pbs import parse_qstat
from clusterrun.job.clusters.scheduler import parse_time_left
from clusterrun.job.clusters.slurm import parse_end_time
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
    ({"FLUX_JOB_ID": "17"}, "flux job timeleft 17", "sh -c"),
]
NO_LIMIT = {"scontrol": "EndTime=Unknown", "qstat": "", "bjobs": "-", "flux": "4294967295"}
IN_AN_HOUR = {
    "scontrol": "EndTime=4600",
    "qstat": f"  stime = {time.ctime(1000.0)}\n  Resource_List.walltime = 01:00:00\n",
    "bjobs": "1:00 L",
    "flux": "3600",
}


class Asked:
    """A scheduler that answers, and what it was asked."""

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
    variables: Mapping[str, str], asked: Asked, **flags: str | bool
) -> tuple[Job, tuple[str, ...]]:
    process = ThisProcess(
        host="n0", cpus=4, python="/bin/sh", run_id="own", run_command=asked, now=lambda: 1000.0
    )
    line = command_line({**flags, "no_python": True}, "true")
    found = resolve(line, {"PATH": "/usr/bin:/bin", **variables}, process)
    return found.job, found.warnings


@pytest.mark.parametrize(("variables", "question", "_requeue"), SCHEDULED)
def test_the_scheduler_is_asked_once_for_the_end(
    variables: Mapping[str, str], question: str, _requeue: str
) -> None:
    """The origin of the time is what was asked."""
    asked = Asked(IN_AN_HOUR)

    job, warnings = resolved(variables, asked, suspend_before="300")

    assert (job.ends_at, job.origin("ends_at")) == (4600.0, question)
    assert asked.commands == [question]
    assert warnings == ()


def test_the_scheduler_is_not_asked_without_need() -> None:
    """A variable is enough, and without the option no time is needed."""
    asked = Asked({})

    known, _ = resolved({**BATCH, "SLURM_JOB_END_TIME": "9000"}, asked, suspend_before="300")
    resolved(BATCH, asked)

    assert (known.ends_at, known.origin("ends_at")) == (9000.0, "SLURM_JOB_END_TIME")
    assert asked.commands == []


def test_only_node_0_asks() -> None:
    """A thousand nodes would ask a thousand times."""
    asked = Asked(IN_AN_HOUR)
    step = {
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_ID": "0",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "1",
        "SLURM_PROCID": "1",
        "MASTER_ADDR": "n0",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }

    job, warnings = resolved(step, asked, suspend_before="300")

    assert job.ends_at is None
    assert asked.commands == []
    assert warnings == ()


@pytest.mark.parametrize(("variables", "question", "_requeue"), SCHEDULED)
def test_a_job_without_a_limit_runs_with_a_warning(
    variables: Mapping[str, str], question: str, _requeue: str
) -> None:
    """It has no end before which to save."""
    job, warnings = resolved(variables, Asked(NO_LIMIT), suspend_before="300")

    assert job.ends_at is None
    assert [question in warning for warning in warnings] == [True]
    assert "no time limit" in warnings[0]


def test_a_scheduler_that_fails_is_quoted() -> None:
    """The job runs nevertheless."""
    asked = Asked(IN_AN_HOUR, "slurm_load_jobs error: Unable to contact slurm controller")

    _, warnings = resolved(BATCH, asked, suspend_before="300")

    assert "Unable to contact slurm controller" in warnings[0]


def test_without_a_scheduler_no_end_is_known() -> None:
    """The same command line serves a laptop."""
    _, warnings = resolved({}, Asked({}), suspend_before="300")

    assert warnings == ("--suspend-before 300 has no effect: no scheduler says when this job ends",)


@pytest.mark.parametrize(("variables", "_question", "command"), SCHEDULED)
def test_each_scheduler_has_its_way_back(
    variables: Mapping[str, str], _question: str, command: str
) -> None:
    """The run id is the job's, so that it stays."""
    job, _ = resolved(variables, Asked({}), requeue=True)

    assert job.scheduler is not None
    assert " ".join(job.scheduler.requeue).startswith(command)
    assert job.join.run_id == next(iter(variables.values()))


def test_kubernetes_needs_no_command() -> None:
    """The exit code is enough."""
    job, _ = resolved({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, Asked({}), requeue=True)

    assert job.scheduler is not None
    assert job.scheduler.requeue == ()
    assert job.join.run_id == "own"


@pytest.mark.parametrize("variables", [{}, {**BATCH, "CLUSTERRUN_CLUSTER": "none"}])
def test_without_a_scheduler_nothing_can_be_put_back(variables: Mapping[str, str]) -> None:
    """An error before anything starts, even in a job whose scheduler is to be ignored."""
    with pytest.raises(UsageError, match="requeue: this is not a job of"):
        resolved(variables, Asked({}), requeue=True)


def test_restarts_are_counted_by_slurm() -> None:
    """0 at first, and where they are not counted."""
    first, _ = resolved(BATCH, Asked({}))
    third, _ = resolved({**BATCH, "SLURM_RESTART_COUNT": "2"}, Asked({}))

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
def test_a_command_answers_or_says_why_not(command: Sequence[str], out: str, failure: str) -> None:
    """In one line, and never by an exception."""
    answer = run_command(command, {"PATH": "/usr/bin:/bin"}, seconds=0.1 if "9" in command else 9)

    assert (answer.out, answer.failure) == (out, failure)


AT = time.mktime((2026, 11, 23, 1, 0, 0, 0, 0, -1))

QSTAT = """\
Job Id: 17.server
    Job_Name = train
    Resource_List.select = 2:ncpus=8:\n\tngpus=4
    Resource_List.walltime = 01:30:00
    {} = Mon Nov 23 01:00:00 2026
    resources_used.walltime = 00:10:00
"""


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ("JobId=17 StartTime=1 EndTime=1795395600 Deadline=N/A", 1795395600.0),
        ("JobId=17 EndTime=2026-11-23T01:00:00 Deadline=N/A", AT),
        ("JobId=17 EndTime=Unknown Deadline=N/A", None),
        ("", None),
    ],
)
def test_slurm_prints_the_end(answer: str, end: float | None) -> None:
    """In seconds since the epoch as asked for, or in local time; a job without a limit has none."""
    assert parse_end_time(answer, 0.0) == end


@pytest.mark.parametrize("name", ["stime", "start_time"])
def test_pbs_prints_start_and_limit(name: str) -> None:
    """OpenPBS and Torque name the start differently."""
    assert parse_qstat(QSTAT.format(name), 0.0) == AT + 5400


@pytest.mark.parametrize("answer", ["", QSTAT.format("ctime"), QSTAT.replace("01:30:00", "")])
def test_pbs_jobs_without_a_limit_have_no_end(answer: str) -> None:
    """The start alone is not enough."""
    assert parse_qstat(answer, 0.0) is None


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ("3600\n", 3600),
        ("0:50 L\n", 3000),
        ("12:05 E\n", 43500),
        ("00:50:30 L\n", 3030),
        ("4294967295\n", None),
        ("-\n", None),
    ],
)
def test_flux_and_lsf_print_what_is_left(answer: str, left: int | None) -> None:
    """In seconds, or in hours and minutes; UINT_MAX and "-" are no limit."""
    assert parse_time_left(answer, 1000.0) == (None if left is None else 1000.0 + left)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (SchedulerJob("Slurm", "17", (), ()), "Slurm job 17"),
        (SchedulerJob("Kubernetes", "", (), ()), "Kubernetes"),
    ],
)
def test_it_is_named_with_its_id(job: SchedulerJob, words: str) -> None:
    """If it has one."""
    assert str(job) == words
