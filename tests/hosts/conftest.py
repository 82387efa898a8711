"""Fixtures of the tests on several hosts."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.launched import Launcher
from tests.hosts.host import Host
from tests.hosts.namespaces import remove_leftovers, run_of
from tests.hosts.network import Network, network
from tests.hosts.resilient_job import ResilientJob
from tests.hosts.slurm import Slurm
from tests.hosts.ssh_hosts import SshHosts
from tests.needs import need

HERE = Path(__file__).parent

DAEMONS = {"slurm_of_four", "slurm_of_session", "slurm_that_signals_tasks", "ssh_of_session"}
"""The fixtures that start daemons."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, and those whose fixtures start daemons."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.hosts)
        if DAEMONS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.daemons)


@pytest.fixture(scope="session")
def this_run() -> str:
    """Return the name of this test run, after removing what killed runs have left.

    Without namespaces, all tests that need hosts are skipped; with CI set, they fail.
    """
    need("root", "ip", "nsenter", "unshare")
    made = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "true"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if made.returncode:
        fail_or_skip = pytest.fail if os.environ.get("CI") else pytest.skip
        fail_or_skip(f"needs namespaces: {made.stderr.strip()}")
    remove_leftovers()
    return run_of(os.getpid())


@pytest.fixture(scope="session")
def hosts_of_session(this_run: str) -> Iterator[Network]:
    """Return four hosts, n0 to n3."""
    with network(this_run, "hosts", "n0", "n1", "n2", "n3") as made:
        yield made


@pytest.fixture
def hosts(hosts_of_session: Network) -> Iterator[tuple[Host, ...]]:
    """Return four hosts, n0 to n3; all their processes end with the test."""
    yield hosts_of_session.hosts

    hosts_of_session.end_all()
    hosts_of_session.restore()


@pytest.fixture(scope="session")
def five_hosts_of_session(this_run: str) -> Iterator[Network]:
    with network(this_run, "five", *(f"n{number}" for number in range(5))) as made:
        yield made


@pytest.fixture
def five_hosts(five_hosts_of_session: Network) -> Iterator[tuple[Host, ...]]:
    """Return five hosts, n0 to n4; all their processes end with the test."""
    yield five_hosts_of_session.hosts

    five_hosts_of_session.end_all()
    five_hosts_of_session.restore()


@pytest.fixture
def job(hosts: tuple[Host, ...], clusterrun: Launcher) -> ResilientJob:
    """Return a job of two nodes and a spare, which is not started."""
    return ResilientJob(hosts, clusterrun, "--nnodes", "2", "--spares", "1")


@pytest.fixture(scope="session")
def slurm_of_session(this_run: str) -> Iterator[Slurm]:
    """Return a Slurm of two nodes."""
    with network(this_run, "slurm", "n0", "n1") as where:
        made = Slurm(where)
        made.open()
        yield made


@pytest.fixture(scope="session")
def ssh_of_session(this_run: str) -> Iterator[SshHosts]:
    """Return hosts with an sshd."""
    with network(this_run, "ssh", "n0", "n1", "n2", "n3") as where:
        made = SshHosts(where)
        made.open()
        yield made


@pytest.fixture
def ssh(ssh_of_session: SshHosts) -> Iterator[SshHosts]:
    """Return hosts n0 to n2 with an sshd, and n3 without; all sessions end with the test."""
    yield ssh_of_session

    ssh_of_session.end_sessions()


@pytest.fixture(scope="module")
def slurm_that_signals_tasks(this_run: str) -> Iterator[Slurm]:
    """Return a Slurm of two nodes whose signals reach tasks alone, as on most clusters."""
    with network(this_run, "suspending", "n0", "n1") as where:
        made = Slurm(where, proctrack="pgid")
        made.open()
        yield made


@pytest.fixture
def slurm(slurm_of_session: Slurm, request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """Return a Slurm of two idle nodes, n0 and n1; its jobs end with the test."""
    yield slurm_of_session

    # pytest shows this section only for a test that failed.
    request.node.add_report_section("teardown", "Slurm", slurm_of_session.new_logs())
    slurm_of_session.end_jobs()
