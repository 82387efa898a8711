"""The coordinator on a real port: strangers and broken members do no harm to the job."""

import resource
import select
import socket
import struct
import time
from contextlib import ExitStack

import pytest

from tests.network.callers import GARBAGE, OPENING, Running, caller, joined, running
from tests.network.door import MAGIC, VERSION, Gathering, done, messages, server
from tests.network.frames import framed
from tests.network.nodes import PATIENCE, fate, hello


@pytest.fixture
def job(stack: ExitStack) -> Running:
    """Return the coordinator of a job of two nodes."""
    return running(stack)


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        ("an HTTP client", "it does not speak clusterrun's protocol"),
        ("another version", "it speaks version 9 of clusterrun's protocol, this is 4"),
        ("one with a token", "it has a token, and this job has none"),
        ("a huge message", "it sent a message of 4294967295 bytes"),
        ("a long hello", "it sent a message of 65537 bytes"),
        ("no message", "it sent bytes that are no message of clusterrun's"),
        ("a report without a hello", "it sent another message before its Hello"),
        ("half a report", "it closed the connection in the middle of a message"),
    ],
)
def test_what_is_said_of_a_stranger(garbage: str, why: str, job: Running, stack: ExitStack) -> None:
    """On node 0."""
    stranger = caller(stack, job).sends_bytes(GARBAGE[garbage])
    stranger.socket.shutdown(socket.SHUT_WR)

    assert stranger.is_disconnected()
    assert job.notices == [f"refused 127.0.0.1: {why}"]


def test_an_agent_that_has_gone_is_not_waited_for(job: Running, stack: ExitStack) -> None:
    """Its Hello is still read, and counts no more: it calls again by now."""
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


def test_a_stranger_hears_nothing_of_us(job: Running, stack: ExitStack) -> None:
    """Before it has sent the magic bytes."""
    stranger = caller(stack, job).sends_bytes(b"GET /")

    assert stranger.is_disconnected()
    assert stranger.received == b""


def test_who_keeps_silent_is_sent_away(job: Running, stack: ExitStack) -> None:
    """After a while."""
    silent = caller(stack, job)
    half = caller(stack, job).sends_bytes(OPENING[:20])
    job.go_on()
    job.ahead = server.SECONDS_TO_SEND_HELLO

    assert silent.is_disconnected()
    assert half.is_disconnected()
    assert job.notices == ["refused 127.0.0.1: it sent nothing for 10 s"]


def test_a_flood_keeps_no_member_waiting(stack: ExitStack) -> None:
    """A few strangers are accepted in a turn, after the members; all of them in the end."""
    job = running(stack, keeps_joining_port=True)
    member = caller(stack, job).joins(hello(1))
    member.receives()
    strangers = [caller(stack, job).sends_bytes(OPENING) for _ in range(200)]
    member.socket.sendall(framed(messages.Heartbeat()))

    job.go_on()

    assert select.select([member.socket], [], [], 0)[0]
    accepted = select.select([each.socket for each in strangers], [], [], 0)[0]
    assert len(accepted) <= 16
    for _ in range(100):
        job.go_on()
    assert len(select.select([each.socket for each in strangers], [], [], 0)[0]) == 200


def test_a_wrong_token_is_refused_before_anything_is_read(stack: ExitStack) -> None:
    """Even though a whole hello was sent."""
    job = running(stack, token=b"right")
    opening = struct.pack(">12sHcB32s", MAGIC, VERSION, b"M", 1, b"m" * 32)
    stranger = caller(stack, job).sends_bytes(opening + bytes(18) + b"p" * 32 + framed(hello(1)))

    answer = stranger.reads(len(opening) + 18 + 33)

    assert answer[-33:] == bytes(33)
    assert stranger.is_disconnected()
    assert job.notices == ["refused 127.0.0.1: it has another token"]


def test_a_hello_is_said_once(job: Running, stack: ExitStack) -> None:
    """A second one contradicts the first."""
    member = caller(stack, job).joins(hello(1))
    assert isinstance(member.receives(), messages.WorldFormed)

    member.sends(hello(2))

    assert member.is_disconnected()
    assert job.notices == ["refused 127.0.0.1: it sent a second Hello"]


def test_who_has_hung_up_is_not_let_in(job: Running, stack: ExitStack) -> None:
    """Its bytes were delayed; meanwhile it has closed this connection."""
    early = caller(stack, job)
    early.sends_bytes(OPENING).reads(len(OPENING))
    early.sends_bytes(framed(hello(1)) + framed(messages.Heartbeat())).socket.shutdown(
        socket.SHUT_WR
    )

    assert early.is_disconnected()
    assert joined(stack, job)
    assert job.notices == []


def test_a_refusal_arrives_before_the_connection_ends(job: Running, stack: ExitStack) -> None:
    """Whole, and then the end."""
    member = caller(stack, job).joins(hello(1, nodes=3))

    message = member.receives()

    assert isinstance(message, messages.Refused)
    assert message.text == "nnodes is 2 on n0, 3 on n1"
    assert member.is_disconnected()


def test_the_address_that_members_reached_is_known(stack: ExitStack) -> None:
    """Unless they come from this machine itself."""
    job = running(stack)
    assert joined(stack, job)

    assert job.server.reached_at == ""


def test_all_members_hear_of_the_end_before_node_zero_goes(stack: ExitStack) -> None:
    """It waits until they have disconnected."""
    job = running(stack, nodes=3)
    members = [caller(stack, job).joins(hello(number, 3)) for number in (1, 2)]
    assert all(isinstance(member.receives(), messages.WorldFormed) for member in members)
    job.node_zero_sends(done(0, [fate(0)], 0.0, None))
    for number, member in enumerate(members, start=1):
        member.sends(done(0, [fate(number)], 0.0, None))
    verdicts = [member.receives() for member in members]
    for member in members:
        member.socket.close()

    before = time.monotonic()
    job.server.finish(PATIENCE)

    assert all(isinstance(verdict, messages.Verdict) for verdict in verdicts)
    assert time.monotonic() - before < PATIENCE / 2


def test_a_member_that_does_not_hang_up_is_not_waited_for_long(stack: ExitStack) -> None:
    """It may be frozen."""
    job = running(stack)
    member = caller(stack, job).joins(hello(1))
    assert isinstance(member.receives(), messages.WorldFormed)
    job.node_zero_sends(done(0, [], 0.0, None))
    member.sends(done(0, [], 0.0, None))
    assert isinstance(member.receives(), messages.Verdict)

    before = time.monotonic()
    job.server.finish(0.1)

    assert time.monotonic() - before < PATIENCE / 2


def test_an_agent_that_is_gone_is_noticed_at_once(stack: ExitStack) -> None:
    """The kernel closes its connections, however it was killed."""
    job = running(stack, nodes=3)
    members = [caller(stack, job).joins(hello(number, 3)) for number in (1, 2)]
    assert all(isinstance(member.receives(), messages.WorldFormed) for member in members)

    members[1].socket.close()

    assert members[0].receives() == messages.Stop(0, "node 2 (n2) is gone")


def test_limits_of_open_files_are_raised_as_far_as_they_go() -> None:
    """A thousand members are a thousand connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, before[1]))
    try:
        allowed = server.allow_descriptors(700)
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        server.allow_descriptors(600)
        kept = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert (allowed, raised, kept) == (700, 700, 700)
