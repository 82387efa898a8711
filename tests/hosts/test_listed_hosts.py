"""``--hosts`` and ``--hostfile``: the same command on all hosts; each finds its own rank."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.launched import Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended

TELL = """
    import os

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    print("place", *(os.environ[name] for name in names), os.uname().nodename)
"""


@pytest.mark.parametrize(
    "list_of",
    [
        lambda hosts: f"{hosts[1].name},{hosts[0].name}",
        lambda _: "n[1,0]",
        lambda hosts: f"{hosts[1].address},{hosts[0].address}",
        lambda hosts: f"{hosts[1].address6},{hosts[0].address6}",
    ],
    ids=["names", "ranges", "IPv4", "IPv6"],
)
def test_position_in_host_list_is_node_rank(
    list_of: Callable[[tuple[Host, ...]], str], hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    said = list_of(hosts)
    nodes = Nodes(clusterrun, hosts, TELL)

    ends = ended([nodes.start(number, "--hosts", said) for number in (0, 1)])

    assert codes(ends) == [0, 0], ends
    first = {"n[1,0]": "n1"}.get(said, said.partition(",")[0])
    assert f"place 1 2 0 1 1 {first} n0" in ends[0].out
    assert f"place 0 2 0 1 0 {first} n1" in ends[1].out


def test_listed_alias_is_matched_by_address(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    for host in hosts[:2]:
        aliases = f"{hosts[0].address} ib-a\n{hosts[1].address} ib-b\n"
        host.set_hosts_file(f"127.0.0.1 localhost\n{aliases}")
    nodes = Nodes(clusterrun, hosts, TELL)

    ends = ended([nodes.start(number, "--hosts", "ib-a,ib-b") for number in (0, 1)])

    assert codes(ends) == [0, 0], ends
    assert "place 1 2 0 1 1 ib-a n1" in ends[1].out


def test_slots_in_hostfile_are_workers(
    hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path
) -> None:
    file = tmp_path / "hosts.txt"
    file.write_text("n0 slots=2\nn1:1\n")

    jobs = [
        clusterrun.script(TELL, "--hostfile", str(file), around=host.around) for host in hosts[:2]
    ]
    ends = ended(jobs)

    assert codes(ends) == [0, 0], ends
    assert "place 1 3 1 2 0 n0 n0" in ends[0].out
    assert "place 2 3 0 1 1 n0 n1" in ends[1].out


def test_host_that_is_not_listed_exits_with_2(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    nodes = Nodes(clusterrun, hosts, TELL)

    end = ended([nodes.start(2, "--hosts", "n0,n1")])[0]

    assert end.code == 2
    assert end.err.startswith(
        "clusterrun: error: --hosts lists n0, n1, but not this node, n2 (10.77.0."
    )
