"""Errors of nodes that can't be one job: the exact text on every node."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.launched import Job, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended

SAME_COMMAND = "  run the same command on every node, each with its own --node-rank\n"
OWN_RANKS = "  give each node its own --node-rank\n"
SAME_KEY = (
    "  set the same CLUSTERRUN_TOKEN or --token-file on all nodes\n"
    "  or, if another job uses that port, give each job its own port with --master-port\n"
)
OWN_PORTS = "  if these are two jobs, give each its own --master-port\n"

PRINT_DONE = "print('done')"

MASTER_ADDR = ("--master-addr", "10.77.0.2")

TWO = ("--nnodes", "2", *MASTER_ADDR)

THREE = ("--nnodes", "3", *MASTER_ADDR)

SHORT_TIMEOUT = ("--rdzv-timeout", "3")

ANY_USERS_PYTHON = Path("/usr/bin/python3")

USE_PORT = """
import socket
server = socket.create_server(("", 29500))
print("listening", flush=True)
while True:
    server.accept()[0].close()
"""


def error(text: str, hint: str = "") -> str:
    return f"clusterrun: error: {text}\n{hint}"


def name_of(number: int, job: Job) -> str:
    """Return how messages name a node."""
    return f"n{number} (pid {job.agent})"


def all_fail_with(jobs: Sequence[Job], text: str, hint: str = "") -> None:
    """Check that every node ends with this error, and long before the timeout."""
    ends = ended(jobs)

    assert [end.err for end in ends] == [error(text, hint)] * len(jobs)
    assert codes(ends) == [4] * len(jobs)
    assert [end.out for end in ends] == [""] * len(jobs)


def succeed_after_refusal(first: Job, last: Job, refusal: str) -> None:
    """Check that the job succeeds after node 0 has refused a node."""
    ends = ended([first, last])

    assert [end.err for end in ends] == [f"clusterrun: refused {refusal}\n", ""]
    assert [(end.code, end.out) for end in ends] == [(0, "done\n")] * 2


@dataclass(frozen=True)
class Refused:
    """A node that node 0 refuses: its options and variable, its error, and node 0's notice.

    In texts, {zero} and {other} are the names of the two nodes.
    """

    text: str
    hint: str
    notice: str
    zero: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ("", "")


REFUSED = {
    "rank 0 twice": Refused(
        text="two nodes have node rank 0: {zero} and {other}",
        hint=OWN_RANKS,
        notice="{other} at 10.77.0.3: two nodes have node rank 0: {zero} and {other}",
        zero=("--node-rank", "0"),
        other=("--node-rank", "0"),
    ),
    "rank 0 without its address": Refused(
        text="{other} has node rank 0, but 10.77.0.2:29500 is an address of {zero}",
        hint="  give --node-rank 0 to the machine that --master-addr names\n",
        notice=(
            "{other} at 10.77.0.3: {other} has node rank 0, but 10.77.0.2:29500 is an address of"
            " {zero}"
        ),
        other=("--node-rank", "0"),
    ),
    "different run id": Refused(
        text='10.77.0.2:29500 belongs to another job: its run id is "one", that of {other} is "two"',
        hint=OWN_PORTS,
        notice='{other} at 10.77.0.3: it belongs to another job, run id "two"',
        zero=("--run-id", "one"),
        other=("--run-id", "two"),
    ),
    "different token": Refused(
        text="the job at 10.77.0.2:29500 has a different token from this node",
        hint=SAME_KEY,
        notice="10.77.0.3: it has a different token",
        tokens=("a secret of ours", "a secret of theirs"),
    ),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_node_is_refused_alone(
    refused: Refused, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """The job waits for another node, and succeeds with it."""
    of_zero, of_other = ({"CLUSTERRUN_TOKEN": token} if token else {} for token in refused.tokens)
    nodes = Nodes(clusterrun, hosts, PRINT_DONE)
    first = nodes.start(0, *TWO, *refused.zero, environ=of_zero)
    other = nodes.start(1, *TWO, *refused.other, environ=of_other)
    names = {"zero": name_of(0, first), "other": name_of(1, other)}

    all_fail_with([other], refused.text.format(**names), refused.hint)

    run_id = refused.zero if "--run-id" in refused.zero else ()
    last = nodes.start(2, *TWO, *run_id, "--node-rank", "1", environ=of_zero)
    succeed_after_refusal(first, last, refused.notice.format(**names))


def test_different_nnodes_end_all_nodes_with_token(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    nodes = Nodes(clusterrun, hosts, PRINT_DONE)
    token = {"CLUSTERRUN_TOKEN": "a secret of ours"}
    jobs = [
        nodes.start(0, *TWO, environ=token),
        nodes.start(1, *THREE, "--node-rank", "1", environ=token),
    ]

    all_fail_with(jobs, "nnodes is 2 on n0, 3 on n1", SAME_COMMAND)


def test_node_after_all_have_joined_is_refused(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """With --rdzv-endpoint, node 0 still listens."""
    nodes = Nodes(clusterrun, hosts, "import signal\nprint('up', flush=True)\nsignal.pause()")
    options = ("--nnodes", "2", "--rdzv-endpoint", "10.77.0.2:29400")
    jobs = [nodes.start(number, *options) for number in (0, 1)]
    for job in jobs:
        job.wait_for("up")

    late = nodes.start(2, *options)

    all_fail_with([late], "the job at 10.77.0.2:29400 has all its 2 nodes: n0, n1")
    jobs[0].wait_for(rf"refused n2 \(pid {late.agent}\) at 10.77.0.4: all 2 nodes have joined\n")


@pytest.mark.needs("setpriv")
@pytest.mark.skipif(not ANY_USERS_PYTHON.exists(), reason="needs a Python that any user can run")
def test_node_of_another_user_is_refused_alone(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    # It may read root's files: the interpreter and the test's folder may be root's.
    able = ("--inh-caps", "+dac_override", "--ambient-caps", "+dac_override")
    as_nobody = ("setpriv", "--reuid", "65534", "--clear-groups", *able)
    nodes = Nodes(clusterrun, hosts, PRINT_DONE)
    first = nodes.start(0, *TWO)

    # access(2) checks the real user, whatever its capabilities: so not our Python.
    program = ("--python", str(ANY_USERS_PYTHON), "--no-python", "true")
    other = clusterrun.command(*TWO, *program, workers=1, around=(*hosts[2].around, *as_nobody))

    text = f"10.77.0.2:29500 belongs to a job of user 0, {name_of(2, other)} runs as user 65534"
    all_fail_with([other], text, OWN_PORTS)
    refusal = f"{name_of(2, other)} at 10.77.0.4: it runs as user 65534, this job as user 0"
    succeed_after_refusal(first, nodes.start(1, *TWO), refusal)


def test_missing_node_is_named_by_all_others(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    nodes = Nodes(clusterrun, hosts, PRINT_DONE)
    jobs = [nodes.start(rank, *THREE, *SHORT_TIMEOUT, "--node-rank", str(rank)) for rank in (0, 2)]

    all_fail_with(
        jobs,
        "2 of 3 nodes joined within 3 s: n0, n2; missing: node rank 1",
        "  run the same command on every node; each must reach 10.77.0.2:29500\n"
        "  to wait longer, give --rdzv-timeout SECONDS\n",
    )


def test_missing_node_zero_times_out(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    nodes = Nodes(clusterrun, hosts, PRINT_DONE)

    all_fail_with(
        [nodes.start(1, *TWO, *SHORT_TIMEOUT, "--node-rank", "1")],
        "could not connect to node 0 at 10.77.0.2:29500 (--master-addr) within 3 s:"
        " connection refused",
        "  start the same command on node 0 (--node-rank 0)\n"
        "  if it is already running there, a firewall may block the port, or the job has started without this"
        " node\n",
    )


def test_other_program_on_port_is_named(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Node 0 names it; the others print that it is not clusterrun."""
    server = hosts[0].start(sys.executable, "-c", USE_PORT)
    server.wait_for("listening")
    nodes = Nodes(clusterrun, hosts, PRINT_DONE)
    jobs = [nodes.start(number, *TWO, *SHORT_TIMEOUT) for number in (0, 1)]

    ends = ended(jobs)

    pid = re.escape(f"(pid {server.agent})")
    assert codes(ends) == [4, 4]
    assert re.fullmatch(
        rf"clusterrun: error: port 29500 \(default\) is in use on n0 by \S+ {pid}\n"
        r"  stop that program, or set another port on all nodes with --master-port\n",
        ends[0].err,
    )
    assert ends[1].err == error(
        "could not connect to node 0 at 10.77.0.2:29500 (--master-addr) within 3 s:"
        " another program answers there, not clusterrun",
        "  the port may be another program's: set another one on all nodes with --master-port\n"
        "  or the job has started without this node: check --nnodes\n",
    )


def test_name_of_node_zero_that_resolves_to_127_0_1_1(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """The other node gets a hint to /etc/hosts."""
    hosts[1].set_hosts_file("127.0.0.1 localhost\n127.0.1.1 n0\n")
    nodes = Nodes(clusterrun, hosts, PRINT_DONE)
    options = ("--nnodes", "2", "--master-addr", "n0", *SHORT_TIMEOUT)
    jobs = [nodes.start(rank, *options, "--node-rank", str(rank)) for rank in (0, 1)]

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


def test_different_arguments_are_a_warning(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The arguments themselves are not sent to other nodes."""
    nodes = Nodes(clusterrun, hosts, PRINT_DONE)
    jobs = [nodes.start(number, *TWO, args=["--lr", str(number)]) for number in (0, 1)]

    ends = ended(jobs)

    assert codes(ends) == [0, 0]
    assert [end.err for end in ends] == [
        "clusterrun: warning: not the same arguments on all nodes: n0 and n1 differ\n",
        "",
    ]
