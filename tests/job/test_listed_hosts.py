"""Hosts of --hosts and --hostfile: each node finds its own rank."""

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from clusterrun.job.declarations import Setting
from clusterrun.job.hosts import read_hosts
from clusterrun.job.job import Job
from clusterrun.job.this_process import ThisProcess, addresses_of
from clusterrun.job.values import WorkerCount

from tests.captured import captured
from tests.described import describe, mistake

pytestmark = pytest.mark.usefixtures("script")

KNOWN: Mapping[str, Collection[str]] = {
    "": ("127.0.0.1", "10.0.0.7", "fd77::7"),
    "seven": ("10.0.0.7",),
    "eight": ("10.0.0.8",),
}


def on_node7(**flags: str) -> Job:
    """Return the job of a command line on a host named node7, which other hosts call seven."""
    process = ThisProcess(
        host="node7",
        cpus=8,
        python="/usr/bin/python3",
        run_id="chosen",
        addresses=lambda name: KNOWN.get(name, ()),
    )
    return describe("train.py", flags={"python": "/bin/sh", **flags}, process=process).job


@pytest.mark.parametrize(
    ("hosts", "rank"),
    [
        ("node6,node7", 1),
        ("node[6-8]", 1),
        ("node7.cluster,node8.cluster", 0),
        ("10.0.0.6,10.0.0.7", 1),
        ("fd77::6,fd77::7", 1),
        ("eight,nine,seven", 2),
        # The same first name in two racks: addresses tell.
        ("seven,node7", 1),
    ],
)
def test_rank_is_the_hosts_position_in_the_list(hosts: str, rank: int) -> None:
    """The host is found by its name, by an address, or by a name that resolves to its address."""
    job = on_node7(hosts=hosts)

    assert job.setting("node_rank") == Setting(rank, "--hosts")
    assert job.setting("nnodes") == Setting(len(job.workers.hosts), "--hosts")
    assert job.setting("master_addr") == Setting(job.workers.hosts[0], "--hosts")


@pytest.mark.parametrize("launcher", ["none", "ssh"])
def test_host_list_is_parsed_once(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is proportional to the length of the list."""
    read: list[str] = []

    def reading(text: str) -> tuple[str, ...]:
        read.append(text)
        return read_hosts(text)

    monkeypatch.setattr("clusterrun.job.hosts.read_hosts", reading)

    job = on_node7(hosts="node7,n[1-200000]", launcher=launcher)

    assert len(job.workers.hosts) == 200_001
    assert read == ["node7,n[1-200000]"]


def test_given_rank_needs_no_lookup() -> None:
    """The list may have names that do not resolve on this host."""
    job = on_node7(hosts="a,b,c", node_rank="2")

    assert job.setting("node_rank") == Setting(2, "--node-rank")
    assert job.setting("hosts") == Setting(("a", "b", "c"), "--hosts")


def test_host_list_within_node_range() -> None:
    """The length of the list is the maximum, and MIN stays the minimum."""
    job = on_node7(hosts="node6,node7,node8", nnodes="2:4")

    assert (job.workers.nnodes.maximum, job.workers.nnodes.minimum) == (3, 2)


def test_local_addr_is_searched_in_the_list() -> None:
    assert on_node7(hosts="10.9.0.1,10.9.0.2", local_addr="10.9.0.2").workers.node_rank == 1


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (
            {"hosts": "a,b"},
            ("--hosts lists a, b, but not this node, node7 (10.0.0.7, 127.0.0.1, fd77::7)"),
            "add it to the list, or give its rank with --node-rank",
        ),
        (
            {"hosts": "10.0.0.7,fd77::7"},
            "--hosts lists 10.0.0.7 and fd77::7, which are both this node, node7",
            "list each node once",
        ),
        (
            {"hosts": "node7,b", "nnodes": "3"},
            "nnodes is 3 (--nnodes), but --hosts lists 2",
            "leave --nnodes out",
        ),
        (
            {"hosts": "node7,b", "node_rank": "2"},
            "node_rank is 2 (--node-rank), but nnodes is 2 (--hosts)",
            "give a rank from 0 to 1",
        ),
    ],
)
def test_wrong_host_list_is_an_error(flags: dict[str, str], message: str, hint: str) -> None:
    """This node is missing or listed twice, or an option disagrees with the list."""
    from clusterrun.errors import UsageError

    with pytest.raises(UsageError) as caught:
        on_node7(**flags)

    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_host_list_replaces_exported_address_and_cluster() -> None:
    environ = captured("node.1") | {"MASTER_ADDR": "elsewhere"}

    resolved = describe("train.py", flags={"hosts": "a,node7,b"}, environ=environ)

    assert resolved.job.workers.node_rank == 1
    assert resolved.job.setting("master_addr") == Setting("a", "--hosts")
    assert resolved.warnings == (
        "nnodes is 3 (--hosts); the cluster's 2 (SLURM_STEP_NUM_NODES) is ignored",
    )


@pytest.mark.parametrize(
    ("text", "hosts", "workers"),
    [
        ("node6\nnode7\n", ("node6", "node7"), None),
        ("# the rack\nnode6 slots=2\nnode7 slots=4 max_slots=8\n", ("node6", "node7"), 4),
        ("node7:2\n\nnode8:3 # spare\n", ("node7", "node8"), 2),
        ("node6\tslots=2\nnode7\t slots=3\n", ("node6", "node7"), 3),
        ("fd77::7\nfd77::8\n", ("fd77::7", "fd77::8"), None),
        ("node[6-8] slots = 2\n", ("node6", "node7", "node8"), 2),
    ],
)
def test_hostfile_formats(
    text: str, hosts: tuple[str, ...], workers: int | None, folder: Path
) -> None:
    """Plain, Open MPI's and MPICH's; the slots of this node are its workers."""
    (folder / "hosts").write_text(text)

    job = on_node7(hostfile="hosts")

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
            "hosts:1: 'node[1-2000000]' has 2,000,000 hosts, and a job has 1,000,000 at most",
        ),
        (
            "a[1-600000]\nb[1-600000]\n",
            "--hostfile: hosts has 1,200,000 hosts, and a job has 1,000,000 at most",
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


@pytest.mark.parametrize(
    ("text", "visible"),
    [("0,2,5-7", "0,2,5,6,7"), ("3,1", "3,1"), ("GPU-a1,MIG-b2", "GPU-a1,MIG-b2"), ("4", "4")],
)
def test_devices_set_the_number_of_workers(text: str, visible: str) -> None:
    """The order of the devices is kept."""
    job = on_node7(devices=text)

    assert job.setting("devices") == Setting(tuple(visible.split(",")), "--devices")
    assert job.setting("nproc_per_node") == Setting(visible.count(",") + 1, "--devices")


def test_nproc_per_node_overrides_the_number_of_devices() -> None:
    assert on_node7(devices="0-3", nproc_per_node="2").workers.nproc_per_node == 2
