"""How a command asks all agents at once, and does not wait long for one that hangs."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clusterrun.cli.run_selection import query_agent
from clusterrun.errors import NoJobError
from clusterrun.network.control_client import NoAnswer, RunningJob, SilentAgent, ask, find_jobs
from clusterrun.network.handshake import MAGIC, VERSION
from clusterrun.network.requests import Description, StopJob
from clusterrun.policy import queries
from clusterrun.user_sockets import listen_at

DESCRIBED = Description("abc", "n0", os.getpid(), 0, 1, "train.py")
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]


def opening(version: int) -> bytes:
    return struct.pack(">12sHcB32s", MAGIC, version, b"C", 0, bytes(32))


def socket_of(folder: Path, number: int) -> Path:
    return folder / f"job-{BOOT}-{os.getpid()}-{number}"


@contextmanager
def agent(path: Path, serve: Callable[[socket.socket], object]) -> Iterator[None]:
    """Listen at ``path``, and serve one command."""
    with listen_at(path) as listener:

        def live() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(5)
                serve(connection)

        thread = threading.Thread(target=live)
        thread.start()
        yield
        thread.join()


def newer(connection: socket.socket) -> None:
    """Answer as an agent of the next version."""
    connection.recv(100)
    connection.sendall(opening(VERSION + 1))
    connection.recv(100)


def other_answers(connection: socket.socket) -> None:
    """Answer as one of this version whose messages are others."""
    connection.recv(100)
    connection.sendall(opening(VERSION) + bytes(18))
    connection.recv(100)
    connection.sendall(b"\0\0\0\1\x80")
    connection.recv(100)


@pytest.mark.parametrize(
    ("serve", "why"),
    [
        (
            newer,
            (
                f"it speaks version {VERSION + 1} of clusterrun's protocol, but this clusterrun speaks"
                f" {VERSION}"
            ),
        ),
        (other_answers, "it runs a different version of clusterrun"),
        (lambda _: None, "it has closed the connection"),
        (lambda connection: connection.recv(100), "it has closed the connection"),
    ],
    ids=["a newer one", "one with other messages", "one that ends", "one that ends while asked"],
)
def test_missing_answer_has_a_reason(
    tmp_path: Path, serve: Callable[[socket.socket], object], why: str
) -> None:
    """Listing the jobs names an agent of a different version."""
    path = socket_of(tmp_path, 0)
    with agent(path, serve), pytest.raises(NoAnswer) as caught:
        ask(RunningJob(path, DESCRIBED), StopJob(at_once=False), queries.Answers)
    path.unlink()
    with agent(path, serve):
        found = find_jobs([tmp_path])

    assert str(caught.value) == why
    assert found.jobs == ()
    assert [each.version for each in found.silent] == ([why] if "version" in why else [])


def test_ended_agent_is_not_listed(tmp_path: Path) -> None:
    """With or without its socket, the command knows at once."""
    path = socket_of(tmp_path, 0)
    listen_at(path).close()
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(NoAnswer):
            ask(RunningJob(path, DESCRIBED), StopJob(at_once=False), queries.Answers)
        path.unlink(missing_ok=True)

    assert time.monotonic() - began < 1.0


def test_stopped_agents_share_one_time_limit(tmp_path: Path) -> None:
    """They are alive and do not answer, whether their queue is full or not."""
    stopped, full = socket_of(tmp_path, 0), socket_of(tmp_path, 1)
    with listen_at(stopped), listen_at(full) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.listen(0)
        first.connect(str(full))
        began = time.monotonic()
        found = find_jobs([tmp_path], 0.3)
        with pytest.raises(NoAnswer, match=r"no answer within 0\.1 s"):
            ask(RunningJob(full, DESCRIBED), StopJob(at_once=False), queries.Answers, 0.1)
        took = time.monotonic() - began

    assert (found.jobs, found.silent) == ((), (SilentAgent(os.getpid()),) * 2)
    assert 0.4 <= took < 4.0


def test_full_queue_is_retried(tmp_path: Path) -> None:
    """The kernel does not report when it has room again."""
    path = socket_of(tmp_path, 0)
    with listen_at(path) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.listen(0)
        first.connect(str(path))

        def serve() -> None:
            # The command finds the queue full.
            time.sleep(0.1)
            listener.accept()[0].close()
            with listener.accept()[0] as connection:
                newer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(NoAnswer, match="speaks version"):
            ask(RunningJob(path, DESCRIBED), StopJob(at_once=False), queries.Answers, 5.0)
        thread.join()


def test_agent_that_has_closed_the_connection_is_not_called_busy(tmp_path: Path) -> None:
    """The process whose id it has, here this one, may still run for a moment."""
    path = socket_of(tmp_path, 0)
    with agent(path, lambda _: None), pytest.raises(NoJobError) as caught:
        query_agent(RunningJob(path, DESCRIBED), StopJob(at_once=False), queries.Answers)

    assert caught.value.message.endswith(" does not answer: it has closed the connection")
    assert caught.value.hint == "it may just have ended"
