"""Nodes join on loopback, each in a thread with real sockets and signals."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from clusterrun.errors import LauncherError, MachineError, RendezvousError
from clusterrun.network.addresses import Address, Interfaces
from clusterrun.network.joining_node import JoinContext
from clusterrun.planning.plan import World
from clusterrun.policy import events, messages, outcome
from clusterrun.policy.settings import RendezvousSettings
from clusterrun.policy.waiting import WaitResult
from clusterrun.signals import SignalReceived
from free_ports import free_port
from msgspec.structs import replace

from tests.network.nodes import (
    PATIENCE,
    EventInbox,
    Node,
    Notices,
    job_settings,
    join_context,
    listens,
    ranked_hello,
)
from tests.waiting import wait_until

# Agents have one thread; here each node is a thread, and a name is looked up in a fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

Joined = World | WaitResult

HERE = "0.0.0.0"  # noqa: S104 - no socket binds to it
"""Connections to it reach this machine, but no interface has it."""

NOWHERE = Address(socket.AF_INET, "240.0.0.1", 0)
"""A reserved address (RFC 1112, class E): connecting fails."""

OWNER: Interfaces = {"kube-ipvs0": (HERE,)}
"""The interfaces of a machine that has it. A connection to it ends at another address, as one to a
service does."""


class Nodes:
    """Nodes that join at the same time."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(16)
        self._all: list[Future[Joined]] = []
        self._members: list[Node] = []

    def join(
        self,
        settings: RendezvousSettings,
        introduction: messages.Hello,
        where: JoinContext | None = None,
        token: bytes = b"",
        *,
        inbox: EventInbox | None = None,
    ) -> Future[Joined]:
        """Let one node join."""
        run_id = introduction.run_id or settings.job.join.run_id
        joining = replace(settings.job.join, run_id=run_id)
        settings = replace(settings, job=replace(settings.job, join=joining))

        def join() -> Joined:
            node = Node(settings, introduction, token, where, inbox=inbox)
            self._members.append(node)
            try:
                return node.join()
            except LauncherError:
                node.leave()
                raise

        future = self._executor.submit(join)
        self._all.append(future)
        return future

    def close(self) -> None:
        """Let all leave, the first one last."""
        for future in self._all:
            future.exception(PATIENCE)
        for node in reversed(self._members):
            node.leave()
        self._executor.shutdown()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Return nodes that leave at the end."""
    made = Nodes()
    yield made
    made.close()


def world(future: Future[Joined]) -> World:
    """Return the world of a node that has joined."""
    joined = future.result(PATIENCE)
    assert isinstance(joined, World)
    return joined


def error(future: Future[Joined]) -> RendezvousError:
    """Return why a node could not join."""
    with pytest.raises(RendezvousError) as caught:
        future.result(PATIENCE)
    return caught.value


def test_rankless_owner_of_the_address_is_node_zero(nodes: Nodes) -> None:
    """Of several agents on that machine, the first one that gets the port."""
    settings = job_settings(free_port(), 4)
    futures = [nodes.join(settings, ranked_hello(number, rank=None)) for number in range(4)]

    worlds = [world(future) for future in futures]

    assert sorted(each.node_rank for each in worlds) == [0, 1, 2, 3]


def test_nodes_join_by_ipv6(nodes: Nodes) -> None:
    """MASTER_ADDR has no brackets."""
    settings = job_settings(free_port(), host="::1")
    futures = [nodes.join(settings, ranked_hello(number)) for number in range(2)]

    assert [world(future).master_addr for future in futures] == ["::1", "::1"]


def test_nodes_join_by_a_name(nodes: Nodes) -> None:
    """Its first address may be of a different family, because node 0 listens on all."""
    settings = job_settings(free_port(), host="localhost")
    futures = [nodes.join(settings, ranked_hello(number)) for number in range(2)]

    assert {world(future).node_rank for future in futures} == {0, 1}


@pytest.mark.parametrize("dead_one_first", [True, False])
def test_master_addr_is_the_address_that_answered(nodes: Nodes, *, dead_one_first: bool) -> None:
    """If a different address of the name does not answer, for which libraries may wait long."""
    settings = job_settings(free_port(), host="head")

    def resolve(_: str) -> tuple[Address, ...]:
        here = Address(socket.AF_INET, "127.0.0.1", 0)
        return (NOWHERE, here) if dead_one_first else (here, NOWHERE)

    futures = [
        nodes.join(settings, ranked_hello(number), join_context(resolve=resolve))
        for number in range(2)
    ]

    # Node 0's own workers get what its check finds, and it may not have finished.
    assert world(futures[1]).master_addr == "127.0.0.1"


def test_name_with_one_address_is_master_addr(nodes: Nodes) -> None:
    settings = job_settings(free_port(), host="head")

    def resolve(_: str) -> tuple[Address, ...]:
        return (Address(socket.AF_INET, "127.0.0.1", 0),)

    futures = [
        nodes.join(settings, ranked_hello(number), join_context(resolve=resolve))
        for number in range(2)
    ]

    assert [world(future).master_addr for future in futures] == ["head"] * 2


def test_world_has_the_interface_to_the_other_nodes(nodes: Nodes) -> None:
    """On one machine it is the loopback interface."""
    settings = job_settings(free_port())
    futures = [nodes.join(settings, ranked_hello(number)) for number in range(2)]

    assert [world(future).interface for future in futures] == ["lo", "lo"]


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


def test_only_the_node_that_disagrees_is_refused(nodes: Nodes) -> None:
    """Node 0 prints it and waits for another node, here the same one with the right command."""
    port, notices = free_port(), Notices()
    one = nodes.join(job_settings(port, 2), ranked_hello(0), join_context(notices))
    other = nodes.join(job_settings(port, 3), ranked_hello(1, must={"nnodes": "3"}))
    refused = error(other)
    again = nodes.join(job_settings(port, 2), ranked_hello(1))

    assert refused.message == "nnodes is 2 on n0, 3 on n1"
    assert refused.hint == "run the same command on every node, each with its own --node-rank"
    assert {world(future).node_rank for future in (one, again)} == {0, 1}
    assert notices == [f"refused n1 (pid 11) at 127.0.0.1: {refused.message}"]


def test_other_program_on_the_port_is_reported(nodes: Nodes) -> None:
    """Node 0 names it; a member prints that it is not clusterrun."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        of_zero = error(nodes.join(job_settings(port), ranked_hello(0)))
        of_member = nodes.join(job_settings(port, rdzv_timeout=1.0), ranked_hello(1))
        while not of_member.done():
            server.settimeout(1)
            try:
                server.accept()[0].close()
            except TimeoutError:
                break
        message = error(of_member).message

    assert of_zero.message.endswith(f"(pid {os.getpid()})")
    assert message.endswith("another program answers there, not clusterrun")


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


@pytest.mark.parametrize("number", [2, 15, 1])
def test_signal_to_member_ends_its_wait(nodes: Nodes, number: int) -> None:
    """The other nodes still wait."""
    inbox, notices = EventInbox(), Notices()
    settings = job_settings(free_port(), 3)
    first = nodes.join(settings, ranked_hello(0), join_context(notices))
    second = nodes.join(settings, ranked_hello(1), inbox=inbox)
    inbox.put(SignalReceived(10, 0.0))
    inbox.put(SignalReceived(number, 0.0))

    assert second.result(PATIENCE) == outcome.Interrupted(number)
    for other in (1, 2):
        nodes.join(settings, ranked_hello(other))
    assert world(first).nodes == 3


def test_signal_to_node_zero_ends_the_wait_of_all(nodes: Nodes) -> None:
    """The job can't start without node 0."""
    inbox = EventInbox()
    settings = job_settings(free_port(), 3)
    second = nodes.join(settings, ranked_hello(1))
    first = nodes.join(settings, ranked_hello(0), inbox=inbox)
    with pytest.raises(TimeoutError):
        second.result(0.3)
    inbox.put(SignalReceived(2, 0.0))

    assert first.result(PATIENCE) == outcome.Interrupted(2)
    assert error(second).message == "n0 (node 0) got SIGINT while it waited for other nodes"


def test_loss_of_helper_process_ends_the_wait(nodes: Nodes) -> None:
    """On a member only its own; on node 0 that of all."""
    lost = events.HelperLost("relay", "was killed by SIGKILL", 9, 0.0)
    inboxes = [EventInbox(), EventInbox()]
    settings = job_settings(free_port(), 4)
    first, second = (
        nodes.join(settings, ranked_hello(number), inbox=inbox)
        for number, inbox in enumerate(inboxes)
    )
    third = nodes.join(settings, ranked_hello(2))
    inboxes[1].put(lost)
    alone = second.result(PATIENCE)
    with pytest.raises(TimeoutError):
        third.result(0.3)
    inboxes[0].put(lost)

    assert (
        alone == first.result(PATIENCE) == outcome.HelperFailed("relay", "was killed by SIGKILL", 9)
    )
    assert error(third).message == (
        "the relay of n0 (node 0) was killed by SIGKILL while it waited for other nodes"
    )


def test_node_zero_that_fails_tells_all_members(nodes: Nodes) -> None:
    """Its fork server has failed while the others joined."""

    class Failing(EventInbox):
        def events(self, now: float) -> list[events.Event]:
            if super().events(now):
                raise MachineError("no PID namespace")
            return []

    inbox, settings = Failing(), job_settings(free_port(), 3)
    second = nodes.join(settings, ranked_hello(1))
    first = nodes.join(settings, ranked_hello(0), inbox=inbox)
    with pytest.raises(TimeoutError):
        second.result(0.3)
    inbox.put(SignalReceived(2, 0.0))

    with pytest.raises(MachineError):
        first.result(PATIENCE)
    assert error(second).message == "n0 (node 0) can't begin: no PID namespace"


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
