"""A coordinator on a real port, and raw clients of it: members and broken programs."""

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
from clusterrun.policy.members import LOCAL_CONNECTION
from free_ports import free_port

from tests.network.frames import framed, taken
from tests.network.nodes import (
    PATIENCE,
    Notices,
    done,
    hello,
    join_context,
    opened_job,
    result,
    run_until,
)

OPENING = struct.pack(">12sHcB32s", MAGIC, VERSION, b"M", 0, b"m" * 32) + NO_ADDRESS
"""A member's part of the handshake without a token; the coordinator's is as long."""


class RunningCoordinator:
    """A coordinator with a clock that can be set forward."""

    def __init__(self, port: int, nodes: int, token: bytes = b"", **values: object) -> None:
        self.notices = Notices()
        self.port = port
        self.ahead = 0.0
        self.loop = Loop[events.Event](lambda: time.monotonic() + self.ahead)
        rendezvous = open_rendezvous_port(Setting((port,), "--master-port"), "n0")
        opened = opened_job(nodes, **values)
        now = self.loop.clock()
        coordinator = Coordinator(
            opened.settings, opened.own_hello, port, now, has_token=bool(token)
        )
        node = JoiningNode(
            opened.settings, opened.own_hello, token, join_context(self.notices, interfaces={})
        )
        # Messages to node 0's own agent are ignored.
        self.server = server.CoordinatorServer(
            node, self.loop, coordinator, lambda _message, _now: (), port=rendezvous
        )

    def run_for(self, seconds: float = 0.0) -> None:
        """Run one turn of the loop, of at most ``seconds``."""
        self.loop.turn(self.loop.clock() + seconds)

    def send_from_node_zero(self, message: messages.AgentMessage) -> None:
        """Send a message of node 0's own agent."""
        self.server.handle(MessageReceived(LOCAL_CONNECTION, message, self.loop.clock()))

    def close(self) -> None:
        """Close the server and the loop."""
        self.server.finish(0.0)
        self.loop.close()


class Client:
    """A connection to the coordinator that sends and reads raw bytes."""

    def __init__(self, job: RunningCoordinator) -> None:
        self.socket = socket.create_connection(("127.0.0.1", job.port), timeout=PATIENCE)
        self.socket.setblocking(False)
        self.received = bytearray()
        self.at_end = False
        self.answers: list[messages.HeartbeatAnswer] = []
        """To its Hello and its heartbeats."""
        self._messages: list[messages.FromCoordinator] = []
        """Other messages that were not returned yet."""
        self._job = job

    def send_bytes(self, data: bytes) -> "Client":
        self.socket.send(data)
        return self

    def join(self, introduction: messages.Hello) -> "Client":
        """Do the handshake and send a hello."""
        self.send_bytes(OPENING)
        self.read(len(OPENING))
        return self.send(introduction)

    def send(self, message: messages.FromMember) -> "Client":
        return self.send_bytes(framed(message))

    def read(self, count: int) -> bytes:
        """Return the next bytes."""
        run_until(lambda: len(self.read_available().received) >= count, self._job)
        taken = bytes(self.received[:count])
        del self.received[:count]
        return taken

    def receive(self) -> messages.FromCoordinator:
        """Return the next message that is not a ``HeartbeatAnswer``."""
        run_until(self.unread, self._job)
        return self._messages.pop(0)

    def receive_kind(self, kind: type[messages.FromCoordinator]) -> messages.FromCoordinator:
        """Return the next message of this kind; drop others."""
        while not isinstance(message := self.receive(), kind):
            pass
        return message

    def heartbeat_is_answered(self, sent: float) -> bool:
        """Send a heartbeat and wait; return whether its answer came before any other message."""
        self.send(messages.Heartbeat(sent))
        run_until(lambda: self.unread() or sent in {each.to for each in self.answers}, self._job)
        return not self._messages

    def unread(self) -> list[messages.FromCoordinator]:
        """Return the messages that have come, except ``HeartbeatAnswer``, and were not returned yet."""
        for message in taken(FROM_COORDINATOR, self.read_available().received):
            if isinstance(message, messages.HeartbeatAnswer):
                self.answers.append(message)
            else:
                self._messages.append(message)
        return self._messages

    def is_disconnected(self) -> bool:
        """Wait until the coordinator has closed the connection; then return True."""
        run_until(lambda: self.read_available().at_end, self._job)
        return self.at_end

    def read_available(self) -> "Client":
        """Read all bytes that have come, without blocking."""
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


def start_coordinator(
    stack: ExitStack, nodes: int = 2, token: bytes = b"", **values: object
) -> RunningCoordinator:
    """Return a coordinator that is closed at the end."""
    made = RunningCoordinator(free_port(), nodes, token, **values)
    stack.callback(made.close)
    return made


def connect(stack: ExitStack, job: RunningCoordinator) -> Client:
    """Return a client that is closed at the end."""
    made = Client(job)
    stack.callback(made.socket.close)
    return made


def second_node_joins(stack: ExitStack, job: RunningCoordinator) -> bool:
    """Let the second node join; return whether the job starts with it."""
    return isinstance(connect(stack, job).join(hello(1)).receive(), messages.WorldFormed)


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
