"""The errors of nodes that can't be one job: the exact words on every node."""

import re
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest
from clusterrun.network.addresses import numeric_address
from clusterrun.network.channel import OutgoingChannel
from clusterrun.network.handshake import VERSION
from clusterrun.policy.messages import Hello

from tests.contract.launched import Job, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.imports import imports

SAME_COMMAND = "  run the same command on every node, each with its own --node-rank\n"
OWN_RANKS = "  give each node its own --node-rank\n"
SAME_PROOF = (
    "  set the same CLUSTERRUN_TOKEN or --token-file on all nodes\n"
    "  or, if another job uses that port, give each job its own port with --master-port\n"
)
OWN_PORTS = "  if these are two jobs, give each its own --master-port\n"

DONE = "print('done')"

PLACE = ("--master-addr", "10.77.0.2")

TWO = ("--nnodes", "2", *PLACE)

THREE = ("--nnodes", "3", *PLACE)

SOON = ("--rdzv-timeout", "3")

SECRET = {"CLUSTERRUN_TOKEN": "a secret of ours"}

ANYBODYS_PYTHON = Path("/usr/bin/python3")

OTHER_VERSION = """
import socket, struct, sys, time
opening = struct.pack(">12sHcB32s", b"\\x93clusterrun\\n", 9, sys.argv[1].encode(), 0, bytes(32))
if sys.argv[1] == "C":
    server = socket.create_server(("", 29500))
    print("listening", flush=True)
    call, _ = server.accept()
else:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            call = socket.create_connection(("10.77.0.2", 29500))
            break
        except ConnectionRefusedError:
            pass
call.sendall(opening)
print("heard", len(call.recv(100)))
"""
"""A future clusterrun: the first bytes of the handshake have the same layout in all versions."""

TWO_AT_ONCE = (
    imports(numeric_address, OutgoingChannel, Hello)
    + """
import select
from importlib.metadata import version

def answer(call, is_complete):
    received = []
    while not is_complete(received):
        select.select([call], [], [], 20)
        received += call.receive()
    return received

calls = [OutgoingChannel(numeric_address("10.77.0.2")[0], 29500, b"a secret of ours") for _ in range(2)]
for call in calls:
    answer(call, lambda _: call.is_ready)
must = {
    "version of clusterrun": version("clusterrun"),
    "nnodes": "3",
    "max_restarts": "0",
    "no_restart_exit_codes": "none",
    "no_fail_fast": "false",
    "heartbeat_timeout": "15",
    "hang_timeout": "never",
    "on_hang": "report",
}
for number, call in enumerate(calls, start=2):
    call.send(Hello(f"fake {number}", "", 0, f"n{number}", number, None, 1, must, {}))
for call in calls:
    # The hello is answered first, as all heartbeats are.
    print(answer(call, lambda received: len(received) > 1)[1].text)
"""
)
"""Two nodes that send their hellos together, before the first of them completes the job."""

HOLD_PORT = """
import socket
server = socket.create_server(("", 29500))
print("holding", flush=True)
while True:
    server.accept()[0].close()
"""


def error(text: str, hint: str = "") -> str:
    return f"clusterrun: error: {text}\n{hint}"


def who(number: int, job: Job) -> str:
    """Return how messages name a node."""
    return f"n{number} (pid {job.agent})"


def all_fail_with(jobs: Sequence[Job], text: str, hint: str = "") -> None:
    """Check that every node ends with this error, and long before the timeout."""
    ends = ended(jobs)

    assert [end.err for end in ends] == [error(text, hint)] * len(jobs)
    assert codes(ends) == [4] * len(jobs)
    assert [end.out for end in ends] == [""] * len(jobs)


def fails_alone(nodes: Nodes, jobs: Sequence[Job], text: str, hint: str) -> None:
    """Check that node 1 alone ends with this error, and that the job waits for another."""
    first, other = jobs
    all_fail_with([other], text, hint)

    last = nodes.start(2, *TWO, "--node-rank", "1")
    succeed_after_refusal(first, last, f"{who(1, other)} at 10.77.0.3: {text}")


def succeed_after_refusal(first: Job, last: Job, refusal: str) -> None:
    """Check that the job succeeds after node 0 has refused a node."""
    ends = ended([first, last])

    assert [end.err for end in ends] == [f"clusterrun: refused {refusal}\n", ""]
    assert [(end.code, end.out) for end in ends] == [(0, "done\n")] * 2


def test_two_nodes_with_one_rank(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """With a token every node names both, in either order."""
    nodes = Nodes(clusterrun, hosts, DONE)
    jobs = [
        nodes.start(number, *THREE, "--node-rank", rank, environ=SECRET)
        for number, rank in enumerate("011")
    ]

    ends = ended(jobs)

    one, other = who(1, jobs[1]), who(2, jobs[2])
    text = "two nodes have node rank 1: {} and {}"
    possible = [error(text.format(*pair), OWN_RANKS) for pair in ((one, other), (other, one))]
    assert len({end.err for end in ends}) == 1
    assert ends[0].err in possible
    assert codes(ends) == [4, 4, 4]


def test_two_nodes_zero(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The one without the address finds the other, though both wait for members."""
    nodes = Nodes(clusterrun, hosts, DONE)
    jobs = [nodes.start(number, *TWO, "--node-rank", "0") for number in (0, 1)]

    text = f"two nodes have node rank 0: {who(0, jobs[0])} and {who(1, jobs[1])}"
    fails_alone(nodes, jobs, text, OWN_RANKS)


def test_rank_zero_without_its_address(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """A node with the address and without a rank is node 0."""
    nodes = Nodes(clusterrun, hosts, DONE)
    jobs = [nodes.start(0, *TWO), nodes.start(1, *TWO, "--node-rank", "0")]

    owner, other = who(0, jobs[0]), who(1, jobs[1])
    fails_alone(
        nodes,
        jobs,
        f"{other} has node rank 0, but 10.77.0.2:29500 is an address of {owner}",
        "  give --node-rank 0 to the machine that --master-addr names\n",
    )


def test_different_numbers_of_nodes(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """With a token both nodes name both hosts and both values."""
    nodes = Nodes(clusterrun, hosts, DONE)
    jobs = [
        nodes.start(0, *TWO, environ=SECRET),
        nodes.start(1, *THREE, "--node-rank", "1", environ=SECRET),
    ]

    all_fail_with(jobs, "nnodes is 2 on n0, 3 on n1", SAME_COMMAND)


def test_different_numbers_of_restarts(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Restarts are counted for the whole job."""
    nodes = Nodes(clusterrun, hosts, DONE)
    jobs = [nodes.start(0, *TWO), nodes.start(1, *TWO, "--max-restarts", "3")]

    fails_alone(nodes, jobs, "max_restarts is 0 on n0, 3 on n1", SAME_COMMAND)


def test_a_node_too_many(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """All nodes are named; with a token all of them end."""
    nodes = Nodes(clusterrun, hosts, DONE)
    jobs = [nodes.start(number, *THREE, environ=SECRET) for number in (0, 1)]
    jobs[0].wait_for("2 of 3 nodes have joined")

    told = hosts[2].run(sys.executable, "-c", TWO_AT_ONCE)

    here = f"{who(0, jobs[0])}, {who(1, jobs[1])}"
    texts = [
        f"nnodes is 3, but 4 nodes have connected: {here}, {third} and {fourth}"
        # The two call at the same time: either is read first.
        for third, fourth in permutations(("n2 (pid 2)", "n3 (pid 3)"))
    ]
    text, _, other = told.out.removesuffix("\n").partition("\n")
    assert text == other, told
    assert text in texts, told
    ends = ended(jobs)
    # The fakes' hellos name no script, and node 0 warns about that.
    hint = "  start one node fewer, or give a higher --nnodes\n"
    last = ["".join(end.err.splitlines(keepends=True)[-2:]) for end in ends]
    assert last == [error(text, hint)] * 2
    assert codes(ends) == [4, 4]


def test_a_node_too_many_that_joins_later(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """With --rdzv-endpoint, the coordinator refuses it at once, as all nodes have joined."""
    nodes = Nodes(clusterrun, hosts, "import signal\nprint('up', flush=True)\nsignal.pause()")
    place = ("--nnodes", "2", "--rdzv-endpoint", "10.77.0.2:29400")
    jobs = [nodes.start(number, *place) for number in (0, 1)]
    for job in jobs:
        job.wait_for("up")

    late = nodes.start(2, *place)

    all_fail_with([late], "the job at 10.77.0.2:29400 has all its 2 nodes: n0, n1")
    jobs[0].wait_for(rf"refused n2 \(pid {late.agent}\) at 10.77.0.4: all 2 nodes have joined\n")


def test_another_jobs_node(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The coordinator refuses it, and this job goes on waiting."""
    nodes = Nodes(clusterrun, hosts, DONE)
    first = nodes.start(0, *TWO, "--run-id", "one")

    other = nodes.start(2, *TWO, "--run-id", "two")

    text = (
        '10.77.0.2:29500 belongs to another job: its run id is "one",'
        f' that of {who(2, other)} is "two"'
    )
    all_fail_with([other], text, OWN_PORTS)
    refusal = f'{who(2, other)} at 10.77.0.4: it belongs to another job, run id "two"'
    succeed_after_refusal(first, nodes.start(1, *TWO, "--run-id", "one"), refusal)


@pytest.mark.needs("setpriv")
@pytest.mark.skipif(not ANYBODYS_PYTHON.exists(), reason="needs a Python that anybody can run")
def test_another_users_node(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The coordinator refuses it, and this job goes on waiting."""
    # It may read root's files: the interpreter and the test's folder may be root's.
    able = ("--inh-caps", "+dac_override", "--ambient-caps", "+dac_override")
    as_nobody = ("setpriv", "--reuid", "65534", "--clear-groups", *able)
    nodes = Nodes(clusterrun, hosts, DONE)
    first = nodes.start(0, *TWO)

    # access(2) checks the real user, whatever its capabilities: so not our Python.
    program = ("--python", str(ANYBODYS_PYTHON), "--no-python", "true")
    other = clusterrun.command(*TWO, *program, workers=1, around=(*hosts[2].around, *as_nobody))

    text = f"10.77.0.2:29500 belongs to a job of user 0, {who(2, other)} runs as user 65534"
    all_fail_with([other], text, OWN_PORTS)
    refusal = f"{who(2, other)} at 10.77.0.4: it runs as user 65534, this job as user 0"
    succeed_after_refusal(first, nodes.start(1, *TWO), refusal)


def test_a_newer_member(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The member gets our version, and this job goes on waiting."""
    nodes = Nodes(clusterrun, hosts, DONE)
    first = nodes.start(0, *TWO)

    other = hosts[2].run(sys.executable, "-c", OTHER_VERSION, "M")

    assert other.out == "heard 48\n", other.err
    refusal = (
        "10.77.0.4: it speaks version 9 of clusterrun's protocol, but this clusterrun speaks"
        f" {VERSION}"
    )
    succeed_after_refusal(first, nodes.start(1, *TWO), refusal)


def test_a_newer_node_zero(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The member ends at once."""
    server = hosts[0].start(sys.executable, "-c", OTHER_VERSION, "C")
    server.wait_for("listening")
    nodes = Nodes(clusterrun, hosts, DONE)

    all_fail_with(
        [nodes.start(1, *TWO)],
        "node 0 at 10.77.0.2:29500 speaks version 9 of clusterrun's protocol, but this node speaks"
        f" version {VERSION}",
        "  install the same version of clusterrun on all nodes\n",
    )


@pytest.mark.parametrize(
    ("tokens", "told", "refused"),
    [
        (
            ("ours", "theirs"),
            "the job at 10.77.0.2:29500 has a different token from this node",
            "it has a different token",
        ),
        (
            ("ours", ""),
            "the job at 10.77.0.2:29500 has a token, but this node has none",
            "it has no token, but this job has one",
        ),
        (
            ("", "theirs"),
            "the job at 10.77.0.2:29500 has no token, but this node has one",
            "it has a token, but this job has none",
        ),
    ],
)
def test_a_wrong_token(
    hosts: tuple[Host, ...], clusterrun: Launcher, tokens: tuple[str, str], told: str, refused: str
) -> None:
    """The coordinator refuses the node, and this job goes on waiting."""
    secrets = (f"a secret of {token}" if token else "" for token in tokens)
    ours, theirs = ({"CLUSTERRUN_TOKEN": secret} if secret else {} for secret in secrets)
    nodes = Nodes(clusterrun, hosts, DONE)
    first = nodes.start(0, *TWO, environ=ours)

    all_fail_with([nodes.start(2, *TWO, environ=theirs)], told, SAME_PROOF)

    succeed_after_refusal(first, nodes.start(1, *TWO, environ=ours), f"10.77.0.4: {refused}")


def test_a_node_that_never_comes(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Every node that has joined names those that have not."""
    nodes = Nodes(clusterrun, hosts, DONE)
    jobs = [nodes.start(rank, *THREE, *SOON, "--node-rank", str(rank)) for rank in (0, 2)]

    all_fail_with(
        jobs,
        "2 of 3 nodes joined within 3 s: n0, n2; missing: node rank 1",
        "  run the same command on every node; each must reach 10.77.0.2:29500\n"
        "  to wait longer, give --rdzv-timeout SECONDS\n",
    )


@pytest.mark.parametrize(
    ("rank", "which"),
    [
        pytest.param((), "the machine with that address", marks=pytest.mark.long),
        (("--node-rank", "1"), "node 0 (--node-rank 0)"),
    ],
)
def test_a_node_zero_that_never_comes(
    hosts: tuple[Host, ...], clusterrun: Launcher, rank: tuple[str, ...], which: str
) -> None:
    """The others print where they tried to connect, and the error."""
    nodes = Nodes(clusterrun, hosts, DONE)

    [end] = ended([nodes.start(1, *TWO, *SOON, *rank)])

    assert end.code == 4
    assert end.err == error(
        "could not connect to node 0 at 10.77.0.2:29500 (--master-addr) within 3 s:"
        " connection refused",
        f"  start the same command on {which}\n"
        "  if it is already running there, a firewall may block the port, or the job has started without this"
        " node\n",
    )


def test_a_busy_port(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Node 0 names the program that has it; the others print that it is not clusterrun."""
    holder = hosts[0].start(sys.executable, "-c", HOLD_PORT)
    holder.wait_for("holding")
    nodes = Nodes(clusterrun, hosts, DONE)
    jobs = [nodes.start(number, *TWO, *SOON) for number in (0, 1)]

    ends = ended(jobs)

    name = re.escape(f"(pid {holder.agent})")
    assert codes(ends) == [4, 4]
    assert re.fullmatch(
        rf"clusterrun: error: port 29500 \(default\) is in use on n0 by \S+ {name}\n"
        r"  stop that program, or set another port on all nodes with --master-port\n",
        ends[0].err,
    )
    assert ends[1].err == error(
        "could not connect to node 0 at 10.77.0.2:29500 (--master-addr) within 3 s:"
        " another program answers there, not clusterrun",
        "  the port may be another program's: set another one on all nodes with --master-port\n"
        "  or the job has started without this node: check --nnodes\n",
    )


def test_an_unknown_name(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """A node with a rank and one without fail alike."""
    words = ("--nnodes", "3", "--master-addr", "nowhere", *SOON)
    nodes = Nodes(clusterrun, hosts, DONE)
    jobs = [nodes.start(0, *words), nodes.start(1, *words, "--node-rank", "1")]

    all_fail_with(
        jobs,
        "nowhere (--master-addr) did not resolve on this node within 3 s: name or service not known",
        "  set --master-addr to a host name that every node can resolve,"
        " or to node 0's IP address\n",
    )


def test_a_name_that_is_127_0_1_1_elsewhere(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """A node that resolves node 0's name to itself gets a hint to /etc/hosts."""
    hosts[1].set_hosts_file("127.0.0.1 localhost\n127.0.1.1 n0\n")
    nodes = Nodes(clusterrun, hosts, DONE)
    words = ("--nnodes", "2", "--master-addr", "n0", *SOON)
    jobs = [nodes.start(rank, *words, "--node-rank", str(rank)) for rank in (0, 1)]

    ends = ended(jobs)

    assert codes(ends) == [4, 4]
    assert [end.err for end in ends] == [
        error(
            "1 of 2 nodes joined within 3 s: n0; missing: node rank 1",
            "  run the same command on every node; each must reach n0:29500\n"
            "  to wait longer, give --rdzv-timeout SECONDS\n",
        ),
        error(
            "could not connect to node 0 at n0:29500 (--master-addr) within 3 s:"
            " 127.0.1.1 (this machine itself): connection refused",
            "  on this node n0 resolves to 127.0.1.1, which is this machine and not node 0:\n"
            "  correct /etc/hosts, or set --master-addr to node 0's IP address\n",
        ),
    ]


def test_other_arguments_are_a_warning(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Different arguments are ordinary; they do not leave their node."""
    nodes = Nodes(clusterrun, hosts, DONE)

    ends = ended(
        [nodes.start(0, *TWO, args=["--lr", "1"]), nodes.start(1, *TWO, args=["--lr", "2"])]
    )

    assert codes(ends) == [0, 0]
    assert [end.err for end in ends] == [
        "clusterrun: warning: not the same arguments on all nodes: n0 and n1 differ\n",
        "",
    ]
