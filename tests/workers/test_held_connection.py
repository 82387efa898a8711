"""The fork server keeps the agent's connection to node 0 open until no worker is left."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from clusterrun.loop import Loop
from clusterrun.policy import events
from clusterrun.workers import fork_server_process
from clusterrun.workers.fork_server_client import ForkServer

from tests.imports import imports
from tests.workers.fork_server_bench import PATIENCE, Bench, preparation_for
from tests.workers.test_fork_server import OPEN_DESCRIPTORS
from tests.workers.test_fork_server_cleanup import STUBBORN

AGENT = f"""
import os, signal, socket, sys
from msgspec.structs import replace
from tests.plans import plan_of, worker_of
{imports(ForkServer, Loop, fork_server_process.ServerProcess, fork_server_process.ServerCommand)}

guarded, port, *command = sys.argv[1:]
server = ForkServer(ServerProcess(ServerCommand(sys.executable, dict(os.environ), guarded == "guarded")))
loop = Loop(lambda: 7.0)
server.run_in(loop)
connection = socket.create_connection(("127.0.0.1", int(port)))
server.keep_connection(connection.fileno())
streams = (os.open(os.devnull, os.O_RDONLY), 1, 2)
worker = worker_of(0, command=tuple(command))
server.start_worker(plan_of(1), worker, streams, startup_folder=None, foreground_group=None)
loop.next_event()
connection.sendall(b"last words")
signal.pause()
"""
"""Opens a connection to a port, starts a worker, and waits."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Return the listening socket of node 0."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        yield listener


@pytest.fixture
def pair(listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return both ends of a connection: the agent's, and node 0's."""
    with socket.create_connection(listener.getsockname(), PATIENCE) as agents:
        node_zeros, _ = listener.accept()
        with node_zeros:
            node_zeros.settimeout(PATIENCE)
            yield agents, node_zeros


def read_to_the_end(connection: socket.socket) -> bytes:
    text = b""
    while chunk := connection.recv(1000):
        text += chunk
    return text


@pytest.mark.parametrize("guarded", ["guarded", "alone"])
@pytest.mark.parametrize("unread", [b"", b"a heartbeat's answer" * 10_000])
def test_killed_agent_connection_ends_after_its_workers(
    listener: socket.socket, guarded: str, unread: bytes
) -> None:
    """With an end of file, even if the agent has not read everything: a reset might mean a network fault."""
    command = ["sh", "-c", f"{STUBBORN} exec sleep 1000"]
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, guarded, str(listener.getsockname()[1]), *command],
        stdout=subprocess.PIPE,
    )
    connection, _ = listener.accept()
    with connection, agent, ExitStack() as cleanup:
        cleanup.callback(agent.kill)
        connection.settimeout(PATIENCE)
        assert connection.recv(1000) == b"last words"
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"here\n"
        connection.sendall(unread)

        agent.kill()

        assert read_to_the_end(connection) == b""
        os.set_blocking(agent.stdout.fileno(), False)
        # All processes that could print have ended.
        assert agent.stdout.read() == b""


def is_held_by(pid: int, connection: socket.socket) -> bool:
    inode = os.fstat(connection.fileno()).st_ino
    folder = Path(f"/proc/{pid}/fd")
    return f"socket:[{inode}]" in {str(file.readlink()) for file in folder.iterdir()}


def test_workers_do_not_inherit_connection(
    bench: Bench, pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    """Whether they execute their program or run in place."""
    script = tmp_path / "script.py"
    script.write_text(OPEN_DESCRIPTORS)
    command = (sys.executable, "-u", str(script))
    bench.server.prepare(preparation_for(*command, must_fork=True))

    # The server does not receive this before it is prepared.
    bench.server.keep_connection(pair[0].fileno())
    bench.expect(events.ForkServerPrepared)
    in_place = bench.spawn(0, *command)
    executed = bench.spawn(1, sys.executable, "-c", OPEN_DESCRIPTORS)

    assert (in_place.rest(), executed.rest()) == ("0 1 2 ", "0 1 2 ")
    assert is_held_by(bench.server.pid, pair[0])


def test_new_connection_replaces_the_old_one(
    bench: Bench, listener: socket.socket, pair: tuple[socket.socket, socket.socket]
) -> None:
    """As when an excluded node joins again."""
    first, at_node_zero = pair
    bench.server.keep_connection(first.fileno())
    with socket.create_connection(listener.getsockname()) as second:
        bench.server.keep_connection(second.fileno())
        first.close()

        assert read_to_the_end(at_node_zero) == b""
        assert is_held_by(bench.server.pid, second)


def test_closing_agent_can_read_to_the_end(
    bench: Bench, pair: tuple[socket.socket, socket.socket]
) -> None:
    agents, node_zeros = pair
    bench.server.keep_connection(agents.fileno())
    bench.spawn(0, "true")
    bench.events(2)
    node_zeros.sendall(b"the verdict")

    bench.server.close()

    assert agents.recv(1000) == b"the verdict"
