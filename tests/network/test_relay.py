"""A program that forwards connections between a member and node 0 of a job with a token."""

import socket
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from free_ports import free_port

from tests.network.nodes import Notices, job_settings, join_context, ranked_hello
from tests.network.threads import NAMES_ARE_LOOKED_UP_IN_FORKS, Joined, Nodes, error, world

pytestmark = NAMES_ARE_LOOKED_UP_IN_FORKS

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
    """Node 0, and a relay through which node 1 calls it."""

    def __init__(self, stack: ExitStack, nodes: Nodes) -> None:
        self.port = free_port()
        self.notices = Notices()
        self.relay = Relay(self.port)
        stack.callback(self.relay.close)
        self._nodes = nodes
        settings = job_settings(self.port, rdzv_timeout=2.0)
        self.node_zero = nodes.join(settings, ranked_hello(0), join_context(self.notices), TOKEN)

    def member(self, host: str, *more_ports: int) -> Future[Joined]:
        """Let node 1 call ``host`` at the relay's port, and at others."""
        settings = job_settings((self.relay.port, *more_ports), host=host, rdzv_timeout=2.0)
        return self._nodes.join(settings, ranked_hello(1), token=TOKEN)


@pytest.fixture
def job(stack: ExitStack, nodes: Nodes) -> Job:
    return Job(stack, nodes)


def test_relay_on_node_zeros_host_is_refused(job: Job) -> None:
    """It changes nothing, but could drop or delay messages."""
    refused = error(job.member(NODE_ZERO))

    assert "through another program on its host" in refused.message
    assert refused.hint.endswith("or give the job another port with --master-port")
    how = "and another program on this host forwarded the connection"
    error(job.node_zero)
    assert job.notices[0] == f"refused 127.0.0.1: it connected to 127.0.0.1:{job.relay.port}, {how}"


def test_next_port_is_tried_after_a_relay(job: Job) -> None:
    """The program may have taken the first port before node 0 started."""
    assert world(job.member(NODE_ZERO, job.port)).master_addr == NODE_ZERO


def test_address_translation_is_not_a_relay(job: Job) -> None:
    """The dialed address does not belong to node 0's host."""
    assert world(job.member(ELSEWHERE)).nodes == 2
