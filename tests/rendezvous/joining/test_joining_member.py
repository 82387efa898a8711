"""A member that joins: late names, dead addresses, other programs on the port."""

import socket
import time
from contextlib import ExitStack, closing

import pytest
from free_ports import free_port

from tests.rendezvous.door import (
    Address,
    CoordinatorServer,
    HeldPort,
    JoiningMember,
    JoiningNode,
    JoiningPort,
    JoinTimeout,
    Resolve,
    all_addresses,
    bound_everywhere,
    heartbeat_rhythm,
)
from tests.rendezvous.nodes import Notices, hello, hooks, job_terms, opened_job, take_turns

DEAD, LIVING = (
    Address(socket.AF_INET, "127.0.0.2", 0),
    Address(socket.AF_INET, "127.0.0.1", 0),
)


def member(
    stack: ExitStack,
    notices: Notices,
    port: int | tuple[int, ...],
    resolve: Resolve | None = None,
    *,
    nodes: int = 2,
    now: float | None = None,
    timeout: float = 600.0,
    heartbeat_timeout: float = 15.0,
) -> JoiningMember:
    """Return a member that joins, by node 0's name if there is a resolver, else by its address."""
    host = "127.0.0.1" if resolve is None else "head"
    rhythm = heartbeat_rhythm(2, heartbeat_timeout)
    terms = job_terms(port, host=host, timeout=timeout, rhythm=rhythm)
    now = time.monotonic() if now is None else now
    where = hooks(notices, resolve=resolve or all_addresses)
    node = JoiningNode(terms, hello(1, nodes), b"", where)
    made = JoiningMember(node, JoinTimeout(timeout, now), now)
    stack.callback(made.close)
    return made


def coordinator(stack: ExitStack, listener: socket.socket, nodes: int = 2) -> CoordinatorServer:
    """Return a coordinator that accepts members at ``listener``."""
    listener.settimeout(0)
    holder = HeldPort(listener.getsockname()[1], socket.socket())
    door = JoiningPort(holder, [listener], None)
    job = opened_job(nodes)
    server = CoordinatorServer(door, job.terms, job.own_hello, hooks(), time.monotonic(), token=b"")
    stack.callback(server.own_end.close)
    stack.callback(server.close)
    return server


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
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    drop_connections(stack, "127.0.0.2", port)
    server = coordinator(stack, listener)
    before = time.monotonic()
    calling = member(stack, notices, port, lambda _: (DEAD, LIVING))

    take_turns(lambda: calling.finished, server, calling)

    assert calling.formed is not None
    assert time.monotonic() - before < 2.0
    call = calling.take_connection()
    assert call.address == LIVING != calling.addresses[0]
    call.close()


def test_an_address_that_does_not_answer_is_given_up(stack: ExitStack, notices: Notices) -> None:
    """After three seconds; then all are dialed again."""
    port = free_port()
    drop_connections(stack, "127.0.0.1", port)
    calling = member(stack, notices, port, now=0.0, timeout=10.0)
    calling.turn(0.0)
    calling.turn(2.9)
    calling.turn(3.0)
    calling.turn(10.0)

    assert calling.failure is not None
    assert calling.failure.message.endswith("within 10 s: no answer within 3 s")


def test_a_waiting_member_prints_notices(stack: ExitStack, notices: Notices) -> None:
    """First after 5 s, then each 30 s."""
    calling = member(stack, notices, port := free_port(), now=0.0)
    for second in range(70):
        calling.turn(float(second))

    text = f"can't connect to node 0 at 127.0.0.1:{port} (--master-addr) yet: connection refused"
    assert notices == [f"{text} ({seconds} s of 600 s)" for seconds in (5, 35, 65)]


def test_a_name_that_comes_late(stack: ExitStack, notices: Notices) -> None:
    """Pods get theirs when they run."""
    listener = bound_everywhere(0)
    listener.listen()
    port = listener.getsockname()[1]
    server = coordinator(stack, listener)
    known_at = time.monotonic() + 0.3

    def resolve(_: str) -> tuple[Address, ...]:
        if time.monotonic() < known_at:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return (LIVING,)

    calling = member(stack, notices, port, resolve)
    take_turns(lambda: calling.finished, server, calling)

    assert calling.formed is not None
    assert calling.formed.world.node_rank == 1
    calling.take_connection().close()


def test_an_unknown_name(stack: ExitStack, notices: Notices) -> None:
    """It is an error at the timeout."""

    def resolve(_: str) -> tuple[Address, ...]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    calling = member(stack, notices, free_port(), resolve, timeout=0.5)
    take_turns(lambda: calling.finished, calling)

    assert calling.failure is not None
    assert calling.failure.message == (
        "head (--master-addr) did not resolve on this node within 0.5 s: name or service not known"
    )


@pytest.mark.parametrize("first_words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_another_program_answers(stack: ExitStack, notices: Notices, first_words: bytes) -> None:
    """The member dials again: the program may be a job that is about to end."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    calling = member(stack, notices, server.getsockname()[1], now=0.0)
    calling.turn(0.0)
    theirs, _ = server.accept()
    with theirs:
        theirs.sendall(first_words)
        theirs.shutdown(socket.SHUT_WR)
        take_turns(lambda: calling.due > 0.0, calling)
        calling.turn(5.0)

    assert notices.has("another program answers there, not clusterrun")
    assert not calling.finished


def test_a_silent_program_is_not_clusterrun(stack: ExitStack, notices: Notices) -> None:
    """Torch's store waits for the rest of a query."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    calling = member(stack, notices, server.getsockname()[1], now=0.0)
    calling.turn(0.0)
    theirs, _ = server.accept()
    calling.turn(0.1)
    calling.turn(3.0)
    calling.turn(5.0)

    assert notices.has("another program answers there, not clusterrun")
    theirs.close()


def test_a_lost_node_zero_is_dialed_again(stack: ExitStack, notices: Notices) -> None:
    """Its scheduler may start it again."""
    listener = bound_everywhere(0)
    listener.listen()
    port = listener.getsockname()[1]
    first = coordinator(stack, listener, nodes=3)
    calling = member(stack, notices, port, nodes=3)
    take_turns(lambda: calling.is_connected, first, calling)
    take_turns(lambda: len(first._job.members.by_connection) == 2, first, calling)  # noqa: SLF001 - to be sure
    first.close()
    again = bound_everywhere(port)
    again.listen()
    second = coordinator(stack, again, nodes=3)
    take_turns(lambda: len(second._job.members.by_connection) == 2, second, calling)  # noqa: SLF001 - as above

    assert calling.is_connected
    assert notices == []


def test_a_frozen_node_zero_is_an_error_after_the_timeout(
    stack: ExitStack, notices: Notices
) -> None:
    """It should have ended the wait itself; the member does a little later."""
    listener = bound_everywhere(0)
    listener.listen()
    port = listener.getsockname()[1]
    server = coordinator(stack, listener, nodes=3)
    calling = member(stack, notices, port, nodes=3)
    take_turns(lambda: calling.is_connected, server, calling)
    let_in = time.monotonic()
    calling.turn(let_in + 600.0)
    before = calling.failure
    calling.turn(let_in + 605.0)

    assert before is None
    assert calling.failure is not None
    assert "stopped responding before all nodes had joined" in calling.failure.message


def test_node_zeros_notices_are_printed(stack: ExitStack, notices: Notices) -> None:
    """They name the missing nodes."""
    listener = bound_everywhere(0)
    listener.listen()
    port = listener.getsockname()[1]
    server = coordinator(stack, listener, nodes=3)
    calling = member(stack, notices, port, nodes=3)
    take_turns(lambda: calling.is_connected, server, calling)
    take_turns(lambda: len(server._job.members.by_connection) == 2, server, calling)  # noqa: SLF001 - to be sure
    server.turn(time.monotonic() + 5.0)
    take_turns(lambda: notices, server, calling)

    assert notices == ["2 of 3 nodes have joined: n0, n1; waiting for 1 node (5 s of 600 s)"]


def test_a_silent_node_zero_is_dialed_again(stack: ExitStack, notices: Notices) -> None:
    """Its host may be dead, and another one may take its place."""
    listener = bound_everywhere(0)
    listener.listen()
    port = listener.getsockname()[1]
    server = coordinator(stack, listener, nodes=3)
    calling = member(stack, notices, port, nodes=3, heartbeat_timeout=1.0)
    take_turns(lambda: calling.is_connected, server, calling)
    let_in = time.monotonic()
    take_turns(lambda: time.monotonic() > let_in + 1.5, server, calling)
    answered = calling.is_connected

    take_turns(lambda: not calling.is_connected, calling)

    assert answered
    assert calling.failure is None


def test_the_first_of_all_addresses_that_answer_is_taken(
    stack: ExitStack, notices: Notices
) -> None:
    """Workers try addresses in that order, so all get the same one."""
    for _ in range(10):
        listener = bound_everywhere(0)
        listener.listen()
        port = listener.getsockname()[1]
        server = coordinator(stack, listener, nodes=3)
        calling = member(stack, notices, port, lambda _: (DEAD, LIVING), nodes=3)
        take_turns(lambda calling=calling: calling.is_connected, server, calling)  # type: ignore[misc]

        taken = calling.take_connection()
        taken.close()
        assert taken.address == DEAD
