"""One report for all nodes."""

from tests.ssh.door import (
    one_report,
)

CAUSE = """\
clusterrun: rank 2 on n1 failed: ValueError: no
  exit code 1, local rank 0, pid 12, at 2026-11-22 14:11:45, 0.31 s after its start

    Traceback (most recent call last):
      rank 7: this line is the worker's
    ValueError: no

"""
END = "clusterrun: exit code 1, from rank 2\n"


def test_the_workers_of_all_nodes() -> None:
    """Those that ended alike share a line; what SIGKILL did not end is named with its host."""
    reports = {
        "n0": f"{CAUSE}  ranks 0-1: stopped by clusterrun\n{END}",
        "n1": f"{CAUSE}  rank 3: stopped by clusterrun\n{END}",
        "n2": f"{CAUSE}  rank 4: failed too, exit code 3\n  ranks 5, 7-8: stopped by clusterrun\n"
        f"  SIGKILL did not end pid 12 (python, state D in nfs_wait)\n{END}",
    }

    assert one_report(reports) == (
        f"{CAUSE}  ranks 0-1, 3, 5, 7-8: stopped by clusterrun\n"
        "  rank 4: failed too, exit code 3\n"
        "  SIGKILL did not end pid 12 (python, state D in nfs_wait) on n2\n"
        f"{END.strip()}"
    )


def test_the_first_node_has_no_other_worker() -> None:
    """The line stands before the last one."""
    reports = {"n0": f"{CAUSE}{END}", "n1": f"{CAUSE}  rank 1: stopped by clusterrun\n{END}"}

    assert one_report(reports) == f"{CAUSE}  rank 1: stopped by clusterrun\n{END.strip()}"


def test_short_reports() -> None:
    """A line alone stays one; without reports nothing is printed."""
    assert one_report({"n0": "", "n1": "clusterrun: interrupted\n"}) == "clusterrun: interrupted"
    assert one_report({"n0": ""}) == ""
    assert one_report({}) == ""
