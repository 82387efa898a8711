"""The coordinator on a real port: unauthenticated connections and broken members do no harm."""

import os
import resource
import select
import socket
import struct
import time
from contextlib import ExitStack
from typing import Any

import pytest
from clusterrun.network import server
from clusterrun.network.channel import FROM_COORDINATOR
from clusterrun.network.handshake import MAGIC, VERSION
from clusterrun.policy import messages
from clusterrun.policy.joining import Gathering
from clusterrun.policy.queries import MAX_BODY, Answer, Query, Topic
from clusterrun.processes import raise_descriptor_limit

from tests.network.clients import (
    GARBAGE,
    OPENING,
    Client,
    RunningCoordinator,
    connect,
    second_node_joins,
    start_coordinator,
)
from tests.network.frames import framed, taken
from tests.network.nodes import PATIENCE, done, hello, result, run_until


@pytest.fixture
def job(stack: ExitStack) -> RunningCoordinator:
    """Return the coordinator of a job of two nodes."""
    return start_coordinator(stack)


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        ("an HTTP client", "it does not speak clusterrun's protocol"),
        (
            "another version",
            "it speaks version 9 of clusterrun's protocol, but this clusterrun speaks 6",
        ),
        ("one with a token", "it has a token, but this job has none"),
        ("a huge message", "it sent a message of 4294967295 bytes"),
        ("a long hello", "it sent a message of 65537 bytes"),
        ("no message", "it sent bytes that are not a message of clusterrun's"),
        ("a report without a hello", "it sent another message before its Hello"),
        ("half a report", "it closed the connection in the middle of a message"),
    ],
)
def test_refused_connection_is_printed_with_the_reason(
    garbage: str, why: str, job: RunningCoordinator, stack: ExitStack
) -> None:
    """On node 0."""
    client = connect(stack, job).send_bytes(GARBAGE[garbage])
    client.socket.shutdown(socket.SHUT_WR)

    assert client.is_disconnected()
    assert job.notices == [f"refused 127.0.0.1: {why}"]


def test_agent_that_disconnected_after_hello_is_not_counted(
    job: RunningCoordinator, stack: ExitStack
) -> None:
    """It has connected again by the time its Hello is read."""
    gone = connect(stack, job).send_bytes(OPENING)
    gone.read(len(OPENING))
    gone.send(hello(1)).socket.close()
    for _ in range(3):
        job.run_for(0.02)

    assert job.server.coordinator.due > job.loop.clock() + 1.0
    state = job.server.coordinator.state
    assert isinstance(state, Gathering)
    assert (state.callers, state.count) == (0, 1)
    assert second_node_joins(stack, job)


def test_an_unauthenticated_connection_gets_no_answer(
    job: RunningCoordinator, stack: ExitStack
) -> None:
    """Not before it has sent the magic bytes."""
    client = connect(stack, job).send_bytes(b"GET /")

    assert client.is_disconnected()
    assert client.received == b""


def test_unauthenticated_connection_times_out(job: RunningCoordinator, stack: ExitStack) -> None:
    silent = connect(stack, job)
    half = connect(stack, job).send_bytes(OPENING[:20])
    job.run_for()
    job.ahead = server.SECONDS_TO_SEND_HELLO

    assert silent.is_disconnected()
    assert half.is_disconnected()
    assert job.notices == ["refused 127.0.0.1: it sent nothing for 10 s"]


def test_flood_of_connections_does_not_delay_members(stack: ExitStack) -> None:
    """Few are accepted per turn, after the members were served; in the end all of them are."""
    job = start_coordinator(stack, keeps_rendezvous_port=True)
    member = connect(stack, job).join(hello(1))
    member.receive()
    clients = [connect(stack, job).send_bytes(OPENING) for _ in range(200)]
    member.socket.sendall(framed(messages.Heartbeat(0.0)))

    job.run_for()

    assert select.select([member.socket], [], [], 0)[0]
    accepted = select.select([each.socket for each in clients], [], [], 0)[0]
    assert len(accepted) <= 16
    for _ in range(100):
        job.run_for()
    assert len(select.select([each.socket for each in clients], [], [], 0)[0]) == 200


def test_one_turn_serves_all_members(stack: ExitStack) -> None:
    """Only connections that have not authenticated are served 16 at a time."""
    job = start_coordinator(stack, nodes=20)
    members = [connect(stack, job).join(hello(rank, nodes=20)) for rank in range(1, 20)]
    for member in members:
        assert isinstance(member.receive(), messages.WorldFormed)
    for member in members:
        member.send(messages.Heartbeat(0.0))

    job.run_for()

    answered = select.select([each.socket for each in members], [], [], 0)[0]
    assert len(answered) == 19


def test_wrong_token_is_refused_before_a_message_is_read(stack: ExitStack) -> None:
    """Even though a complete hello was sent."""
    job = start_coordinator(stack, token=b"right")
    opening = struct.pack(">12sHcB32s", MAGIC, VERSION, b"M", 1, b"m" * 32)
    client = connect(stack, job).send_bytes(opening + bytes(18) + b"p" * 32 + framed(hello(1)))

    answer = client.read(len(opening) + 18 + 33)

    assert answer[-33:] == bytes(33)
    assert client.is_disconnected()
    assert job.notices == ["refused 127.0.0.1: it has a different token"]


def test_second_hello_is_refused(job: RunningCoordinator, stack: ExitStack) -> None:
    member = connect(stack, job).join(hello(1))
    assert isinstance(member.receive(), messages.WorldFormed)

    member.send(hello(2))

    assert member.is_disconnected()
    assert job.notices == ["refused 127.0.0.1: it sent a second Hello"]


@pytest.mark.parametrize("message", [messages.Heartbeat(1.0), messages.RankCallsSuspend(0)])
def test_message_of_paused_member_is_refused(
    message: messages.FromMember, job: RunningCoordinator, stack: ExitStack
) -> None:
    """The job waits for a paused member, so it must really be paused."""
    member = connect(stack, job).join(hello(1))
    member.receive_kind(messages.WorldFormed)
    member.send(messages.Paused(paused=True)).send(message)

    assert member.is_disconnected()
    assert job.notices[-1] == "refused 127.0.0.1: it sent a message while it was paused"


def test_closed_connection_is_not_admitted(job: RunningCoordinator, stack: ExitStack) -> None:
    """Its bytes were delayed, and the peer has closed the connection meanwhile."""
    early = connect(stack, job)
    early.send_bytes(OPENING).read(len(OPENING))
    early.send_bytes(framed(hello(1)) + framed(messages.Heartbeat(0.0))).socket.shutdown(
        socket.SHUT_WR
    )

    assert early.is_disconnected()
    assert second_node_joins(stack, job)
    assert job.notices == []


def test_refusal_is_sent_before_the_connection_closes(
    job: RunningCoordinator, stack: ExitStack
) -> None:
    member = connect(stack, job).join(hello(1, nodes=3))

    message = member.receive()

    assert isinstance(message, messages.Refused)
    assert message.text == "nnodes is 2 on n0, 3 on n1"
    assert member.is_disconnected()


def test_members_of_this_machine_set_no_reached_address(stack: ExitStack) -> None:
    job = start_coordinator(stack)
    assert second_node_joins(stack, job)

    assert job.server.reached_at is None


def test_node_zero_waits_until_members_have_the_verdict(stack: ExitStack) -> None:
    job = start_coordinator(stack, nodes=3)
    members = [connect(stack, job).join(hello(number, 3)) for number in (1, 2)]
    assert all(isinstance(member.receive(), messages.WorldFormed) for member in members)
    job.send_from_node_zero(done(0, [result(0)]))
    for number, member in enumerate(members, start=1):
        member.send(done(0, [result(number)]))
    verdicts = [member.receive() for member in members]
    for member in members:
        member.socket.close()

    before = time.monotonic()
    job.server.finish(PATIENCE)

    assert all(isinstance(verdict, messages.Verdict) for verdict in verdicts)
    assert time.monotonic() - before < PATIENCE / 2


def test_node_zero_waits_for_a_connected_member_only_so_long(stack: ExitStack) -> None:
    """The member may be frozen."""
    job = start_coordinator(stack)
    member = connect(stack, job).join(hello(1))
    assert isinstance(member.receive(), messages.WorldFormed)
    job.send_from_node_zero(done(0, []))
    member.send(done(0, []))
    assert isinstance(member.receive(), messages.Verdict)

    before = time.monotonic()
    job.server.finish(0.1)

    assert time.monotonic() - before < PATIENCE / 2


def test_killed_agent_is_detected_at_once(stack: ExitStack) -> None:
    """The kernel closes its connections."""
    job = start_coordinator(stack, nodes=3)
    members = [connect(stack, job).join(hello(number, 3)) for number in (1, 2)]
    assert all(isinstance(member.receive(), messages.WorldFormed) for member in members)

    members[1].socket.close()

    assert members[0].receive() == messages.Stop(0, "node 2 (n2) is gone")


# Members that are silent, and leases.

WAITS: dict[str, Any] = {"spares": 1, "keeps_rendezvous_port": True}
"""A job of two nodes and a spare, which outlives node 1."""


def test_hello_is_answered_as_the_first_heartbeat(
    job: RunningCoordinator, stack: ExitStack
) -> None:
    """Before all else, with its own time and that of node 0's clock."""
    before = job.loop.clock()
    member = connect(stack, job).join(hello(1, at=5.0))
    found: list[messages.FromCoordinator] = []

    def has_both() -> bool:
        found.extend(taken(FROM_COORDINATOR, member.read_available().received))
        return len(found) > 1

    run_until(has_both, job)
    member.heartbeat_is_answered(6.5)

    answer, formed = found
    assert isinstance(answer, messages.HeartbeatAnswer)
    assert isinstance(formed, messages.WorldFormed)
    [later] = member.answers
    assert (answer.to, later.to) == (5.0, 6.5)
    assert before <= answer.at <= later.at <= job.loop.clock()


def test_heartbeat_answer_has_a_time_after_the_heartbeat(
    job: RunningCoordinator, stack: ExitStack
) -> None:
    """With the time at which the turn began, the next attempt would start while workers run."""
    member = connect(stack, job).join(hello(1))
    member.receive()
    [connection] = job.server._connections.values()  # noqa: SLF001 - to be sure
    member.send(messages.Heartbeat(3.0))
    sent_at = job.loop.clock()
    select.select([connection.channel], [], [], PATIENCE)
    list(connection.serve(sent_at - 5.0))
    member.unread()

    assert member.answers[-1].to == 3.0
    assert member.answers[-1].at >= sent_at


def passes(job: RunningCoordinator, seconds: float, *living: Client) -> None:
    """Let time pass in which node 0 listens, and these members send heartbeats."""
    for _ in range(round(seconds)):
        job.ahead += 1.0
        for each in living:
            each.heartbeat_is_answered(job.ahead)
        job.run_for()


def test_silent_member_is_declared_lost(stack: ExitStack) -> None:
    """At T + 3 I. If it continues, it learns that it may rejoin."""
    job = start_coordinator(stack, 3, **WAITS)
    silent, spare = (connect(stack, job).join(hello(number, 3)) for number in (1, 2))
    silent.receive()
    spare.receive()
    passes(job, 17, spare)
    before = silent.unread()[:]
    passes(job, 1, spare)

    assert before == []
    assert silent.receive() == messages.GivenUp("has been silent for 18 s")
    assert silent.is_disconnected()
    assert silent.unread() == []


def test_silent_spare_is_declared_lost(stack: ExitStack) -> None:
    """It may wait again."""
    job = start_coordinator(stack, 3, **WAITS)
    working, silent = (connect(stack, job).join(hello(number, 3)) for number in (1, 2))
    working.receive()
    silent.receive()
    passes(job, 18, working)

    assert silent.receive() == messages.GivenUp("has been silent for 18 s")
    assert silent.is_disconnected()
    assert working.unread() == []


def test_silent_member_ends_a_plain_job(stack: ExitStack) -> None:
    """If it continues, it learns why the job ended, and is not answered any more."""
    job = start_coordinator(stack, 3)
    silent, other = (connect(stack, job).join(hello(number, 3)) for number in (1, 2))
    silent.receive()
    other.receive()
    passes(job, 17, other)
    job.ahead += 1.0
    job.run_for()
    stop = other.receive()
    silent.send(messages.Heartbeat(7.0)).send(messages.Heartbeat(8.0))
    for _ in range(5):
        job.run_for(0.01)

    assert stop == messages.Stop(0, "node 1 (n1) has been silent for 18 s")
    assert silent.receive() == stop
    assert silent.unread() == []
    assert [each.to for each in silent.answers] == [0.0]
    assert not silent.at_end


def test_kernel_timeout_of_member_equals_heartbeat_timeout(
    job: RunningCoordinator, stack: ExitStack
) -> None:
    """T + 3 I, in milliseconds."""
    member = connect(stack, job).join(hello(1))
    member.receive()
    [connection] = job.server._connections.values()  # noqa: SLF001 - to be sure
    with socket.socket(fileno=os.dup(connection.channel.fileno())) as same:
        timeout = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    assert timeout == 18_000


@pytest.mark.parametrize("is_orderly", [True, False])
def test_next_attempt_waits_for_leases(stack: ExitStack, *, is_orderly: bool) -> None:
    """A closed connection means that no worker is left; a reset does not."""
    job = start_coordinator(stack, 3, **WAITS)
    lost, spare = (connect(stack, job).join(hello(number, 3)) for number in (1, 2))
    lost.receive()
    spare.receive()
    passes(job, 3, lost, spare)
    began = job.loop.clock()
    if not is_orderly:
        lost.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    lost.socket.close()
    run_until(lambda: job.server.coordinator.members.lost, job)
    job.send_from_node_zero(done(0, []))
    while not spare.unread():
        passes(job, 1, spare)
    begun, waited = spare.receive(), round(job.loop.clock() - began)

    assert isinstance(begun, messages.WorldFormed)
    assert begun.world.attempt == 1
    assert waited == (0 if is_orderly else 18)


@pytest.mark.parametrize(
    ("seconds", "why"), [(15.5, "node 2 (n2) is gone"), (18.0, "node 0 (n0) was stopped for 18 s")]
)
def test_stop_of_node_zero_itself_ends_the_job(stack: ExitStack, seconds: float, why: str) -> None:
    """It was longer than T + 2 I, after which members have given it up."""
    job = start_coordinator(stack, 3)
    one, other = (connect(stack, job).join(hello(number, 3)) for number in (1, 2))
    one.receive()
    other.receive()
    other.socket.close()
    job.ahead += seconds
    job.run_for()

    assert one.receive() == messages.Stop(0, why)


def test_paused_node_zero_is_not_to_blame_for_a_lost_node(stack: ExitStack) -> None:
    """The members have waited for it: the node whose connection has ended is the one that is lost."""
    job = start_coordinator(stack, 3)
    one, other = (connect(stack, job).join(hello(number, 3)) for number in (1, 2))
    one.receive()
    other.receive()
    job.send_from_node_zero(messages.Paused(paused=True))
    other.socket.close()
    job.ahead += 60.0
    job.send_from_node_zero(messages.Paused(paused=False))
    job.run_for()

    assert one.receive_kind(messages.Stop) == messages.Stop(0, "node 2 (n2) is gone")


def test_idle_node_zero_was_not_stopped(stack: ExitStack) -> None:
    """It wakes even if all members are paused and send nothing."""
    job = start_coordinator(stack, 3)
    members = [connect(stack, job).join(hello(number, 3)) for number in (1, 2)]
    for each in members:
        each.receive()
        each.send(messages.Paused(paused=True))
    job.run_for(0.05)
    due = [job.server.due - job.loop.clock()]
    for _ in range(3):
        job.ahead += 15.0
        job.run_for(0.01)
        due.append(job.server.due - job.loop.clock())
    members[1].socket.close()

    assert all(14.0 < each <= 15.0 for each in due)
    stop = messages.Stop(0, "node 2 (n2) is gone")
    assert members[0].receive_kind(messages.Stop) == stop


def test_open_file_limit_is_raised_up_to_the_hard_limit() -> None:
    """A thousand members are a thousand connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, before[1]))
    try:
        allowed = raise_descriptor_limit(700)
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise_descriptor_limit(600)
        kept = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert (allowed, raised, kept) == (700, 700, 700)


def test_node_that_is_slow_to_receive_answers_stays_in_the_job(stack: ExitStack) -> None:
    """What others have answered is dropped instead: thousands of stacks are tens of MiB."""
    job = start_coordinator(stack)
    slow = connect(stack, job).join(hello(1))
    slow.receive()
    for number in range(1, 8):
        slow.send(Query(number, Topic.STACKS, 60.0))
        job.run_for(0.1)
        job.run_for(0.01)
        job.send_from_node_zero(Answer(number, 0, "n0", bytes(MAX_BODY)))
    answers = [slow.receive_kind(Answer) for _ in range(7)]

    first, last = answers[0], answers[-1]
    assert isinstance(first, Answer)
    assert (len(first.body), first.problem) == (MAX_BODY, "")
    assert last == Answer(7, 0, "n0", problem=server.TOO_SLOW)
    assert not job.server.coordinator.members.lost
