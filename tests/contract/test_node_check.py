"""``--check-nodes``: this machine is checked before the job begins."""

import pytest

from tests.contract.door import node_check
from tests.contract.launched import Launcher

WRONG = {"NCCL_SOCKET_IFNAME": "nosuch0"}


def test_a_check_that_hangs_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver or a file system that hangs would hang the job."""
    monkeypatch.setattr(node_check, "SECONDS_TO_CHECK", 0.01)

    assert node_check.find_fault({}) == "clusterrun doctor does not end within 0.01 s"


def test_a_job_without_other_nodes_does_not_begin(clusterrun: Launcher) -> None:
    """Nothing is started."""
    done = clusterrun.script("print('runs')", "--check-nodes", workers=1, environ=WRONG).ended()

    assert (done.code, done.out) == (3, "")
    assert done.err == (
        "clusterrun: error: this machine fails its check (--check-nodes):"
        " NCCL_SOCKET_IFNAME: nosuch0\n"
        "  clusterrun doctor shows what to do\n"
    )


def test_a_job_on_a_machine_that_is_well_runs(clusterrun: Launcher) -> None:
    done = clusterrun.script("print('runs')", "--check-nodes", workers=1).ended()

    assert (done.code, done.out) == (0, "runs\n"), done.err
