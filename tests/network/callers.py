"""A coordinator on a real port, and callers: members, strangers, broken programs."""

import socket
import struct
import time
from contextlib import ExitStack

import msgspec
from clusterrun.job.declarations import Setting
from clusterrun.loop import Loop
from clusterrun.network import server
from clusterrun.network.channel import FROM_COORDINATOR, MAX_HELLO_BYTES
from clusterrun.network.handshake import MAGIC, NO_ADDRESS, VERSION
from clusterrun.network.joining_node import JoiningNode
from clusterrun.network.rendezvous_port import open_rendezvous_port
from clusterrun.policy import events, messages
from clusterrun.policy.coordinator import Coordinator
from clusterrun.policy.job_events import MessageReceived
from clusterrun.policy.members import OWN
from free_ports import free_port

from tests.network.frames import framed, taken
from tests.network.nodes import (
    PATIENCE,
    Notices,
    done,
    hello,
    opened_job,
    outside,
    result,
    take_turns,
)

OPENING = struct.pack(">12sHcB32s", MAGIC, VERSION, b"M", 0, b"m" * 32) + NO_ADDRESS
"""A member's part of the handshake without a token; the coordinator's is as long."""


class Running:
    """A coordinator, with a clock that can be set forward."""

    def __init__(self, port: int, nodes: int, token: bytes = b"", **values: object) -> None:
        self.notices = Notices()
        self.port = port
        self.ahead = 0.0
        self.loop = Loop[events.Event](lambda: time.monotonic() + self.ahead)
        door = open_rendezvous_port(Setting((port,), "--master-port"), "n0")
        opened = opened_job(nodes, **values)
        now = self.loop.clock()
        coordinator = Coordinator(
            opened.settings, opened.own_hello, port, now, has_token=bool(token)
        )
        node = JoiningNode(
            opened.settings, opened.own_hello, token, outside(self.notices, interfaces={})
        )
        # What node 0's own agent would learn is of no interest.
        self.server = server.CoordinatorServer(
            node, self.loop, coordinator, lambda _message, _now: (), port=door
        )

    def go_on(self, seconds: float = 0.0) -> None:
        """Give it a turn, which may take so long."""
        self.loop.turn(self.loop.clock() + seconds)

    def node_zero_sends(self, message: messages.AgentMessage) -> None:
        """Let node 0's own agent send a message."""
        self.server.handle(MessageReceived(OWN, message, self.loop.clock()))

    def close(self) -> None:
        """Close all."""
        self.server.finish(0.0)
        self.loop.close()


class Caller:
    """A connection to the coordinator that sends what a test gives it."""

    def __init__(self, job: Running) -> None:
        self.socket = socket.create_connection(("127.0.0.1", job.port), timeout=PATIENCE)
        self.socket.setblocking(False)
        self.received = bytearray()
        self.at_end = False
        self.answers: list[messages.HeartbeatAnswer] = []
        """Those to its Hello and its heartbeats."""
        self._messages: list[messages.FromCoordinator] = []
        """Others, which no test has seen yet."""
        self._job = job

    def sends_bytes(self, data: bytes) -> "Caller":
        """Send bytes."""
        self.socket.send(data)
        return self

    def joins(self, introduction: messages.Hello) -> "Caller":
        """Do the handshake and send a hello, as a member does."""
        self.sends_bytes(OPENING)
        self.reads(len(OPENING))
        return self.sends(introduction)

    def sends(self, message: messages.FromMember) -> "Caller":
        """Send a message."""
        return self.sends_bytes(framed(message))

    def reads(self, count: int) -> bytes:
        """Return the next bytes."""
        take_turns(lambda: len(self.listen().received) >= count, self._job)
        taken = bytes(self.received[:count])
        del self.received[:count]
        return taken

    def receives(self) -> messages.FromCoordinator:
        """Return the next message that answers no heartbeat."""
        take_turns(self.unread, self._job)
        return self._messages.pop(0)

    def receives_at_last(self, kind: type[messages.FromCoordinator]) -> messages.FromCoordinator:
        """Return the next message of this kind, ignoring others."""
        while not isinstance(message := self.receives(), kind):
            pass
        return message

    def is_answered(self, sent: float) -> bool:
        """Send a heartbeat at a time of this caller; wait for the answer."""
        self.sends(messages.Heartbeat(sent))
        take_turns(lambda: self.unread() or sent in {each.to for each in self.answers}, self._job)
        return not self._messages

    def unread(self) -> list[messages.FromCoordinator]:
        """Return the messages that have come and were not received, apart from answers."""
        for message in taken(FROM_COORDINATOR, self.listen().received):
            if isinstance(message, messages.HeartbeatAnswer):
                self.answers.append(message)
            else:
                self._messages.append(message)
        return self._messages

    def is_disconnected(self) -> bool:
        """Wait until the coordinator has closed the connection."""
        take_turns(lambda: self.listen().at_end, self._job)
        return self.at_end

    def listen(self) -> "Caller":
        """Read all received bytes, without waiting."""
        while not self.at_end:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            self.received += data
            self.at_end = not data
        return self


def running(stack: ExitStack, nodes: int = 2, token: bytes = b"", **values: object) -> Running:
    """Return a coordinator that is closed at the end."""
    made = Running(free_port(), nodes, token, **values)
    stack.callback(made.close)
    return made


def caller(stack: ExitStack, job: Running) -> Caller:
    """Return a caller that is closed at the end."""
    made = Caller(job)
    stack.callback(made.socket.close)
    return made


def joined(stack: ExitStack, job: Running) -> bool:
    """Let the second node join; return whether the job starts with it."""
    return isinstance(caller(stack, job).joins(hello(1)).receives(), messages.WorldFormed)


GARBAGE = {
    "an HTTP client": b"GET / HTTP/1.1\r\nHost: n0:29500\r\n\r\n",
    "an ssh client": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "a TLS client": bytes.fromhex("1603010200010001fc0303"),
    "zeros": bytes(5000),
    "another version": struct.pack(">12sHcB32s", MAGIC, 9, b"M", 0, b"m" * 32),
    "a coordinator": struct.pack(">12sHcB32s", MAGIC, 2, b"C", 0, b"m" * 32),
    "one with a token": struct.pack(">12sHcB32s", MAGIC, VERSION, b"M", 1, b"m" * 32),
    "a huge message": OPENING + b"\xff\xff\xff\xff",
    "a long hello": OPENING + (MAX_HELLO_BYTES + 1).to_bytes(4, "big"),
    "no message": OPENING + b"\0\0\0\4abcd",
    "a report without a hello": OPENING + framed(done(0, [])),
    "half a report": OPENING + framed(messages.FirstFailure(0, result(0, 1), 0.0))[:40],
    "a wrong hello": OPENING + b"\0\0\0\1\x80" + msgspec.msgpack.encode({"type": "Hello"}),
}
"""Bytes that no member sends, by their sender."""
