"""``--hosts`` and ``--hostfile``: the same command on all hosts; each finds its own rank."""

from pathlib import Path

import pytest

from tests.contract.launched import Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended

PRINT_RANK = """
    import os

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    print("worker", *(os.environ[name] for name in names), os.uname().nodename)
"""


@pytest.mark.parametrize(
    ("listed", "first"),
    [
        ("n1,n0", "n1"),
        ("n[1,0]", "n1"),
        ("10.77.0.3,10.77.0.2", "10.77.0.3"),
        ("fd77::3,fd77::2", "fd77::3"),
    ],
)
def test_position_in_host_list_is_node_rank(
    listed: str, first: str, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    nodes = Nodes(clusterrun, hosts, PRINT_RANK)

    ends = ended([nodes.start(number, "--hosts", listed) for number in (0, 1)])

    assert codes(ends) == [0, 0], ends
    assert f"worker 1 2 0 1 1 {first} n0" in ends[0].out
    assert f"worker 0 2 0 1 0 {first} n1" in ends[1].out


def test_listed_alias_is_matched_by_address(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    for host in hosts[:2]:
        aliases = f"{hosts[0].address} ib-a\n{hosts[1].address} ib-b\n"
        host.set_hosts_file(f"127.0.0.1 localhost\n{aliases}")
    nodes = Nodes(clusterrun, hosts, PRINT_RANK)

    ends = ended([nodes.start(number, "--hosts", "ib-a,ib-b") for number in (0, 1)])

    assert codes(ends) == [0, 0], ends
    assert "worker 1 2 0 1 1 ib-a n1" in ends[1].out


def test_slots_in_hostfile_are_workers(
    hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path
) -> None:
    file = tmp_path / "hosts.txt"
    file.write_text("n0 slots=2\nn1:1\n")

    jobs = [
        clusterrun.script(PRINT_RANK, "--hostfile", str(file), around=host.around)
        for host in hosts[:2]
    ]
    ends = ended(jobs)

    assert codes(ends) == [0, 0], ends
    assert "worker 1 3 1 2 0 n0 n0" in ends[0].out
    assert "worker 2 3 0 1 1 n0 n1" in ends[1].out


def test_host_that_is_not_listed_exits_with_2(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    nodes = Nodes(clusterrun, hosts, PRINT_RANK)

    end = ended([nodes.start(2, "--hosts", "n0,n1")])[0]

    assert end.code == 2
    assert end.err.startswith(
        "clusterrun: error: --hosts lists n0, n1, but not this node, n2 (10.77.0."
    )
