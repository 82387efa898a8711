"""``--nnodes MIN:MAX``: the job starts with the nodes that have joined at the last call."""

from tests.contract.launched import Launcher
from tests.contract.worker_scripts import RANKS_RENDEZVOUS
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended

WAIT_FOR_RANK_0 = f"""
    import os
    names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    print("worker", *(os.environ[name] for name in names), flush=True)
{RANKS_RENDEZVOUS}
    if rank == 0:
        # The workers connect to MASTER_PORT, which is not the agents' port.
        print("connected", flush=True)
    calls[0].recv(1)
"""


def test_last_call_starts_with_nodes_that_have_joined(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Two of four nodes have joined, and ranks have no gap. A third one joins late and waits."""
    nodes = Nodes(clusterrun, hosts, WAIT_FOR_RANK_0)
    rendezvous = ("--nnodes", "2:4", "--master-addr", hosts[0].address, "--run-id", "mine")
    jobs = [
        nodes.start(0, *rendezvous, "--last-call-timeout", "1", workers=2),
        nodes.start(1, *rendezvous, "--node-rank", "3"),
    ]
    jobs[0].wait_for("connected")

    jobs.append(nodes.start(2, *rendezvous))
    jobs[2].wait_for("this node is waiting to join")
    for job in jobs[:2]:
        job.signal(15)
    ends = ended(jobs)

    assert ends[2].out == ""
    assert codes(ends) == [143, 143, 143]
    printed = "".join(end.out for end in ends)
    for line in ("0 3 0 2 mine", "1 3 0 2 mine", "2 3 1 2 mine"):
        assert f"worker {line}\n" in printed
    assert "starting with 2 of 4 nodes: n0, n1; without 2 nodes" in ends[0].err


def test_fewer_nodes_than_minimum_time_out(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    nodes = Nodes(clusterrun, hosts, "print('started')")
    rendezvous = ("--nnodes", "3:4", "--master-addr", hosts[0].address)
    soon = ("--rdzv-timeout", "2", "--last-call-timeout", "0")

    ends = ended([nodes.start(0, *rendezvous, *soon), nodes.start(1, *rendezvous)])

    assert codes(ends) == [4, 4]
    for end in ends:
        assert "2 of 4 nodes joined within 2 s: n0, n1; missing: 2 nodes" in end.err
        assert end.out == ""
