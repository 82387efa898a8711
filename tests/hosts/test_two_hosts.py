"""One job on several hosts: ranks, MASTER_ADDR, and users' scripts."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.contract.launched import COMMAND, Ended, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.hosts.stepping_ranks import SUM_OF_RANKS

ROOT = Path(__file__).parent.parent.parent

HOSTS_BY_NAME = "127.0.0.1 localhost\n10.77.0.2 n0\n10.77.0.3 n1\n"

PRINT_RANK = """
    import os

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
             "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    print("worker", *(os.environ[name] for name in names))
"""

ALL_REDUCE = """
    import argparse, os
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    parser = argparse.ArgumentParser()
    parser.add_argument("--local-rank", type=int, default=int(os.environ["LOCAL_RANK"]))
    parser.add_argument("--init-method", default="env://")
    options = parser.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", init_method=options.init_method, rank=rank, world_size=size
    )
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    model(torch.tensor([[float(rank)]])).sum().backward()
    print("local rank", options.local_rank, "mean", model.module.weight.grad.item(), flush=True)
    dist.barrier()
    # No destroy_process_group: gloo sometimes aborts a rank whose peer has just exited.
    os._exit(0)
"""


def workers_of(ends: Sequence[Ended]) -> list[list[str]]:
    """Return what the workers of each node printed."""
    return [sorted(re.findall(r"worker (.*)", end.out)) for end in ends]


def test_nodes_with_different_numbers_of_workers(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    jobs = Nodes(clusterrun, hosts, PRINT_RANK).start_all(workers=(2, 1))

    ends = ended(jobs)

    assert codes(ends) == [0, 0]
    assert [end.err for end in ends] == ["", ""]
    assert workers_of(ends) == [
        ["0 3 0 2 0 2 10.77.0.2 29500", "1 3 1 2 0 2 10.77.0.2 29500"],
        ["2 3 0 1 1 2 10.77.0.2 29500"],
    ]


def test_nodes_without_rank_get_remaining_ranks(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Node 0 is the one with the address."""
    nodes = Nodes(clusterrun, hosts, PRINT_RANK)
    options = ("--nnodes", "3", "--master-addr", hosts[0].address)
    jobs = [
        nodes.start(2, *options),
        nodes.start(1, *options, "--node-rank", "2"),
        nodes.start(0, *options, workers=2),
    ]

    ends = ended(jobs)

    assert codes(ends) == [0, 0, 0]
    assert workers_of(ends) == [
        ["2 4 0 1 1 3 10.77.0.2 29500"],
        ["3 4 0 1 2 3 10.77.0.2 29500"],
        ["0 4 0 2 0 3 10.77.0.2 29500", "1 4 1 2 0 3 10.77.0.2 29500"],
    ]


@pytest.mark.parametrize("address", ["10.77.0.2", "fd77::2", "n0"])
def test_forms_of_master_addr(hosts: tuple[Host, ...], clusterrun: Launcher, address: str) -> None:
    nodes = Nodes(clusterrun, hosts, SUM_OF_RANKS)
    options = ("--nnodes", "2", "--master-addr", address, "--master-port", "23456")
    jobs = [nodes.start(1, *options), nodes.start(0, *options, workers=2)]

    ends = ended(jobs)

    assert codes(ends) == [0, 0]
    assert ends[1].out.endswith("sum 3\n")


@pytest.mark.parametrize("endpoint", ["10.77.0.2:23456", "[fd77::2]:23456", "n0"])
def test_rdzv_endpoint_is_not_master_port(
    hosts: tuple[Host, ...], clusterrun: Launcher, endpoint: str
) -> None:
    """Agents keep the endpoint for the whole job."""
    nodes = Nodes(clusterrun, hosts, PRINT_RANK + SUM_OF_RANKS)
    jobs = [nodes.start(number, "--nnodes", "2", "--rdzv-endpoint", endpoint) for number in (0, 1)]

    ends = ended(jobs)

    ports = {worker.rpartition(" ")[2] for [worker] in workers_of(ends)}
    assert codes(ends) == [0, 0]
    assert ends[0].out.endswith("sum 1\n")
    assert len(ports) == 1
    assert ports.isdisjoint({"23456", "29400", "29500"})


def test_master_port_beside_endpoint_is_kept_in_all_attempts(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    fails_once = """
    import sys
    sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
    """
    nodes = Nodes(clusterrun, hosts, PRINT_RANK + SUM_OF_RANKS + fails_once)
    options = (
        "--rdzv-endpoint",
        "10.77.0.2:23456",
        "--master-port",
        "23457",
        "--max-restarts",
        "1",
    )
    jobs = [nodes.start(number, "--nnodes", "2", *options) for number in (0, 1)]

    ends = ended(jobs)

    [first, second] = workers_of(ends[:1])[0]
    assert codes(ends) == [0, 0]
    assert (first.split()[-1], second.split()[-1]) == ("23457", "23457")


def test_concurrent_jobs_with_different_ports(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    nodes = Nodes(clusterrun, hosts, SUM_OF_RANKS)
    ports = ("29500", "29501", "29502")
    jobs = [nodes.start_all("--master-port", port, workers=(1, 2)) for port in ports]

    ends = [ended(job) for job in jobs]

    assert [codes(job) for job in ends] == [[0, 0]] * 3
    assert [job[0].out for job in ends] == ["sum 3\n"] * 3


def test_two_nodes_job_file(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The script on the command line replaces its own. Node 0's name has two addresses."""
    hosts[1].set_hosts_file("127.0.0.1 localhost\n10.77.0.2 n0\nfd77::2 n0\n10.77.0.3 n1\n")
    nodes = Nodes(clusterrun, hosts, PRINT_RANK)
    options = ("--config", str(ROOT / "configs/two_nodes.yaml"), "--master-addr", "n0")

    ends = ended([nodes.start(number, *options) for number in (0, 1)])

    assert codes(ends) == [0, 0], ends
    first, second = workers_of(ends)
    assert first == ["0 2 0 1 0 2 n0 29500"]
    # The name, or the address that answered, if it was not the first one of the name.
    of_node_zero = ("n0", "10.77.0.2", "fd77::2")
    assert second in [[f"1 2 0 1 1 2 {address} 29500"] for address in of_node_zero]


@pytest.mark.long
@pytest.mark.parametrize("init_method", ["env://", "tcp://10.77.0.2:29500"])
def test_commands_of_torchrun_tutorial(
    hosts: tuple[Host, ...], clusterrun: Launcher, init_method: str
) -> None:
    nodes = Nodes(clusterrun, hosts, ALL_REDUCE)
    options = ("--nnodes=2", "--master-addr=10.77.0.2", "--master-port=29500")
    args = ("--init-method", init_method)
    jobs = [
        nodes.start(0, *options, "--node-rank=0", workers=2, args=args),
        nodes.start(1, *options, "--node-rank=1", args=args),
    ]

    ends = ended(jobs, seconds=90)

    found = [sorted(re.findall(r"local rank \d mean [\d.]+", end.out)) for end in ends]
    assert codes(ends) == [0, 0], ends
    assert found == [["local rank 0 mean 1.0", "local rank 1 mean 1.0"], ["local rank 0 mean 1.0"]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("own_names", "master_addr"),
    [
        # Debian's /etc/hosts: without GLOO_SOCKET_IFNAME, gloo offers that address.
        (("127.0.1.1", "127.0.1.1"), "n0"),
        # Pods with hostNetwork, and machines behind a VPN: gloo can't listen at that address.
        (("10.99.0.2", "10.99.0.3"), "10.77.0.2"),
    ],
)
def test_gloo_with_own_name_of_other_address(
    hosts: tuple[Host, ...], clusterrun: Launcher, own_names: tuple[str, str], master_addr: str
) -> None:
    names = (
        "127.0.0.1 localhost\n{} n0\n10.77.0.3 n1\n",
        "127.0.0.1 localhost\n{} n1\n10.77.0.2 n0\n",
    )
    for host, text, own in zip(hosts, names, own_names, strict=False):
        host.set_hosts_file(text.format(own))
    nodes = Nodes(clusterrun, hosts, ALL_REDUCE)
    options = ("--nnodes", "2", "--master-addr", master_addr)

    ends = ended([nodes.start(rank, *options, "--node-rank", str(rank)) for rank in (0, 1)], 90)

    assert codes(ends) == [0, 0], ends
    assert [end.out for end in ends] == ["local rank 0 mean 0.5\n"] * 2


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_nodes_job_file_trains_to_95_percent(hosts: tuple[Host, ...]) -> None:
    options = ("--config", "configs/two_nodes.yaml", "--master-addr", hosts[0].address)
    jobs = [
        host.start(COMMAND, *options, "--nproc-per-node", workers, folder=ROOT)
        for host, workers in zip(hosts, "21", strict=False)
    ]

    ends = ended(jobs, seconds=240)

    assert codes(ends) == [0, 0], ends
    [accuracy] = re.findall(r"test accuracy ([\d.]+) %", ends[0].out)
    assert float(accuracy) >= 95


def test_name_that_resolves_late(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Pods get their names late: a node prints a notice and tries again."""
    hosts[1].set_hosts_file("127.0.0.1 localhost\n")
    nodes = Nodes(clusterrun, hosts, "print('done')")
    options = ("--nnodes", "2", "--master-addr", "n0")
    jobs = [nodes.start(rank, *options, "--node-rank", str(rank)) for rank in (0, 1)]
    jobs[1].wait_for(
        r"clusterrun: n0 \(--master-addr\) does not resolve yet: name or service not known \(\d+ s of 600 s\)\n"
    )
    jobs[0].wait_for(
        r"clusterrun: 1 of 2 nodes have joined: n0; waiting for node rank 1 \(5 s of 600 s\)\n"
    )

    hosts[1].set_hosts_file(HOSTS_BY_NAME)

    assert [(end.code, end.out, end.err) for end in ended(jobs)] == [(0, "done\n", "")] * 2
