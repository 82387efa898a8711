"""Attacks while a job runs: they are refused with one notice, and the job is not affected."""

import random
import resource
import socket
import struct
import time
from contextlib import ExitStack, suppress
from itertools import islice
from typing import Any

import pytest
from clusterrun.network import server
from clusterrun.network.channel import (
    FROM_COORDINATOR,
    FROM_MEMBERS,
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    Channel,
)
from clusterrun.network.handshake import (
    BadFrame,
    coordinator_handshake,
    member_handshake,
    packed_address,
)
from clusterrun.policy import messages, outcome
from clusterrun.processes import raise_descriptor_limit
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.network.clients import GARBAGE, OPENING, Client, connect, start_coordinator
from tests.network.frames import (
    FROM_A_COORDINATOR,
    FROM_A_MEMBER,
    framed,
    messages_in,
    mutated,
    strange,
)
from tests.network.nodes import (
    PATIENCE,
    done,
    hello,
    open_descriptors,
    result,
    run_until,
)
from tests.rounds import in_all_rounds, numbers


class RunningJob:
    """A job of two nodes that runs, and whose coordinator still listens; node 1 is a caller."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.node_zero = start_coordinator(stack, keeps_rendezvous_port=True)
        self.member = connect(stack, self.node_zero)
        self._now = 0.0

    def start(self) -> "RunningJob":
        """Let node 1 join."""
        assert isinstance(self.member.join(hello(1)).receive(), messages.WorldFormed)
        return self

    def connect(self) -> Client:
        return connect(self.stack, self.node_zero)

    def is_alive(self) -> bool:
        """Return whether node 1 is answered in time, and has received nothing else."""
        self._now += 1.0
        return self.member.heartbeat_is_answered(self._now)

    def succeed(self) -> bool:
        """Let both nodes end; return whether node 1 receives a success."""
        self.node_zero.send_from_node_zero(done(0, [result(0)]))
        verdict = self.member.send(done(0, [result(1)])).receive()
        return verdict == messages.Verdict(outcome.Succeeded(), "")


@pytest.fixture
def job(stack: ExitStack) -> RunningJob:
    """Return a job that runs."""
    return RunningJob(stack).start()


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_refused(garbage: bytes, job: RunningJob) -> None:
    """From many connections at once, cut off in the middle or not."""
    clients = [job.connect().send_bytes(garbage) for _ in range(5)]
    for client in clients:
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_disconnected()

    assert job.is_alive()
    assert len(job.node_zero.notices) == 1
    assert job.node_zero.notices[0].startswith("refused 127.0.0.1: it ")
    assert job.succeed()


def test_port_scanner_is_not_reported(job: RunningJob) -> None:
    """It connects and disconnects many times."""
    for _ in range(200):
        job.connect().socket.close()
        job.node_zero.run_for()

    assert job.is_alive()
    assert job.node_zero.notices == []
    assert job.succeed()


def test_idle_connections_are_closed_for_new_ones(job: RunningJob) -> None:
    """The oldest are closed first, and node 1 is served all the while."""
    raise_descriptor_limit(3000)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 3000:
        pytest.skip("may not have so many open files")
    idle: list[Client] = []
    for _ in range(10):
        idle += [job.connect() for _ in range(100)]
        assert job.is_alive()
        for _ in range(10):
            job.node_zero.run_for()

    assert idle[0].is_disconnected()
    assert not idle[-1].read_available().at_end
    assert job.node_zero.notices == ["refused 127.0.0.1: too many connections"]
    assert job.succeed()


def test_slow_hello_times_out(job: RunningJob) -> None:
    """One byte now and then does not extend the time limit."""
    slow = job.connect()
    for byte in OPENING[:20]:
        slow.send_bytes(bytes([byte]))
        job.node_zero.run_for()
        job.node_zero.ahead += server.SECONDS_TO_SEND_HELLO / 20 + 0.01

    assert slow.is_disconnected()
    assert job.is_alive()
    assert job.node_zero.notices == ["refused 127.0.0.1: it sent nothing for 10 s"]
    assert job.succeed()


class Recorded(socket.socket):
    """A socket that keeps what is sent by it."""

    def send(self, data: Any, flags: int = 0) -> int:
        sent = super().send(data, flags)
        self.sent = getattr(self, "sent", b"") + bytes(data[:sent])
        return sent


def test_replayed_connection_is_refused(stack: ExitStack) -> None:
    """Each connection has its own nonces."""
    node_zero = start_coordinator(stack, token=b"secret", keeps_rendezvous_port=True)
    sock = stack.enter_context(Recorded())
    sock.connect(("127.0.0.1", node_zero.port))
    where = packed_address(("127.0.0.1", node_zero.port))
    member = Channel(FROM_COORDINATOR, sock, member_handshake(b"secret", where))
    member.send(hello(1))
    run_until(
        lambda: [each for each in member.receive() if type(each) is messages.WorldFormed], node_zero
    )
    member.send(messages.EndedExternally(0, outcome.Interrupted(15)))

    replayed = connect(stack, node_zero).send_bytes(sock.sent)

    assert replayed.is_disconnected()
    assert node_zero.notices == ["refused 127.0.0.1: it has a different token"]
    run_until(lambda: [each for each in member.receive() if type(each) is messages.Stop], node_zero)


def test_messages_of_a_refused_node_are_ignored(job: RunningJob) -> None:
    """It learns that the job is complete."""
    client = job.connect().send_bytes(OPENING)
    client.read(len(OPENING))
    client.send_bytes(
        framed(hello(1))
        + framed(messages.EndedExternally(0, outcome.Interrupted(15)))
        + framed(done(0, []))
    )

    assert client.is_disconnected()
    assert job.is_alive()
    assert job.succeed()


def test_heartbeats_without_hello_are_refused(job: RunningJob) -> None:
    flood = job.connect().send_bytes(OPENING + framed(messages.Heartbeat(0.0)) * 200)

    assert flood.is_disconnected()
    assert job.is_alive()
    assert job.node_zero.notices == ["refused 127.0.0.1: it sent another message before its Hello"]


def test_member_that_does_not_read_is_disconnected(job: RunningJob) -> None:
    """The others are served."""
    for _ in range(50):
        with suppress(BlockingIOError):
            job.member.send_bytes(framed(messages.Heartbeat(0.0)) * 500)
        job.node_zero.run_for()

    client = job.connect().send_bytes(b"GET / HTTP/1.1\r\n\r\n")
    assert client.is_disconnected()


def test_invalid_message_of_a_member_ends_the_job(stack: ExitStack) -> None:
    """Its messages can't be trusted any more, and the job can't continue without it."""
    node_zero = start_coordinator(stack, nodes=3, keeps_rendezvous_port=True)
    members = [connect(stack, node_zero).join(hello(number, 3)) for number in (1, 2)]
    assert all(isinstance(member.receive(), messages.WorldFormed) for member in members)

    members[0].send_bytes((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))

    assert members[0].is_disconnected()
    assert members[1].receive() == messages.Stop(0, "node 1 (n1) is gone")
    assert node_zero.notices == [
        f"refused 127.0.0.1: it sent a message of {MAX_FRAME_BYTES + 1} bytes"
    ]


positions = st.lists(st.tuples(st.integers(0, 1 << 12), st.integers(0, 255)), max_size=6)


@given(st.sampled_from(FROM_A_MEMBER), positions, st.integers(0, 40))
def test_mutated_member_frame_is_decoded_or_refused(
    frame: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    """There is no other exception."""
    assert messages_in(FROM_MEMBERS, mutated(frame, changes, cut)) in {-1, 0, 1}


@given(st.sampled_from(FROM_A_COORDINATOR), positions, st.integers(0, 40))
def test_mutated_coordinator_frame_is_decoded_or_refused(
    frame: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    assert messages_in(FROM_COORDINATOR, mutated(frame, changes, cut)) in {-1, 0, 1}


@given(st.binary(max_size=200))
def test_random_bytes_are_decoded_or_refused(data: bytes) -> None:
    """On either side, before and after the handshake."""
    messages_in(FROM_MEMBERS, data, MAX_HELLO_BYTES)
    for steps in (coordinator_handshake(b""), member_handshake(b"token")):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            connection = Channel(FROM_COORDINATOR, ours, steps)
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            with suppress(BadFrame):
                # What has come, and then that it was all.
                for _ in range(2):
                    connection.receive()
                assert connection.end is not None


@settings(max_examples=in_all_rounds(30), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(FROM_A_MEMBER), positions, st.integers(0, 9)), max_size=5)
)
def test_coordinator_survives_any_message(
    frames: list[tuple[bytes, list[tuple[int, int]], int]],
) -> None:
    """And answers its members as before."""
    with ExitStack() as opened:
        job = RunningJob(opened).start()
        client = job.connect().send_bytes(OPENING + b"".join(mutated(*each) for each in frames))
        with suppress(OSError):
            client.socket.shutdown(socket.SHUT_WR)
        run_until(lambda: client.read_available().at_end, job.node_zero)

        assert job.is_alive()
        assert job.succeed()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", numbers(1))
def test_million_unauthenticated_frames_do_not_disturb_the_job(stack: ExitStack, seed: int) -> None:
    """Fifty on each connection: none takes long, and no memory or descriptor is left."""
    job = RunningJob(stack).start()
    frames = strange(random.Random(seed), FROM_A_MEMBER)
    descriptors, sizes = open_descriptors(), []
    for number in range(20_000):
        bunch, began = b"".join(islice(frames, 50)), time.monotonic()
        with socket.create_connection(("127.0.0.1", job.node_zero.port), PATIENCE) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with suppress(OSError):
                client.sendall(OPENING + bunch)
            job.node_zero.run_for()
        job.node_zero.run_for()
        assert number % 100 or job.is_alive()
        assert time.monotonic() - began < 2.0
        sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    # In KiB, since a fifth of it was done.
    assert sizes[-1] - sizes[4000] < 4096
    assert open_descriptors() == descriptors
    assert job.succeed()
