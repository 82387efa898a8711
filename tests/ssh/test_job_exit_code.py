"""The exit code of a job and its report, from those of its hosts."""

import pytest
from clusterrun.clients.ssh.hosts import job_exit_code, merge_reports
from clusterrun.errors import ExitCode
from clusterrun.policy.end_report import EndReport


@pytest.mark.parametrize(
    ("codes", "survives_node_loss", "expected"),
    [
        ([0, 0, 0], False, 0),
        ([3, 3, 3], False, 3),
        # The agent of the first host was killed, and the others have lost it.
        ([137, 5, 5], False, 5),
        ([137, 5], False, 137),
        # No failure is outvoted.
        ([0, 0, 2], False, 2),
        # The job went on without the first host.
        ([137, 0, 0], True, 0),
        ([], False, ExitCode.NODE_LOST),
    ],
)
def test_job_exit_code(codes: list[int], *, survives_node_loss: bool, expected: int) -> None:
    assert job_exit_code(codes, survives_node_loss=survives_node_loss) == expected


FAILED = EndReport(3, "WorkerFailed", "rank 2 on n1 failed\n  with its traceback", rank=2)
SHORT = EndReport(3, "WorkerFailed", "rank 2 on n1 failed", rank=2)
NO = EndReport(4, "RendezvousError", "no")


@pytest.mark.parametrize(
    ("reports", "hosts", "text"),
    [
        # The report of the failed rank's node is the longest.
        ({"n0": SHORT, "n1": FAILED, "n2": SHORT}, 3, FAILED.text),
        ({"n0": NO, "n1": NO}, 2, "no"),
        ({"n0": NO, "n1": NO}, 3, "n0, n1: no"),
        ({"n0": NO, "n1": EndReport(4, "RendezvousError", "yes")}, 2, "n0: no\nn1: yes"),
        ({"n0": EndReport(0, "Succeeded")}, 1, ""),
        ({}, 2, ""),
    ],
)
def test_merged_report(reports: dict[str, EndReport], hosts: int, text: str) -> None:
    report = merge_reports(reports, hosts)

    assert (report.text if report is not None else "") == text
