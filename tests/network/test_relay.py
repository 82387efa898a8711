"""A program that forwards connections between a member and node 0 of a job with a token."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from clusterrun.errors import RendezvousError
from clusterrun.planning.plan import World
from clusterrun.policy.settings import RendezvousSettings
from free_ports import free_port

from tests.network.nodes import PATIENCE, Node, Notices, job_settings, join_context, ranked_hello

# Agents have one thread; here each node is a thread, and a name is looked up in a fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

NODE_ZERO = "127.0.0.1"
ELSEWHERE = "0.0.0.0"  # noqa: S104 - no socket binds to it
"""Calls to it reach this machine, but no interface has it: as an address that is translated."""

TOKEN = b"secret"


class Relay:
    """Listens at a port of node 0's host, and passes each connection on to that of node 0."""

    def __init__(self, node_zero: int) -> None:
        self.port = free_port()
        self._node_zero = node_zero
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
                    self._threads.submit(self._pump, called, calls)
                    self._threads.submit(self._pump, calls, called)
                    continue
                called.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
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


class Job:
    """Node 0, and node 1 that calls it through a relay."""

    def __init__(self, stack: ExitStack) -> None:
        self.port = free_port()
        self.notices = Notices()
        self.relay = Relay(self.port)
        self._nodes: list[Node] = []
        self._executor = stack.enter_context(ThreadPoolExecutor(2))
        stack.callback(self.relay.close)
        settings = job_settings(self.port, rdzv_timeout=2.0)
        self.node_zero = self._executor.submit(self._joins, 0, settings)
        stack.callback(self._ends)

    def join_member(self, host: str, *more_ports: int) -> World:
        """Let node 1 call ``host`` at the relay's port, and at others."""
        settings = job_settings((self.relay.port, *more_ports), host=host, rdzv_timeout=2.0)
        return self._executor.submit(self._joins, 1, settings).result(PATIENCE)

    def _joins(self, number: int, settings: RendezvousSettings) -> World:
        where = join_context(self.notices if number == 0 else None)
        node = Node(settings, ranked_hello(number), TOKEN, where)
        self._nodes.append(node)
        joined = node.join()
        assert isinstance(joined, World)
        return joined

    def _ends(self) -> None:
        with suppress(RendezvousError):
            self.node_zero.result(PATIENCE)
        for node in reversed(self._nodes):
            node.leave()


def test_relay_on_node_zeros_host_is_refused(stack: ExitStack) -> None:
    """It changes nothing, but could drop or delay messages."""
    job = Job(stack)

    with pytest.raises(RendezvousError, match="through another program on its host") as caught:
        job.join_member(NODE_ZERO)

    assert caught.value.hint.endswith("or give the job another port with --master-port")
    how = "and another program on this host forwarded the connection"
    with pytest.raises(RendezvousError):
        job.node_zero.result(PATIENCE)
    assert job.notices[0] == f"refused 127.0.0.1: it connected to 127.0.0.1:{job.relay.port}, {how}"


def test_next_port_is_tried_after_a_relay(stack: ExitStack) -> None:
    """The program may have taken the first port before node 0 started."""
    job = Job(stack)

    assert job.join_member(NODE_ZERO, job.port).master_addr == NODE_ZERO


def test_address_translation_is_not_a_relay(stack: ExitStack) -> None:
    """The dialed address does not belong to node 0's host."""
    job = Job(stack)

    assert job.join_member(ELSEWHERE).nodes == 2
