"""Host lists and hostfiles; what follows from --hosts is in lines/hosts.txt."""

from pathlib import Path

import pytest
from clusterrun.job.declarations import Setting
from clusterrun.job.hosts import read_hosts
from clusterrun.job.this_process import addresses_of
from clusterrun.job.values import WorkerCount

from tests.described import describe, mistake

pytestmark = pytest.mark.usefixtures("script")


@pytest.mark.parametrize("launcher", ["none", "ssh"])
def test_host_list_is_parsed_once(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is proportional to the length of the list."""
    read: list[str] = []

    def reading(text: str) -> tuple[str, ...]:
        read.append(text)
        return read_hosts(text)

    monkeypatch.setattr("clusterrun.job.hosts.read_hosts", reading)

    flags = {"hosts": "node7,n[1-200000]", "launcher": launcher}
    job = describe("train.py", flags=flags).job

    assert len(job.workers.hosts) == 200_001
    assert read == ["node7,n[1-200000]"]


@pytest.mark.parametrize(
    ("text", "hosts", "workers"),
    [
        ("node6\nnode7\n", ("node6", "node7"), None),
        ("# the rack\nnode6 slots=2\nnode7 slots=4 max_slots=8\n", ("node6", "node7"), 4),
        ("node7:2\n\nnode8:3 # spare\n", ("node7", "node8"), 2),
        ("node6\tslots=2\nnode7\t slots=3\n", ("node6", "node7"), 3),
        ("node7\nfd77::8\n", ("node7", "fd77::8"), None),
        ("node[6-8] slots = 2\n", ("node6", "node7", "node8"), 2),
    ],
)
def test_hostfile_formats(
    text: str, hosts: tuple[str, ...], workers: int | None, folder: Path
) -> None:
    """Plain, Open MPI's and MPICH's; the slots of this node are its workers."""
    (folder / "hosts").write_text(text)

    job = describe("train.py", flags={"hostfile": "hosts"}).job

    assert job.setting("hosts") == Setting(hosts, "--hostfile hosts")
    assert job.workers.nproc_per_node == (workers or WorkerCount.PER_GPU)
    assert workers is None or job.origin("nproc_per_node").startswith("hosts:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--hostfile: hosts lists no host"),
        ("node7\nnode8\nnode7\n", "hosts:3: node7 is listed twice"),
        ("node7 slots=many\n", "hosts:1: 'node7 slots=many' is not a host and its slots"),
        ("node7 slots=0\n", "hosts:1: 'node7 slots=0' is not a host and its slots"),
        ("node7 gpu\n", "hosts:1: 'node7 gpu' is not a host and its slots"),
        ("node[7\n", "hosts:1: 'node[7' is not a list of hosts"),
        (
            "node[1-2000000]\n",
            "hosts:1: 'node[1-2000000]' has 2,000,000 hosts, but a job has 1,000,000 at most",
        ),
        (
            "a[1-600000]\nb[1-600000]\n",
            "--hostfile: hosts has 1,200,000 hosts, but a job has 1,000,000 at most",
        ),
    ],
)
def test_wrong_hostfile_is_an_error(text: str, message: str, folder: Path) -> None:
    """The message has the number of the line."""
    (folder / "hosts").write_text(text)

    assert mistake("train.py", flags={"hostfile": "hosts"})[0] == message


def test_addresses_from_the_resolver() -> None:
    """A name that does not resolve has no addresses."""
    assert "127.0.0.1" in addresses_of("")
    assert "127.0.0.1" in addresses_of("localhost")
    assert not addresses_of("no-such-host.invalid")


def test_login_name_is_for_ssh_only(folder: Path) -> None:
    """In USER@HOST, only the host is an address; slots belong to the host."""
    (folder / "hosts").write_text("alice@gpu-01 slots=2\ngpu-02\n")

    resolved = describe("train.py", flags={"hostfile": "hosts", "launcher": "ssh"})

    assert resolved.job.setting("hosts").value == ("gpu-01", "gpu-02")
    assert resolved.job.setting("master_addr").value == "gpu-01"
    assert resolved.over_ssh is not None
    assert resolved.over_ssh.hosts == ("alice@gpu-01", "gpu-02")
    assert resolved.over_ssh.slots == {"alice@gpu-01": 2}
