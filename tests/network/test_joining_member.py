"""Members that join: late names, dead addresses, different programs on the port."""

import socket
import time
from contextlib import ExitStack, closing
from typing import Any

import pytest
from clusterrun.bounds import NodeRank
from clusterrun.network.addresses import Address, Resolve, all_addresses
from clusterrun.planning.plan import ProgramOnNode, ProgramWorld
from clusterrun.policy import messages
from clusterrun.policy.settings import heartbeat_rhythm
from free_ports import free_port
from msgspec.structs import replace

from tests.network.nodes import (
    MemberHarness,
    Node,
    Notices,
    job_settings,
    join_context,
    ranked_hello,
    run_until,
    world_of_node_1,
)
from tests.plans import service

DEAD, LIVING = (
    Address(socket.AF_INET, "127.0.0.2", 0),
    Address(socket.AF_INET, "127.0.0.1", 0),
)

NOT_CLUSTERRUN = "another program answers there, not clusterrun"


def joining(
    stack: ExitStack,
    notices: Notices,
    port: int,
    resolve: Resolve | None = None,
    *,
    number: int = 1,
    seconds_to_answer: float = 3.0,
    **values: Any,
) -> Node:
    """Return a node that joins, by node 0's name if there is a resolver, else by its address.

    ``values`` are fields of its settings.
    """
    host = "127.0.0.1" if resolve is None else "head"
    settings = job_settings(port, **{"host": host, "rdzv_timeout": 600.0, **values})
    where = join_context(
        notices, resolve=resolve or all_addresses, seconds_to_answer=seconds_to_answer
    )
    made = Node(settings, ranked_hello(number), where=where)
    stack.callback(made.leave)
    return made


def node_zero(stack: ExitStack, port: int) -> Node:
    """Return node 0 of a job, with its name's address."""
    return joining(stack, Notices(), port, lambda _: (LIVING,), number=0)


def started_member(stack: ExitStack, notices: Notices, **values: Any) -> MemberHarness:
    """Return a member that has introduced itself to node 0, which is the test."""
    made = MemberHarness(join_context(notices), **{"rdzv_timeout": 600.0, **values})
    stack.callback(made.close)
    return made


def passes(member: Node, seconds: float) -> None:
    """Set a member's clock forward, and let it do what is due."""
    member.ahead += seconds
    member.run_for(0.02)


def drop_connections(stack: ExitStack, host: str, port: int) -> None:
    """Let ``host`` drop connections to ``port``: its backlog is full."""
    listener = stack.enter_context(closing(socket.socket()))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(0)
    for _ in range(3):
        waiting = stack.enter_context(closing(socket.socket()))
        waiting.settimeout(0)
        waiting.connect_ex((host, port))


def test_all_addresses_of_a_name_are_dialed_at_once(stack: ExitStack, notices: Notices) -> None:
    """A dead one costs no time, and workers get only the other."""
    port = free_port()
    drop_connections(stack, DEAD.text, port)
    before = time.monotonic()
    where = join_context(notices, resolve=lambda _: (DEAD, LIVING))
    offers = tuple(messages.ProgramOffer(name, (7000,), 7001) for name in ("main", "server"))
    member = MemberHarness(where, port=port, host="head", programs=offers, services=(service(),))
    stack.callback(member.close)
    taken = time.monotonic() - before

    nodes = tuple(ProgramOnNode(NodeRank(rank), "head", 1, (7000,), 7001) for rank in range(2))
    programs = (ProgramWorld("main", 0, nodes), ProgramWorld("server", 2, nodes))
    formed = replace(world_of_node_1(), master_addr="head", programs=programs)
    member.deliver(messages.WorldFormed(formed, "n0"))

    assert member.node.world is not None
    assert member.node.world.master_addr == LIVING.text
    for program in member.node.world.programs:
        assert [each.address for each in program.nodes] == [LIVING.text, "head"]
    assert taken < 2.0


@pytest.mark.parametrize(
    ("timeout", "why"),
    [(2.5, "within 2.5 s: no answer yet"), (10.0, "within 10 s: no answer within 3 s")],
)
def test_silent_address_times_out(
    stack: ExitStack, notices: Notices, timeout: float, why: str
) -> None:
    """After three seconds all are dialed again."""
    port = free_port()
    drop_connections(stack, "127.0.0.1", port)
    member = joining(stack, notices, port, rdzv_timeout=timeout)
    member.run_for(0.01)
    member.ahead = timeout - 0.5
    member.run_for(0.01)
    member.ahead = timeout

    assert member.join_error().message.endswith(why)


def test_waiting_member_prints_notices(stack: ExitStack, notices: Notices) -> None:
    """The first after 5 s, then one every 30 s."""
    member = joining(stack, notices, port := free_port())
    member.run_for(0.01)
    printed = [list(notices)]
    for seconds in (4.5, 0.5, 29.5, 0.5, 29.5, 0.5):
        passes(member, seconds)
        printed.append(list(notices))

    text = f"can't connect to node 0 at 127.0.0.1:{port} (--master-addr) yet: connection refused"
    assert notices == [f"{text} ({seconds} s of 600 s)" for seconds in (5, 35, 65)]
    assert [len(each) for each in printed] == [0, 0, 1, 1, 2, 2, 3]


def test_name_that_resolves_late_is_dialed(stack: ExitStack, notices: Notices) -> None:
    """Pods get their names when they run."""
    known_at = time.monotonic() + 0.3

    def resolve(_: str) -> tuple[Address, ...]:
        if time.monotonic() < known_at:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return (LIVING,)

    port = free_port()
    first, second = node_zero(stack, port), joining(stack, notices, port, resolve)
    run_until(lambda: second.world, first, second)

    assert second.world is not None
    assert second.world.node_rank == 1
    assert time.monotonic() > known_at
    assert notices == []


@pytest.mark.parametrize("first_words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_other_program_is_dialed_again(
    stack: ExitStack, notices: Notices, first_words: bytes
) -> None:
    """It may be a job that is about to end."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    server.settimeout(0)
    member = joining(stack, notices, server.getsockname()[1])
    calls: list[socket.socket] = []

    def is_called(times: int) -> bool:
        try:
            theirs, _ = server.accept()
        except BlockingIOError:
            return len(calls) >= times
        calls.append(theirs)
        stack.callback(theirs.close)
        theirs.sendall(first_words)
        theirs.shutdown(socket.SHUT_WR)
        return len(calls) >= times

    run_until(lambda: is_called(2), member)
    passes(member, 5.0)

    assert notices.has(NOT_CLUSTERRUN)


def test_silent_program_is_not_clusterrun(stack: ExitStack, notices: Notices) -> None:
    """Torch's store waits for the rest of a query."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    member = joining(stack, notices, server.getsockname()[1])
    member.run_for(0.01)
    theirs, _ = server.accept()
    stack.callback(theirs.close)
    passes(member, 0.1)
    passes(member, 2.9)
    theirs.settimeout(5.0)
    while theirs.recv(1 << 10):
        pass
    passes(member, 2.0)

    assert notices.has(NOT_CLUSTERRUN)


def test_lost_node_zero_is_dialed_again(stack: ExitStack, notices: Notices) -> None:
    """Its scheduler may restart it."""
    port = free_port()
    member = started_member(stack, notices, port=port)
    member.coordinator.close()
    again = Node(job_settings(port), ranked_hello(0))
    stack.callback(again.leave)

    run_until(lambda: member.node.world, again, member.node)

    assert notices == []


def test_frozen_node_zero_is_an_error_after_the_timeout(stack: ExitStack, notices: Notices) -> None:
    """Node 0 should have ended the wait itself; the member ends it a little later."""
    member = started_member(stack, notices).node
    passes(member, 600.0)
    passes(member, 4.5)
    member.ahead += 0.5

    assert "stopped responding before all nodes had joined" in member.join_error().message
    assert notices == []


def test_last_call_may_take_longer_than_the_timeout(stack: ExitStack, notices: Notices) -> None:
    """Node 0 waits for it once enough nodes have joined, and answers meanwhile."""
    member = started_member(stack, notices, nodes=3, fewest_nodes=2, last_call_timeout=40.0).node
    passes(member, 600.0)
    passes(member, 44.5)
    member.ahead += 0.5

    assert "stopped responding before all nodes had joined" in member.join_error().message


def test_node_zeros_notices_are_printed(stack: ExitStack, notices: Notices) -> None:
    port = free_port()
    first = Node(job_settings(port, 3, rdzv_timeout=600.0), ranked_hello(0))
    stack.callback(first.leave)
    second = joining(stack, notices, port, nodes=3)
    members = first.membership._state.coordinator.members  # type: ignore[union-attr]  # noqa: SLF001 - to be sure
    run_until(lambda: len(members.by_connection) == 2, first, second)
    first.ahead = 5.0
    run_until(lambda: notices, first, second)

    assert notices == ["2 of 3 nodes have joined: n0, n1; waiting for node rank 2 (5 s of 600 s)"]


def test_silent_node_zero_is_dialed_again(stack: ExitStack, notices: Notices) -> None:
    """Its host may be dead, and another one may replace it."""
    port = free_port()
    member = started_member(stack, notices, port=port, rhythm=heartbeat_rhythm(2, 1.0))
    until = time.monotonic() + 1.5

    def answer() -> bool:
        asked = [each for each in member.received if isinstance(each, messages.Heartbeat)]
        member.received.clear()
        for each in asked:
            member.coordinator.send(messages.HeartbeatAnswer(each.at, each.at))
        return member.receive() and time.monotonic() > until

    run_until(answer, member.node)
    answered = member.coordinator.end is None
    run_until(lambda: member.receive() and member.coordinator.end, member.node)
    again = Node(job_settings(port), ranked_hello(0))
    stack.callback(again.leave)
    run_until(lambda: member.node.world, again, member.node)

    assert answered
    assert not any(isinstance(each, messages.Hello) for each in member.received)
    assert notices == []


def test_first_answering_address_in_order_is_used(stack: ExitStack, notices: Notices) -> None:
    """Workers try addresses in this order, so all get the same one."""
    for _ in range(10):
        port = free_port()
        first = node_zero(stack, port)
        second = joining(stack, notices, port, lambda _: (DEAD, LIVING))
        run_until(lambda second=second: second.world, first, second)  # type: ignore[misc]

        assert second.world is not None
        assert second.world.master_addr == DEAD.text
