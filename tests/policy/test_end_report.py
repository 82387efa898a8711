"""The end of a job as a line of JSON."""

import signal

import pytest
from clusterrun.errors import UsageError
from clusterrun.policy import end_report, outcome

from tests.network.nodes import result

MARK = "0f3c"
EndReport = end_report.EndReport


def ended(reason: outcome.Reason, *results: outcome.WorkerResult) -> outcome.Outcome:
    return outcome.Outcome(reason, attempt=0, results=results, survivors=())


FAILED, KILLED = result(3, 7), result(2, exit_status=outcome.Killed(signal.SIGSEGV))
NOT_STARTED = result(1, exit_status=outcome.NotStarted("fork", "no"))

REPORTS = [
    (EndReport.of_job(0, ended(outcome.Succeeded()), ""), EndReport(0, "Succeeded")),
    (
        EndReport.of_job(7, ended(outcome.WorkerFailed(FAILED)), "rank 3 \x1b[2J\nfailed"),
        EndReport(
            7,
            "WorkerFailed",
            "rank 3 ?[2J\nfailed",
            rank=3,
            host="somewhere",
            pid=1003,
            exit_code=7,
        ),
    ),
    (
        EndReport.of_job(139, ended(outcome.WorkerFailed(KILLED)), "t"),
        EndReport(139, "WorkerFailed", "t", rank=2, host="somewhere", pid=1002, signal=11),
    ),
    (
        EndReport.of_job(126, ended(outcome.WorkerFailed(NOT_STARTED)), "t"),
        EndReport(126, "WorkerFailed", "t", rank=1, host="somewhere", pid=1001),
    ),
    (
        EndReport.of_job(130, ended(outcome.Interrupted(2)), "t"),
        EndReport(130, "Interrupted", "t", signal=2),
    ),
    (
        EndReport.of_error(UsageError("no \x07", "type\nthis")),
        EndReport(
            2,
            "UsageError",
            "clusterrun: error: no \\x07\n  type\n  this",
            message="no \\x07",
            hint="type\nthis",
        ),
    ),
]


@pytest.mark.parametrize(("made", "expected"), REPORTS)
def test_report_survives_transfer(made: EndReport, expected: EndReport) -> None:
    """Among worker output and after other answers; texts cannot control a terminal."""
    assert made == expected
    line = made.line(MARK)
    received = b"output\n" + end_report.output_shown_line(MARK) + line

    assert line.count(b"\n") == 1
    assert end_report.parse_report(received, MARK) == made


@pytest.mark.parametrize(
    "received",
    [
        b"",
        end_report.output_shown_line(MARK),
        # The mark of another command, a line that has not ended, and what is no report.
        EndReport(0, "Succeeded").line("0f3d"),
        EndReport(0, "Succeeded").line(MARK)[:-1],
        b"\x1e0f3c {}\n",
        b"\x1e0f3c nothing\n",
        b'\x1e0f3c {"code": 300, "reason": "Succeeded"}\n',
        b'\x1e0f3c {"code": 0, "reason": "a\\u001b[2J"}\n',
        b'\x1e0f3c {"code": 0, "reason": "x", "text": "'
        + b"x" * end_report.MAX_REPORT_BYTES
        + b'"}\n',
    ],
)
def test_bytes_that_are_not_a_report(received: bytes) -> None:
    assert end_report.parse_report(received, MARK) is None
