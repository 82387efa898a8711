"""MIN:MAX nodes on several hosts: the nodes that have joined at the last call are the world."""

from tests.contract.launched import Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended

STAYS = """
    import os, socket

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    print("place", *(os.environ[name] for name in names), flush=True)
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        # The workers meet at MASTER_PORT, which is not the agents' port.
        with socket.create_server(("", where[1])) as server:
            calls = [server.accept()[0] for _ in range(size - 1)]
            print("met", flush=True)
            calls[0].recv(1)
    else:
        while True:
            try:
                call = socket.create_connection(where, timeout=20)
                break
            except ConnectionRefusedError:
                pass
        call.recv(1)
"""


def test_a_world_of_the_nodes_that_have_joined(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Two of four nodes, ranks without a gap; a third joins too late, and the job goes on."""
    nodes = Nodes(clusterrun, hosts, STAYS)
    place = ("--nnodes", "2:4", "--master-addr", hosts[0].address, "--run-id", "mine")
    jobs = [
        nodes.start(0, *place, "--last-call-timeout", "1", workers=2),
        nodes.start(1, *place, "--node-rank", "3"),
    ]
    jobs[0].wait_for("met")

    (late,) = ended([nodes.start(2, *place)])
    for job in jobs:
        job.signal(15)
    ends = ended(jobs)

    assert late.code == 4
    assert late.err == (
        "clusterrun: error: the job at 10.77.0.2:29500 has started with 2 nodes: n0, n1\n"
        "  No node can join once the job has started; --last-call-timeout makes the job wait longer.\n"
    )
    assert codes(ends) == [143, 143]
    told = "".join(end.out for end in ends)
    for line in ("0 3 0 2 mine", "1 3 0 2 mine", "2 3 1 2 mine"):
        assert f"place {line}\n" in told
    assert "starting without 2 of 4 nodes (joined: n0, n1)" in ends[0].err


def test_too_few_have_joined(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Fewer than MIN nodes never start."""
    nodes = Nodes(clusterrun, hosts, "print('started')")
    place = ("--nnodes", "3:4", "--master-addr", hosts[0].address)
    soon = ("--rdzv-timeout", "2", "--last-call-timeout", "0")

    ends = ended([nodes.start(0, *place, *soon), nodes.start(1, *place)])

    assert codes(ends) == [4, 4]
    for end in ends:
        assert "waited 2 s for 2 of 4 nodes (joined: n0, n1)" in end.err
        assert end.out == ""
