"""``clusterrun slow`` on a job of two hosts: a slow host, and a slow link between them."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clusterrun.network.control_client import find_jobs

from tests.contract.launched import COMMAND, Job, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.hosts.slow_link import slow_link
from tests.waiting import wait_until

# On full CPUs the answer may be that ranks lack them.
pytestmark = [pytest.mark.long, pytest.mark.needs("py-spy", "import torch")]

TRAIN = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    slow = [int(word) for word in sys.argv[1:]]

    def prepare_batch(rank):
        time.sleep(0.06 if rank in slow else 0.0)
        return torch.randn(8, 64)

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    print("ready", flush=True)
    while True:
        model(prepare_batch(dist.get_rank())).square().mean().backward()
"""


class JobOnTwoHosts:
    """Four ranks that train; the ranks in ``slow`` are late."""

    def __init__(self, hosts: Sequence[Host], launcher: Launcher, folder: Path, *slow: str) -> None:
        """Start it, and wait until the agent of the second host answers."""
        self._host = hosts[1]
        self._environ = {"XDG_RUNTIME_DIR": str(folder)}
        nodes = Nodes(launcher, hosts[:2], TRAIN)
        self.jobs: list[Job] = nodes.start_all(
            "--run-id=mine", workers=(2, 2), args=slow, environ=self._environ
        )
        for job in self.jobs:
            job.wait_for("ready", times=2)
        wait_until(partial(_agents_answer, folder))

    def report(self) -> dict[str, Any]:
        """Return the output of ``clusterrun slow`` on the second host."""
        done = self._host.run(COMMAND, "slow", "--json", "mine", environ=self._environ)
        assert done.code == 0, done
        report: dict[str, Any] = json.loads(done.out)
        return report

    def stop(self) -> None:
        self._host.run(COMMAND, "stop", "--now", "mine", environ=self._environ)
        ends = ended(self.jobs)
        assert codes(ends) == [143] * 2, ends


def _agents_answer(folder: Path) -> bool:
    return len(find_jobs([folder / "clusterrun"]).jobs) == 2


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """Return the folder of the sockets of both agents."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return folder


def test_slow_host_is_named(hosts: tuple[Host, ...], clusterrun: Launcher, runtime: Path) -> None:
    job = JobOnTwoHosts(hosts, clusterrun, runtime, "2", "3")
    report = job.report()
    job.stop()

    host = hosts[1].name
    assert report["summary"].startswith(f"ranks 2-3, all of {host}, are slow: "), report
    assert "prepare_batch" in report["summary"]
    assert report["missing"] == []


def test_slow_link_names_no_rank(
    hosts: tuple[Host, ...], clusterrun: Launcher, runtime: Path
) -> None:
    job = JobOnTwoHosts(hosts, clusterrun, runtime)
    with slow_link(hosts[1], sends=0.05, gets=0.05):
        report = job.report()
    job.stop()

    assert report["summary"].startswith("all ranks wait "), report
