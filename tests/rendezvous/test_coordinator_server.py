"""The coordinator on a real port: strangers and broken members do no harm to the job."""

import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import msgspec
import pytest

from launcher.domain.facts import Fact
from launcher.rendezvous.connections import allow_descriptors
from launcher.rendezvous.coordinator_server import (
    MOST_STRANGERS,
    SECONDS_TO_INTRODUCE_ONESELF,
    CoordinatorServer,
)
from launcher.rendezvous.door import open_door
from launcher.rendezvous.greeting import MAGIC
from launcher.rendezvous.letters import done, failing
from launcher.rendezvous.wire import (
    FROM_COORDINATOR,
    LONGEST_HELLO,
    FromCoordinator,
    FromMember,
    Hello,
    Refused,
    Stop,
    Verdict,
    WorldFormed,
    framed,
)
from tests.rendezvous.nodes import (
    PATIENCE,
    Said,
    fate,
    free_port,
    hello,
    surroundings,
    take_turns,
    terms,
)

HAIL = struct.pack(">12sHcB32s", MAGIC, 1, b"M", 0, b"m" * 32)


class Running:
    """A coordinator, and a clock that can be put forward."""

    def __init__(self, port: int, nodes: int, token: bytes = b"", **said: object) -> None:
        self.said = Said()
        self.port = port
        self.ahead = 0.0
        door = open_door(Fact((port,), "--master-port"), "n0", surroundings().root)
        self.server = CoordinatorServer(
            door, terms(nodes, **said), token, surroundings(self.said), time.monotonic()
        )

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self.server.fileno()

    @property
    def due(self) -> float:
        """When it wants its turn, by the tests' clock."""
        return self.server.due - self.ahead

    def turn(self, now: float) -> None:
        """Give it its turn."""
        self.server.turn(now + self.ahead)

    def call(self) -> "Caller":
        """Connect to it."""
        return Caller(self)

    def close(self) -> None:
        """Close all."""
        self.server.own_end.close()
        self.server.close()


class Caller:
    """Somebody who connects, with no more sense than a test gives him."""

    def __init__(self, job: Running) -> None:
        self.socket = socket.create_connection(("127.0.0.1", job.port), timeout=PATIENCE)
        self.socket.setblocking(False)  # noqa: FBT003 - its own name for it
        self.heard = bytearray()
        self.at_end = False
        self._job = job

    def says(self, data: bytes) -> "Caller":
        """Send bytes, whatever they are."""
        self.socket.send(data)
        return self

    def joins(self, said: Hello) -> "Caller":
        """Greet and introduce oneself as a member does."""
        self.says(HAIL)
        self.reads(len(HAIL))
        return self.tells(said)

    def tells(self, message: FromMember) -> "Caller":
        """Send a message."""
        return self.says(framed(message))

    def reads(self, count: int) -> bytes:
        """Return the next bytes."""
        take_turns(lambda: len(self.listen().heard) >= count, self._job)
        taken = bytes(self.heard[:count])
        del self.heard[:count]
        return taken

    def hears(self) -> FromCoordinator:
        """Return the next message."""
        messages: list[FromCoordinator] = []

        def heard() -> bool:
            self.listen()
            messages.extend(FROM_COORDINATOR.take(self.heard) if not messages else [])
            return bool(messages)

        take_turns(heard, self._job)
        (message,) = messages
        return message

    def is_hung_up_on(self) -> bool:
        """Wait until the coordinator has closed the connection."""
        take_turns(lambda: self.listen().at_end, self._job)
        return self.at_end

    def listen(self) -> "Caller":
        """Take in what has come, without waiting."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return self
        except ConnectionResetError:
            data = b""
        self.heard += data
        self.at_end = not data
        return self


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return what closes everything at the end."""
    with ExitStack() as made:
        yield made


@pytest.fixture
def job(stack: ExitStack) -> Running:
    """Return the coordinator of a job of two nodes."""
    return running(stack)


def running(stack: ExitStack, nodes: int = 2, token: bytes = b"", **said: object) -> Running:
    """Return a coordinator that is closed at the end."""
    made = Running(free_port(), nodes, token, **said)
    stack.callback(made.close)
    return made


def caller(stack: ExitStack, job: Running) -> Caller:
    """Return somebody who has connected, and goes at the end."""
    made = job.call()
    stack.callback(made.socket.close)
    return made


def joined(stack: ExitStack, job: Running) -> bool:
    """Let the second node come, and tell whether the job begins with it."""
    return isinstance(caller(stack, job).joins(hello(1)).hears(), WorldFormed)


GARBAGE = {
    "an HTTP client": b"GET / HTTP/1.1\r\nHost: n0:29500\r\n\r\n",
    "an ssh client": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "a TLS client": bytes.fromhex("1603010200010001fc0303"),
    "zeros": bytes(5000),
    "another version": struct.pack(">12sHcB32s", MAGIC, 9, b"M", 0, b"m" * 32),
    "a coordinator": struct.pack(">12sHcB32s", MAGIC, 1, b"C", 0, b"m" * 32),
    "one with a token": struct.pack(">12sHcB32s", MAGIC, 1, b"M", 1, b"m" * 32),
    "a huge message": HAIL + b"\xff\xff\xff\xff",
    "a long hello": HAIL + (LONGEST_HELLO + 1).to_bytes(4, "big"),
    "no message": HAIL + b"\0\0\0\4abcd",
    "a report of nobody": HAIL + framed(done(0, [], 0.0, None)),
    "half a report": HAIL + framed(failing(0, fate(0, 1), 0.0))[:40],
    "a wrong hello": HAIL + b"\0\0\0\1\x80" + msgspec.msgpack.encode({"type": "Hello"}),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_strangers_do_no_harm(garbage: bytes, job: Running, stack: ExitStack) -> None:
    """They are refused, which is said once, and the job begins as if they had never come."""
    for _ in range(3):
        stranger = caller(stack, job).says(garbage)
        stranger.socket.shutdown(socket.SHUT_WR)
        assert stranger.is_hung_up_on()

    assert joined(stack, job)
    assert len(job.said) == 1
    assert job.said[0].startswith("refused 127.0.0.1: it ")


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        ("an HTTP client", "it does not speak clusterrun's protocol"),
        ("another version", "it speaks version 9 of clusterrun's protocol, this is 1"),
        ("one with a token", "it has a token, and this job has none"),
        ("a huge message", "it sent a message of 4294967295 bytes"),
        ("a long hello", "it sent a message of 65537 bytes"),
        ("no message", "it sent what is no message of clusterrun's"),
        ("a report of nobody", "it speaks without having introduced itself"),
        ("half a report", "it hung up in the middle of a message"),
    ],
)
def test_what_is_said_of_a_stranger(garbage: str, why: str, job: Running, stack: ExitStack) -> None:
    """On node 0."""
    stranger = caller(stack, job).says(GARBAGE[garbage])
    stranger.socket.shutdown(socket.SHUT_WR)

    assert stranger.is_hung_up_on()
    assert job.said == [f"refused 127.0.0.1: {why}"]


def test_who_connects_and_goes_is_not_worth_a_line(job: Running, stack: ExitStack) -> None:
    """Schedulers and load balancers look whether a port is open."""
    for _ in range(3):
        caller(stack, job).socket.close()

    assert joined(stack, job)
    assert job.said == []


def test_a_stranger_hears_nothing_of_us(job: Running, stack: ExitStack) -> None:
    """Before it has said the magic words."""
    stranger = caller(stack, job).says(b"GET /")

    assert stranger.is_hung_up_on()
    assert stranger.heard == b""


def test_who_keeps_silent_is_sent_away(job: Running, stack: ExitStack) -> None:
    """After a while."""
    silent = caller(stack, job)
    half = caller(stack, job).says(HAIL[:20])
    job.turn(time.monotonic())
    job.ahead = SECONDS_TO_INTRODUCE_ONESELF

    assert silent.is_hung_up_on()
    assert half.is_hung_up_on()
    assert job.said == ["refused 127.0.0.1: it said nothing for 10 s"]


def test_a_thousand_idle_connections_do_no_harm(job: Running, stack: ExitStack) -> None:
    """The oldest make room; members come in all the same, and memory is bounded."""
    allow_descriptors(3000)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 3000:
        pytest.skip("may not have so many open files")
    idle = []
    for _ in range(1000):
        idle.append(caller(stack, job))
        if len(idle) % 100 == 0:
            job.turn(time.monotonic())

    assert joined(stack, job)
    assert job.said == ["refused 127.0.0.1: too many connections"]
    assert idle[0].is_hung_up_on()
    assert not idle[-1].listen().at_end
    assert MOST_STRANGERS < 1000


def test_a_wrong_token_is_refused_before_anything_is_read(stack: ExitStack) -> None:
    """Even though a whole hello lies there."""
    job = running(stack, token=b"right")
    hail = struct.pack(">12sHcB32s", MAGIC, 1, b"M", 1, b"m" * 32)
    stranger = caller(stack, job).says(hail + b"p" * 32 + framed(hello(1)))

    answer = stranger.reads(len(hail) + 33)

    assert answer[len(hail) :] == bytes(33)
    assert stranger.is_hung_up_on()
    assert job.said == ["refused 127.0.0.1: it has another token"]


def test_a_member_that_begins_to_rave_is_lost_to_the_job(job: Running, stack: ExitStack) -> None:
    """Its words can't be trusted any more; the others are told."""
    member = caller(stack, job).joins(hello(1))
    assert isinstance(member.hears(), WorldFormed)

    member.says(b"\xff\xff\xff\xff")

    assert member.is_hung_up_on()
    assert job.said == ["refused 127.0.0.1: it sent a message of 4294967295 bytes"]


def test_a_hello_is_said_once(job: Running, stack: ExitStack) -> None:
    """A second one makes the first a lie."""
    member = caller(stack, job).joins(hello(1))
    assert isinstance(member.hears(), WorldFormed)

    member.tells(hello(2))

    assert member.is_hung_up_on()
    assert job.said == ["refused 127.0.0.1: it introduces itself twice"]


def test_a_refusal_arrives_before_the_connection_ends(job: Running, stack: ExitStack) -> None:
    """Whole, and then the end."""
    member = caller(stack, job).joins(hello(1, nodes=3))

    message = member.hears()

    assert isinstance(message, Refused)
    assert message.text == "n0 says nnodes 2, n1 says nnodes 3"
    assert member.is_hung_up_on()


def test_the_address_that_members_reached_is_known(stack: ExitStack) -> None:
    """Unless they come from this machine itself."""
    job = running(stack)
    assert joined(stack, job)

    assert job.server.reached_at == ""


def test_all_members_hear_of_the_end_before_node_zero_goes(stack: ExitStack) -> None:
    """It waits until they have hung up."""
    job = running(stack, nodes=3)
    members = [caller(stack, job).joins(hello(number, 3)) for number in (1, 2)]
    assert all(isinstance(member.hears(), WorldFormed) for member in members)
    job.server.own_end.sendall(framed(done(0, [fate(0)], 0.0, None)))
    for number, member in enumerate(members, start=1):
        member.tells(done(0, [fate(number)], 0.0, None))
    verdicts = [member.hears() for member in members]
    for member in members:
        member.socket.close()

    before = time.monotonic()
    job.server.finish(PATIENCE, time.monotonic)

    assert all(isinstance(verdict, Verdict) for verdict in verdicts)
    assert time.monotonic() - before < PATIENCE / 2


def test_a_member_that_does_not_hang_up_is_not_waited_for_long(stack: ExitStack) -> None:
    """It may be frozen."""
    job = running(stack)
    member = caller(stack, job).joins(hello(1))
    assert isinstance(member.hears(), WorldFormed)
    job.server.own_end.sendall(framed(done(0, [], 0.0, None)))
    member.tells(done(0, [], 0.0, None))
    assert isinstance(member.hears(), Verdict)

    before = time.monotonic()
    job.server.finish(0.1, time.monotonic)

    assert time.monotonic() - before < PATIENCE / 2


def test_an_agent_that_is_gone_is_noticed_at_once(stack: ExitStack) -> None:
    """The kernel closes its connections, however it was killed."""
    job = running(stack, nodes=3)
    members = [caller(stack, job).joins(hello(number, 3)) for number in (1, 2)]
    assert all(isinstance(member.hears(), WorldFormed) for member in members)

    members[1].socket.close()

    assert members[0].hears() == Stop(0, "node 2 (n2) is gone")


def test_limits_of_open_files_are_raised_as_far_as_they_go() -> None:
    """A thousand members are a thousand connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, before[1]))
    try:
        allow_descriptors(700)
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        allow_descriptors(600)
        kept = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert (raised, kept) == (700, 700)
