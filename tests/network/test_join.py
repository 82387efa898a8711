"""Nodes join on loopback, each in a thread with real sockets and signals."""

import socket
from collections.abc import Sequence

import pytest
from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.errors import LauncherError, MachineError
from clusterrun.job.job import TaskLayout
from clusterrun.network.addresses import Address, Interfaces
from clusterrun.policy import events, outcome
from clusterrun.signals import SignalReceived
from free_ports import free_port

from tests.network.nodes import (
    PATIENCE,
    EventInbox,
    Notices,
    job_settings,
    join_context,
    listens,
    ranked_hello,
)
from tests.network.threads import NAMES_ARE_LOOKED_UP_IN_FORKS, Nodes, error, world
from tests.waiting import wait_until

pytestmark = NAMES_ARE_LOOKED_UP_IN_FORKS

HERE = "0.0.0.0"  # noqa: S104 - no socket binds to it
"""Connections to it reach this machine, but no interface has it."""

LIVING = Address(socket.AF_INET, "127.0.0.1", 0)
NOWHERE = Address(socket.AF_INET, "240.0.0.1", 0)
"""A reserved address (RFC 1112, class E): connecting fails."""

OWNER: Interfaces = {"kube-ipvs0": (HERE,)}
"""The interfaces of a machine that has it. A connection to it ends at another address, as one to a
service does."""


def test_rankless_owner_of_the_address_is_node_zero(nodes: Nodes) -> None:
    """Of several agents on that machine, the first one that gets the port."""
    settings = job_settings(free_port(), 4)
    futures = [nodes.join(settings, ranked_hello(number, rank=None)) for number in range(4)]

    worlds = [world(future) for future in futures]

    assert sorted(each.node_rank for each in worlds) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("host", "addresses", "master_addr"),
    [
        # MASTER_ADDR has no brackets.
        ("::1", None, {"::1"}),
        # The name's first address may be of a different family: node 0 listens on all.
        ("localhost", None, {"localhost", "127.0.0.1", "::1"}),
        ("head", (LIVING,), {"head"}),
        # An address that does not answer would make libraries wait long.
        ("head", (NOWHERE, LIVING), {"127.0.0.1"}),
        ("head", (LIVING, NOWHERE), {"127.0.0.1"}),
    ],
    ids=["IPv6", "localhost", "a name", "a dead address first", "a dead address last"],
)
def test_nodes_join_by_address_or_name(
    nodes: Nodes, host: str, addresses: Sequence[Address] | None, master_addr: set[str]
) -> None:
    """Their interface to each other is the loopback interface, as all are on one machine."""
    where = None if addresses is None else join_context(resolve=lambda _: tuple(addresses))
    settings = job_settings(free_port(), host=host)
    worlds = [
        world(each)
        for each in [nodes.join(settings, ranked_hello(number), where) for number in (0, 1)]
    ]

    assert [each.node_rank for each in worlds] == [0, 1]
    assert {each.interface for each in worlds} == {"lo"}
    # Node 0's own workers get what its check finds, and it may not have finished.
    assert worlds[1].master_addr in master_addr


def test_different_token_is_an_error_on_both_sides(nodes: Nodes) -> None:
    """The node with the wrong one ends at once; node 0 still waits for the right one."""
    settings = job_settings(free_port())
    address = f"127.0.0.1:{settings.ports.value[0]}"
    notices = Notices()
    first = nodes.join(settings, ranked_hello(0), join_context(notices), b"right")
    for token, why in ((b"wrong", "a different token from"), (b"", "a token")):
        refused = error(nodes.join(settings, ranked_hello(1), token=token))
        assert refused.message.startswith(f"the job at {address} has {why}")
    nodes.join(settings, ranked_hello(1), token=b"right")

    assert world(first).nodes == 2
    assert notices == [
        "refused 127.0.0.1: it has a different token",
        "refused 127.0.0.1: it has no token, but this job has one",
    ]


def test_members_try_the_ports_in_order(nodes: Nodes) -> None:
    """The first is used by a different program, the second by a different job, the third is free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        first, second, third = server.getsockname()[1], free_port(), free_port()
        other = nodes.join(job_settings(second), ranked_hello(0, run_id="other"))
        wait_until(lambda: listens(second))
        settings = job_settings((first, second, third))
        futures = [
            nodes.join(
                settings, ranked_hello(n, run_id="mine"), join_context(seconds_to_answer=0.3)
            )
            for n in (0, 1)
        ]

        worlds = [world(future) for future in futures]
        nodes.join(job_settings(second), ranked_hello(1, run_id="other"))

    assert {each.master_port for each in worlds} == {third}
    assert world(other).master_port == second


def test_job_at_loopback_listens_only_there(nodes: Nodes) -> None:
    port = free_port()
    futures = [nodes.join(job_settings(port), ranked_hello(0))]
    wait_until(lambda: listens(port))
    closed = not listens(port, "127.0.0.2")
    futures.append(nodes.join(job_settings(port), ranked_hello(1)))

    assert closed
    assert {world(future).node_rank for future in futures} == {0, 1}


RELAY_LOST = events.HelperLost("relay", "was killed by SIGKILL", 9, 0.0)
RELAY_FAILED = outcome.HelperFailed("relay", "was killed by SIGKILL", 9)


@pytest.mark.parametrize(
    ("event", "end"),
    [(SignalReceived(15, 0.0), outcome.Interrupted(15)), (RELAY_LOST, RELAY_FAILED)],
)
def test_event_on_member_ends_its_wait(nodes: Nodes, event: events.Event, end: object) -> None:
    """The other nodes still wait."""
    inbox = EventInbox()
    settings = job_settings(free_port(), 3)
    first = nodes.join(settings, ranked_hello(0))
    second = nodes.join(settings, ranked_hello(1), inbox=inbox)
    inbox.put(SignalReceived(10, 0.0))
    inbox.put(event)

    assert second.result(PATIENCE) == end
    for other in (1, 2):
        nodes.join(settings, ranked_hello(other))
    assert world(first).nodes == 3


class Failing(EventInbox):
    """Raises an error in place of the event that a test puts in."""

    def events(self, now: float) -> list[events.Event]:
        if super().events(now):
            raise MachineError("no PID namespace")
        return []


@pytest.mark.parametrize(
    ("inbox", "event", "end", "text"),
    [
        (
            *(EventInbox, SignalReceived(2, 0.0), outcome.Interrupted(2)),
            "n0 (node 0) got SIGINT while it waited for other nodes",
        ),
        (
            *(EventInbox, RELAY_LOST, RELAY_FAILED),
            "the relay of n0 (node 0) was killed by SIGKILL while it waited for other nodes",
        ),
        # Its fork server has failed while the others joined.
        (
            *(Failing, SignalReceived(2, 0.0), MachineError),
            "n0 (node 0) can't begin: no PID namespace",
        ),
    ],
    ids=["signal", "lost helper", "failure"],
)
def test_event_on_node_zero_ends_the_wait_of_all(
    nodes: Nodes, inbox: type[EventInbox], event: events.Event, end: object, text: str
) -> None:
    """The job can't start without node 0."""
    settings, own = job_settings(free_port(), 3), inbox()
    second = nodes.join(settings, ranked_hello(1))
    first = nodes.join(settings, ranked_hello(0), inbox=own)
    with pytest.raises(TimeoutError):
        second.result(0.3)
    own.put(event)

    failure = first.exception(PATIENCE)
    assert end == (type(failure) if isinstance(failure, LauncherError) else first.result())
    assert error(second).message == text


@pytest.mark.parametrize("token", [b"", b"secret"])
def test_second_node_zero_is_refused(nodes: Nodes, token: bytes) -> None:
    """The one that does not have the address connects to it; with a token both end."""
    port, notices = free_port(), Notices()
    owner = join_context(notices, interfaces=OWNER)
    one = nodes.join(job_settings(port, host=HERE), ranked_hello(0), owner, token)
    wait_until(lambda: listens(port))
    # Another machine would have the port for itself.
    settings = job_settings((port, free_port()), host=HERE)
    second = join_context(interfaces={})
    refused = error(nodes.join(settings, ranked_hello(1, rank=0), second, token))

    assert refused.message == "two nodes have node rank 0: n0 (pid 10) and n1 (pid 11)"
    assert refused.hint == "give each node its own --node-rank"
    if token:
        assert (error(one).message, error(one).hint) == (refused.message, refused.hint)
    else:
        nodes.join(job_settings(port, host=HERE), ranked_hello(1))
        assert world(one).nodes == 2
        assert notices == [f"refused n1 (pid 11) at 127.0.0.1: {refused.message}"]


def test_node_zero_behind_a_service_address_ignores_itself(nodes: Nodes) -> None:
    settings, notices = job_settings(free_port(), host=HERE), Notices()
    first = nodes.join(settings, ranked_hello(0), join_context(notices, interfaces={}))
    with pytest.raises(TimeoutError):
        first.result(0.3)
    second = nodes.join(settings, ranked_hello(1))

    assert {world(future).node_rank for future in (first, second)} == {0, 1}
    assert notices == []


def test_node_zero_of_different_job_is_not_a_duplicate(nodes: Nodes) -> None:
    """The node that now has the address has a different run id."""
    port, notices = free_port(), Notices()
    other = ranked_hello(1, run_id="other")
    first = nodes.join(job_settings(port, host=HERE), ranked_hello(0, run_id="one"))
    wait_until(lambda: listens(port))
    settings = job_settings((port, free_port()), host=HERE)
    zero = ranked_hello(2, rank=0, run_id="other")
    second = nodes.join(settings, zero, join_context(notices, interfaces={}))
    nodes.join(settings, other)
    nodes.join(job_settings(port, host=HERE), ranked_hello(1, run_id="one"))

    assert {world(future).run_id for future in (first, second)} == {"one", "other"}


def test_error_of_task_names_task_zero(nodes: Nodes) -> None:
    """The tasks of a scheduler have no node rank 0 to look for."""
    tasks = TaskLayout(
        rank=GlobalRank(0),
        size=3,
        local_rank=LocalRank(0),
        local_size=3,
        node_rank=NodeRank(0),
        nodes=1,
        all_tasks="srun -n 3 clusterrun ...",
    )
    inbox = EventInbox()
    settings = job_settings(free_port(), 3, tasks=tasks)
    second = nodes.join(settings, ranked_hello(1))
    nodes.join(settings, ranked_hello(0), inbox=inbox)
    with pytest.raises(TimeoutError):
        second.result(0.3)
    inbox.put(SignalReceived(2, 0.0))

    assert error(second).message == "n0 (task 0) got SIGINT while it waited for other tasks"
