"""The notices and errors of a node that can't connect to node 0."""

import pytest
from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.job.declarations import Setting
from clusterrun.job.job import TaskLayout
from clusterrun.network.addresses import Address, numeric_address
from clusterrun.network.handshake import Fault, HandshakeFailed
from clusterrun.network.join_failures import (
    NOT_CLUSTERRUN,
    DialProgress,
    connect_timeout_error,
    handshake_error,
    node_zero_silent_error,
    still_connecting_notice,
)
from clusterrun.policy.settings import RendezvousSettings
from msgspec.structs import replace

from tests.network.nodes import job_settings

TO_NAME = job_settings(29500, host="head", rdzv_timeout=600.0)
(V6,) = numeric_address("fd00::1")
FIREWALL = (
    "start the same command on {}\n"
    "if it is already running there, a firewall may block the port, or the job has started without this node"
)


def progress(**troubles: str) -> DialProgress:
    """Return what is wrong with addresses (``_`` for a dot), all at port 29500."""
    found: dict[tuple[Address, int], str] = {}
    for text, trouble in troubles.items():
        (address,) = numeric_address(text.strip("a").replace("_", "."))
        found[address, 29500] = trouble
    return DialProgress(tuple(address for address, _ in found), "", found)


NOT_YET = "can't connect to node 0 at {} (--master-addr) yet:"
NOT_HEAD = NOT_YET.format("head:29500")


@pytest.mark.parametrize(
    ("settings", "met", "text"),
    [
        (
            TO_NAME,
            DialProgress((), "name or service not known", {}),
            "head (--master-addr) does not resolve yet: name or service not known",
        ),
        (
            TO_NAME,
            progress(a10_0_0_1="connection refused"),
            f"{NOT_HEAD} 10.0.0.1: connection refused",
        ),
        (
            TO_NAME,
            progress(a10_0_0_1="connection refused", a10_0_0_2="no answer within 3 s"),
            f"{NOT_HEAD} 10.0.0.1: connection refused, 10.0.0.2: no answer within 3 s",
        ),
        (
            TO_NAME,
            progress(a127_0_1_1="connection refused"),
            f"{NOT_HEAD} 127.0.1.1 (this machine itself): connection refused",
        ),
        (
            TO_NAME,
            DialProgress(numeric_address("10.0.0.1"), "", {}),
            f"{NOT_HEAD} no answer yet",
        ),
        # An address that was given as such is not repeated.
        (
            job_settings(29500, host="10.0.0.1"),
            progress(a10_0_0_1="connection refused"),
            f"{NOT_YET.format('10.0.0.1:29500')} connection refused",
        ),
        # Of several ports each has its own trouble, and an IPv6 address its brackets.
        (
            job_settings((1, 2), host="fd00::1"),
            DialProgress((V6,), "", {(V6, 1): "connection refused", (V6, 2): "no answer"}),
            f"{NOT_YET.format('[fd00::1]:1')} [fd00::1]:1: connection refused, [fd00::1]:2: no answer",
        ),
    ],
)
def test_notice_has_the_error_of_each_address(
    settings: RendezvousSettings, met: DialProgress, text: str
) -> None:
    assert still_connecting_notice(settings, met, "30 s of 600 s") == f"{text} (30 s of 600 s)"


def test_unknown_name_is_reported_with_its_origin() -> None:
    error = connect_timeout_error(TO_NAME, DialProgress((), "name or service not known", {}), 1)

    assert error.message == (
        "head (--master-addr) did not resolve on this node within 600 s: name or service not known"
    )
    assert error.hint == (
        "set --master-addr to a host name that every node can resolve, or to node 0's IP address"
    )
    assert error.exit_code == 4


@pytest.mark.parametrize(
    ("rank", "which"), [(1, "node 0 (--node-rank 0)"), (None, "the machine with that address")]
)
def test_timeout_error_lists_addresses_and_remedies(rank: int | None, which: str) -> None:
    error = connect_timeout_error(TO_NAME, progress(a10_0_0_1="connection refused"), rank)

    assert error.message == (
        "could not connect to node 0 at head:29500 (--master-addr) within 600 s:"
        " 10.0.0.1: connection refused"
    )
    assert error.hint == FIREWALL.format(which)


def test_hints_for_tasks_do_not_mention_node_rank() -> None:
    """The scheduler sets each task's rank and starts them."""
    tasks = TaskLayout(
        rank=GlobalRank(1),
        size=4,
        local_rank=LocalRank(1),
        local_size=2,
        node_rank=NodeRank(0),
        nodes=2,
        all_tasks="srun -n 4 clusterrun ...",
    )
    settings = job_settings(29500, nodes=4, host="head", rdzv_timeout=600.0, tasks=tasks)
    local = replace(settings, host=Setting("127.0.0.1", "MASTER_ADDR"))

    error = connect_timeout_error(settings, progress(a10_0_0_1="connection refused"), 1)

    assert error.message.startswith("could not connect to task 0 at head:29500")
    assert error.hint == FIREWALL.replace("node", "task").replace(
        "start the same command on {}", "start all tasks at once:\n  srun -n 4 clusterrun ..."
    )
    assert connect_timeout_error(settings, progress(a10_0_0_1=NOT_CLUSTERRUN), 1).hint.endswith(
        "or the job has started without this task: check srun -n 4 clusterrun ..."
    )
    assert connect_timeout_error(local, progress(a127_0_0_1="connection refused"), 1).hint == (
        "127.0.0.1 is this machine, but task 0 does not run on it:\n"
        "set --master-addr to the address of task 0's machine"
    )


def test_name_that_resolves_to_this_machine_has_a_hint() -> None:
    """Debian's /etc/hosts has such an entry for the host's own name."""
    error = connect_timeout_error(TO_NAME, progress(a127_0_1_1="connection refused"), 1)

    assert error.hint == (
        "on this node head resolves to 127.0.1.1, which is this machine and not node 0:\n"
        "correct /etc/hosts, or set --master-addr to node 0's IP address"
    )


def test_other_program_has_a_hint() -> None:
    """It may be the store of a job that has all its nodes."""
    error = connect_timeout_error(TO_NAME, progress(a10_0_0_1=NOT_CLUSTERRUN), 1)

    assert error.message.endswith("10.0.0.1: another program answers there, not clusterrun")
    assert error.hint.endswith("check --nnodes")


RELAYED = "node 0 at n0:29500 is reached through another program on its host: that program listens on the port and forwards the connection"


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (
            HandshakeFailed(Fault.OTHER_VERSION, 7),
            "node 0 at n0:29500 speaks version 7 of clusterrun's protocol, but this node speaks version 6",
        ),
        (
            HandshakeFailed(Fault.HAS_A_TOKEN),
            "the job at n0:29500 has a token, but this node has none",
        ),
        (
            HandshakeFailed(Fault.HAS_NO_TOKEN),
            "the job at n0:29500 has no token, but this node has one",
        ),
        (
            HandshakeFailed(Fault.WRONG_TOKEN),
            "the job at n0:29500 has a different token from this node",
        ),
        (
            HandshakeFailed(Fault.RELAYED),
            RELAYED,
        ),
    ],
)
def test_failed_handshake_is_an_error(failure: HandshakeFailed, text: str) -> None:
    """A retry would not help."""
    error = handshake_error(job_settings(29500, host="n0"), failure)

    assert error is not None
    assert error.message == text
    assert error.hint.endswith(("on all nodes", "port with --master-port"))


def test_hints_name_the_option_that_set_the_port() -> None:
    origin = "CLUSTERRUN_RDZV_ENDPOINT"
    of_job = job_settings(29400, host="head", at_endpoint=True)
    at_endpoint = replace(of_job, host=Setting("head", origin), ports=Setting((29400,), origin))
    refused = handshake_error(at_endpoint, HandshakeFailed(Fault.WRONG_TOKEN))
    unknown = connect_timeout_error(at_endpoint, DialProgress((), "", {}), 1)
    other_program = connect_timeout_error(at_endpoint, progress(a10_0_0_1=NOT_CLUSTERRUN), 1)

    assert refused is not None
    assert refused.hint.endswith("its own port with --rdzv-endpoint")
    assert unknown.hint.startswith("set --rdzv-endpoint to a host name")
    assert "on all nodes with --rdzv-endpoint\n" in other_program.hint


def test_other_program_is_not_a_final_error() -> None:
    """A job that ends frees its port."""
    assert (
        handshake_error(job_settings(29500, host="n0"), HandshakeFailed(Fault.NOT_CLUSTERRUN))
        is None
    )


def test_silent_node_zero_is_an_error() -> None:
    """It froze while it waited."""
    assert node_zero_silent_error(TO_NAME).message == (
        "node 0 at head:29500 (--master-addr) stopped responding before all nodes had joined"
    )


@pytest.mark.parametrize(
    "met", [DialProgress((), "name or service not known", {}), progress(a10_0_0_1="no answer")]
)
def test_stale_exports_are_named(met: DialProgress) -> None:
    """In notices and in errors."""
    settings = job_settings(29500, host="head", exports=("RANK",))

    assert still_connecting_notice(settings, met, "5 s of 600 s").endswith(f"; {settings.exports}")
    assert connect_timeout_error(settings, met, 1).hint.startswith(
        f"if this is one node: {settings.exports}\n"
    )
