"""A program between a member and node 0: with a token, it takes no job over."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from free_ports import free_port
from msgspec.msgpack import encode
from msgspec.structs import replace

from tests.network.door import FROM_COORDINATOR, RendezvousError, Terms, World, messages
from tests.network.frames import as_frame
from tests.network.nodes import PATIENCE, Node, Notices, job_terms, outside, ranked_hello

# Agents have one thread; here each node is a thread, and a name is looked up in a fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

NODE_ZERO = "127.0.0.1"
ELSEWHERE = "0.0.0.0"  # noqa: S104 - no socket binds to it
"""Calls to it reach this machine, but no interface has it: as an address that is translated."""

STRANGER = "203.0.113.9"
TOKEN = b"secret"

PassOn = Callable[[bytes], bytes]
"""Takes what node 0 has sent on one connection, and returns what its member gets."""


class Relay:
    """Listens at a port of node 0's host, and passes each connection on to that of node 0."""

    def __init__(self, node_zero: int, passes_on: Callable[[], PassOn]) -> None:
        self.port = free_port()
        self._node_zero = node_zero
        self._passes_on = passes_on
        self._listener = socket.create_server((NODE_ZERO, self.port))
        self._ends: list[socket.socket] = []
        self._threads = ThreadPoolExecutor(64)
        self._threads.submit(self._accept)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                called, _ = self._listener.accept()
                self._ends.append(called)
                with suppress(ConnectionRefusedError):
                    calls = socket.create_connection((NODE_ZERO, self._node_zero))
                    self._ends.append(calls)
                    self._threads.submit(self._pump, called, calls, bytes)
                    self._threads.submit(self._pump, calls, called, self._passes_on())
                    continue
                called.close()

    def _pump(self, source: socket.socket, target: socket.socket, passes_on: PassOn) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(passes_on(data))
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._threads.shutdown()
        for end in (self._listener, *self._ends):
            end.close()


class Rewritten:
    """What node 0 sends, but with the address of a stranger in each world."""

    def __init__(self, token: bytes) -> None:
        self._of_handshake = 48 + 18 + (33 if token else 0)
        self._mac = 16 if token else 0
        self._frames = bytearray()

    def __call__(self, data: bytes) -> bytes:
        passed, self._frames = data[: self._of_handshake], self._frames + data[self._of_handshake :]
        self._of_handshake -= len(passed)
        while len(self._frames) >= 4:
            end = 4 + int.from_bytes(self._frames[:4], "big")
            # Frames arrive whole. If nothing follows this one, there are no MACs.
            mac = min(self._mac, len(self._frames) - end)
            message = FROM_COORDINATOR.decode(self._frames[4:end])
            if isinstance(message, messages.WorldFormed):
                message = replace(message, world=replace(message.world, master_addr=STRANGER))
            passed += as_frame(encode(message)) + self._frames[end : end + mac]
            del self._frames[: end + mac]
        return passed


class Job:
    """Node 0, and node 1 that calls it through a relay."""

    def __init__(self, stack: ExitStack, token: bytes, passes_on: Callable[[], PassOn]) -> None:
        self.port = free_port()
        self.notices = Notices()
        self.relay = Relay(self.port, passes_on)
        self._token = token
        self._nodes: list[Node] = []
        self._executor = stack.enter_context(ThreadPoolExecutor(2))
        stack.callback(self.relay.close)
        terms = job_terms(self.port, timeout=2.0)
        self.node_zero = self._executor.submit(self._joins, 0, terms)
        stack.callback(self._ends)

    def member_joins(self, host: str, *more_ports: int) -> World:
        """Let node 1 call ``host`` at the relay's port, and at others."""
        terms = job_terms((self.relay.port, *more_ports), host=host, timeout=2.0)
        return self._executor.submit(self._joins, 1, terms).result(PATIENCE)

    def _joins(self, number: int, terms: Terms) -> World:
        where = outside(self.notices if number == 0 else None)
        node = Node(terms, ranked_hello(number), self._token, where)
        self._nodes.append(node)
        joined = node.joins()
        assert isinstance(joined, World)
        return joined

    def _ends(self) -> None:
        with suppress(RendezvousError):
            self.node_zero.result(PATIENCE)
        for node in reversed(self._nodes):
            node.leaves()


def test_without_a_token_a_relay_may_send_workers_elsewhere(stack: ExitStack) -> None:
    """Why there are tokens: this is what the other tests keep from happening."""
    job = Job(stack, b"", lambda: Rewritten(b""))

    assert job.member_joins(ELSEWHERE).master_addr == STRANGER


def test_with_a_token_no_changed_world_is_accepted(stack: ExitStack) -> None:
    """Though the relay passes the handshake on unchanged, and both sides have the token."""
    job = Job(stack, TOKEN, lambda: Rewritten(TOKEN))

    with pytest.raises(RendezvousError, match="could not connect to node 0"):
        job.member_joins(ELSEWHERE)

    assert job.node_zero.result(PATIENCE).nodes == 2


def test_a_relay_that_changes_nothing_is_refused_on_node_zeros_host(stack: ExitStack) -> None:
    """It might drop or delay what it likes."""
    job = Job(stack, TOKEN, lambda: bytes)

    with pytest.raises(RendezvousError, match="through another program on its host") as caught:
        job.member_joins(NODE_ZERO)

    assert caught.value.hint.endswith("or give the job another port with --master-port")
    how = "and another program on this host passed that on"
    with pytest.raises(RendezvousError):
        job.node_zero.result(PATIENCE)
    assert job.notices[0] == f"refused 127.0.0.1: it called 127.0.0.1:{job.relay.port}, {how}"


def test_another_port_of_node_zero_is_tried(stack: ExitStack) -> None:
    """The program may have taken the first of them before node 0 began."""
    job = Job(stack, TOKEN, lambda: bytes)

    assert job.member_joins(NODE_ZERO, job.port).master_addr == NODE_ZERO


def test_address_translation_is_no_relay(stack: ExitStack) -> None:
    """The address is none of node 0's host: it may lead there through a service."""
    job = Job(stack, TOKEN, lambda: bytes)

    assert job.member_joins(ELSEWHERE).nodes == 2
