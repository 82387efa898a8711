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
from clusterrun.processes import raise_descriptor_limit

from tests.network.callers import GARBAGE, OPENING, Caller, Running, caller, joined, running
from tests.network.frames import framed, taken
from tests.network.nodes import PATIENCE, done, hello, result, take_turns


@pytest.fixture
def job(stack: ExitStack) -> Running:
    """Return the coordinator of a job of two nodes."""
    return running(stack)


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        ("an HTTP client", "it does not speak clusterrun's protocol"),
        ("another version", "it speaks version 9 of clusterrun's protocol, this is 6"),
        ("one with a token", "it has a token, and this job has none"),
        ("a huge message", "it sent a message of 4294967295 bytes"),
        ("a long hello", "it sent a message of 65537 bytes"),
        ("no message", "it sent bytes that are not a message of clusterrun's"),
        ("a report without a hello", "it sent another message before its Hello"),
        ("half a report", "it closed the connection in the middle of a message"),
    ],
)
def test_refused_connection_is_printed_with_the_reason(
    garbage: str, why: str, job: Running, stack: ExitStack
) -> None:
    """On node 0."""
    stranger = caller(stack, job).sends_bytes(GARBAGE[garbage])
    stranger.socket.shutdown(socket.SHUT_WR)

    assert stranger.is_disconnected()
    assert job.notices == [f"refused 127.0.0.1: {why}"]


def test_agent_that_disconnected_after_hello_is_not_counted(job: Running, stack: ExitStack) -> None:
    """It has connected again by the time its Hello is read."""
    gone = caller(stack, job).sends_bytes(OPENING)
    gone.reads(len(OPENING))
    gone.sends(hello(1)).socket.close()
    for _ in range(3):
        job.go_on(0.02)

    assert job.server.coordinator.due > job.loop.clock() + 1.0
    state = job.server.coordinator.state
    assert isinstance(state, Gathering)
    assert (state.callers, state.count) == (0, 1)
    assert joined(stack, job)


def test_an_unauthenticated_connection_gets_no_answer(job: Running, stack: ExitStack) -> None:
    """Not before it has sent the magic bytes."""
    stranger = caller(stack, job).sends_bytes(b"GET /")

    assert stranger.is_disconnected()
    assert stranger.received == b""


def test_unauthenticated_connection_times_out(job: Running, stack: ExitStack) -> None:
    silent = caller(stack, job)
    half = caller(stack, job).sends_bytes(OPENING[:20])
    job.go_on()
    job.ahead = server.SECONDS_TO_SEND_HELLO

    assert silent.is_disconnected()
    assert half.is_disconnected()
    assert job.notices == ["refused 127.0.0.1: it sent nothing for 10 s"]


def test_flood_of_connections_does_not_delay_members(stack: ExitStack) -> None:
    """Few are accepted per turn, after the members were served; in the end all of them are."""
    job = running(stack, keeps_rendezvous_port=True)
    member = caller(stack, job).joins(hello(1))
    member.receives()
    strangers = [caller(stack, job).sends_bytes(OPENING) for _ in range(200)]
    member.socket.sendall(framed(messages.Heartbeat(0.0)))

    job.go_on()

    assert select.select([member.socket], [], [], 0)[0]
    accepted = select.select([each.socket for each in strangers], [], [], 0)[0]
    assert len(accepted) <= 16
    for _ in range(100):
        job.go_on()
    assert len(select.select([each.socket for each in strangers], [], [], 0)[0]) == 200


def test_wrong_token_is_refused_before_a_message_is_read(stack: ExitStack) -> None:
    """Even though a complete hello was sent."""
    job = running(stack, token=b"right")
    opening = struct.pack(">12sHcB32s", MAGIC, VERSION, b"M", 1, b"m" * 32)
    stranger = caller(stack, job).sends_bytes(opening + bytes(18) + b"p" * 32 + framed(hello(1)))

    answer = stranger.reads(len(opening) + 18 + 33)

    assert answer[-33:] == bytes(33)
    assert stranger.is_disconnected()
    assert job.notices == ["refused 127.0.0.1: it has a different token"]


def test_second_hello_is_refused(job: Running, stack: ExitStack) -> None:
    member = caller(stack, job).joins(hello(1))
    assert isinstance(member.receives(), messages.WorldFormed)

    member.sends(hello(2))

    assert member.is_disconnected()
    assert job.notices == ["refused 127.0.0.1: it sent a second Hello"]


@pytest.mark.parametrize("message", [messages.Heartbeat(1.0), messages.RankCallsSuspend(0)])
def test_message_of_paused_member_is_refused(
    message: messages.FromMember, job: Running, stack: ExitStack
) -> None:
    """The job waits for a paused member, so it must really be paused."""
    member = caller(stack, job).joins(hello(1))
    member.receives_at_last(messages.WorldFormed)
    member.sends(messages.Paused(paused=True)).sends(message)

    assert member.is_disconnected()
    assert job.notices[-1] == "refused 127.0.0.1: it sent a message while it was paused"


def test_closed_connection_is_not_admitted(job: Running, stack: ExitStack) -> None:
    """Its bytes were delayed, and the peer has closed the connection meanwhile."""
    early = caller(stack, job)
    early.sends_bytes(OPENING).reads(len(OPENING))
    early.sends_bytes(framed(hello(1)) + framed(messages.Heartbeat(0.0))).socket.shutdown(
        socket.SHUT_WR
    )

    assert early.is_disconnected()
    assert joined(stack, job)
    assert job.notices == []


def test_refusal_is_sent_before_the_connection_closes(job: Running, stack: ExitStack) -> None:
    member = caller(stack, job).joins(hello(1, nodes=3))

    message = member.receives()

    assert isinstance(message, messages.Refused)
    assert message.text == "nnodes is 2 on n0, 3 on n1"
    assert member.is_disconnected()


def test_members_of_this_machine_set_no_reached_address(stack: ExitStack) -> None:
    job = running(stack)
    assert joined(stack, job)

    assert job.server.reached_at is None


def test_node_zero_waits_until_members_have_the_verdict(stack: ExitStack) -> None:
    job = running(stack, nodes=3)
    members = [caller(stack, job).joins(hello(number, 3)) for number in (1, 2)]
    assert all(isinstance(member.receives(), messages.WorldFormed) for member in members)
    job.node_zero_sends(done(0, [result(0)]))
    for number, member in enumerate(members, start=1):
        member.sends(done(0, [result(number)]))
    verdicts = [member.receives() for member in members]
    for member in members:
        member.socket.close()

    before = time.monotonic()
    job.server.finish(PATIENCE)

    assert all(isinstance(verdict, messages.Verdict) for verdict in verdicts)
    assert time.monotonic() - before < PATIENCE / 2


def test_node_zero_waits_for_a_connected_member_only_so_long(stack: ExitStack) -> None:
    """The member may be frozen."""
    job = running(stack)
    member = caller(stack, job).joins(hello(1))
    assert isinstance(member.receives(), messages.WorldFormed)
    job.node_zero_sends(done(0, []))
    member.sends(done(0, []))
    assert isinstance(member.receives(), messages.Verdict)

    before = time.monotonic()
    job.server.finish(0.1)

    assert time.monotonic() - before < PATIENCE / 2


def test_killed_agent_is_detected_at_once(stack: ExitStack) -> None:
    """The kernel closes its connections."""
    job = running(stack, nodes=3)
    members = [caller(stack, job).joins(hello(number, 3)) for number in (1, 2)]
    assert all(isinstance(member.receives(), messages.WorldFormed) for member in members)

    members[1].socket.close()

    assert members[0].receives() == messages.Stop(0, "node 2 (n2) is gone")


# Members that are silent, and leases.

WAITS: dict[str, Any] = {"spares": 1, "keeps_rendezvous_port": True}
"""A job of two nodes and a spare, which outlives node 1."""


def test_hello_is_answered_as_the_first_heartbeat(job: Running, stack: ExitStack) -> None:
    """Before all else, with its own time and that of node 0's clock."""
    before = job.loop.clock()
    member = caller(stack, job).joins(hello(1, at=5.0))
    found: list[messages.FromCoordinator] = []

    def has_both() -> bool:
        found.extend(taken(FROM_COORDINATOR, member.listen().received))
        return len(found) > 1

    take_turns(has_both, job)
    member.is_answered(6.5)

    answer, formed = found
    assert isinstance(answer, messages.HeartbeatAnswer)
    assert isinstance(formed, messages.WorldFormed)
    [later] = member.answers
    assert (answer.to, later.to) == (5.0, 6.5)
    assert before <= answer.at <= later.at <= job.loop.clock()


def test_heartbeat_answer_has_a_time_after_the_heartbeat(job: Running, stack: ExitStack) -> None:
    """With the time at which the turn began, the next attempt would start while workers run."""
    member = caller(stack, job).joins(hello(1))
    member.receives()
    [connection] = job.server._connections.values()  # noqa: SLF001 - to be sure
    member.sends(messages.Heartbeat(3.0))
    sent_at = job.loop.clock()
    select.select([connection.channel], [], [], PATIENCE)
    list(connection.serve(sent_at - 5.0))
    member.unread()

    assert member.answers[-1].to == 3.0
    assert member.answers[-1].at >= sent_at


def passes(job: Running, seconds: float, *living: Caller) -> None:
    """Let time pass in which node 0 listens, and these members send heartbeats."""
    for _ in range(round(seconds)):
        job.ahead += 1.0
        for each in living:
            each.is_answered(job.ahead)
        job.go_on()


def test_silent_member_is_declared_lost(stack: ExitStack) -> None:
    """At T + 3 I. If it continues, it learns that it may rejoin."""
    job = running(stack, 3, **WAITS)
    silent, spare = (caller(stack, job).joins(hello(number, 3)) for number in (1, 2))
    silent.receives()
    spare.receives()
    passes(job, 17, spare)
    before = silent.unread()[:]
    passes(job, 1, spare)

    assert before == []
    assert silent.receives() == messages.GivenUp("has been silent for 18 s")
    assert silent.is_disconnected()
    assert silent.unread() == []


def test_silent_spare_is_declared_lost(stack: ExitStack) -> None:
    """It may wait again."""
    job = running(stack, 3, **WAITS)
    working, silent = (caller(stack, job).joins(hello(number, 3)) for number in (1, 2))
    working.receives()
    silent.receives()
    passes(job, 18, working)

    assert silent.receives() == messages.GivenUp("has been silent for 18 s")
    assert silent.is_disconnected()
    assert working.unread() == []


def test_silent_member_ends_a_plain_job(stack: ExitStack) -> None:
    """If it continues, it learns why the job ended, and is not answered any more."""
    job = running(stack, 3)
    silent, other = (caller(stack, job).joins(hello(number, 3)) for number in (1, 2))
    silent.receives()
    other.receives()
    passes(job, 17, other)
    job.ahead += 1.0
    job.go_on()
    stop = other.receives()
    silent.sends(messages.Heartbeat(7.0)).sends(messages.Heartbeat(8.0))
    for _ in range(5):
        job.go_on(0.01)

    assert stop == messages.Stop(0, "node 1 (n1) has been silent for 18 s")
    assert silent.receives() == stop
    assert silent.unread() == []
    assert [each.to for each in silent.answers] == [0.0]
    assert not silent.at_end


def test_kernel_timeout_of_member_equals_heartbeat_timeout(job: Running, stack: ExitStack) -> None:
    """T + 3 I, in milliseconds."""
    member = caller(stack, job).joins(hello(1))
    member.receives()
    [connection] = job.server._connections.values()  # noqa: SLF001 - to be sure
    with socket.socket(fileno=os.dup(connection.channel.fileno())) as same:
        timeout = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    assert timeout == 18_000


@pytest.mark.parametrize("is_orderly", [True, False])
def test_next_attempt_waits_for_leases(stack: ExitStack, *, is_orderly: bool) -> None:
    """A closed connection means that no worker is left; a reset does not."""
    job = running(stack, 3, **WAITS)
    lost, spare = (caller(stack, job).joins(hello(number, 3)) for number in (1, 2))
    lost.receives()
    spare.receives()
    passes(job, 3, lost, spare)
    began = job.loop.clock()
    if not is_orderly:
        lost.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    lost.socket.close()
    take_turns(lambda: job.server.coordinator.members.lost, job)
    job.node_zero_sends(done(0, []))
    while not spare.unread():
        passes(job, 1, spare)
    begun, waited = spare.receives(), round(job.loop.clock() - began)

    assert isinstance(begun, messages.WorldFormed)
    assert begun.world.attempt == 1
    assert waited == (0 if is_orderly else 18)


@pytest.mark.parametrize(
    ("seconds", "why"), [(15.5, "node 2 (n2) is gone"), (18.0, "node 0 (n0) was stopped for 18 s")]
)
def test_stop_of_node_zero_itself_ends_the_job(stack: ExitStack, seconds: float, why: str) -> None:
    """It was longer than T + 2 I, after which members have given it up."""
    job = running(stack, 3)
    one, other = (caller(stack, job).joins(hello(number, 3)) for number in (1, 2))
    one.receives()
    other.receives()
    other.socket.close()
    job.ahead += seconds
    job.go_on()

    assert one.receives() == messages.Stop(0, why)


def test_idle_node_zero_was_not_stopped(stack: ExitStack) -> None:
    """It wakes even if all members are paused and send nothing."""
    job = running(stack, 3)
    members = [caller(stack, job).joins(hello(number, 3)) for number in (1, 2)]
    for each in members:
        each.receives()
        each.sends(messages.Paused(paused=True))
    job.go_on(0.05)
    due = [job.server.due - job.loop.clock()]
    for _ in range(3):
        job.ahead += 15.0
        job.go_on(0.01)
        due.append(job.server.due - job.loop.clock())
    members[1].socket.close()

    assert all(14.0 < each <= 15.0 for each in due)
    stop = messages.Stop(0, "node 2 (n2) is gone")
    assert members[0].receives_at_last(messages.Stop) == stop


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
