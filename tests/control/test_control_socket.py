"""The socket of a running agent: commands find it, ask it, and no other user does."""

import os
import select
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from tests.as_another_user import run_as_another_user
from tests.control.door import (
    NEVER,
    SECONDS_TO_ASK,
    Ask,
    ControlSocket,
    Description,
    Event,
    SuspensionWanted,
    connect_to,
    find_jobs,
    listen_at,
    run_command_line,
    socket_folder,
)
from tests.imports import imports
from tests.waiting import wait_until

T = TypeVar("T")


class Unlimited:
    """Runs work on files as it is."""

    def run(self, work: Callable[[], T]) -> T | None:
        return work()


def no_look(_ask: Ask, _reply: Callable[[bytes], None], _now: float) -> Iterable[Event]:
    """Answer no look into the job."""
    return ()


class Agent:
    """An agent's control socket, in a loop of its own."""

    def __init__(self, run_id: str, environ: Mapping[str, str]) -> None:
        described = Description(run_id, "n0", os.getpid(), 0, 2, "train.py")
        self.control = ControlSocket(
            lambda: described, no_look, environ, Unlimited(), list[Path]().append
        )
        self.events: list[Event] = list(self.control.events(0.0))
        self._ends = False
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        while not self._ends:
            self.events += self.control.events(0.0)

    def end(self) -> None:
        self._ends = True
        self._thread.join()
        with suppress(ValueError):
            self.control.close()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def agents(environ: Mapping[str, str]) -> Iterator[Callable[[str], Agent]]:
    """Start agents of runs."""
    started: list[Agent] = []

    def start(run_id: str) -> Agent:
        started.append(Agent(run_id, environ))
        return started[-1]

    yield start
    for agent in started:
        agent.end()


def folder_of(environ: Mapping[str, str]) -> Path:
    folder = socket_folder(environ)
    assert folder is not None
    return folder


def test_the_only_run_needs_no_name(
    agents: Callable[[str], Agent], environ: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its agent wants a suspension."""
    agent = agents("abc")

    code = run_command_line(["suspend"], environ)

    assert code == 0
    assert "run abc is asked to suspend" in capsys.readouterr().out
    wait_until(lambda: agent.events, "the request")
    assert agent.events == [SuspensionWanted("clusterrun suspend", 0.0)]


@pytest.mark.parametrize("words", [(), ("other",)])
def test_several_runs_are_listed(
    agents: Callable[[str], Agent],
    environ: Mapping[str, str],
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    """Without a name, or with a wrong one; nothing is asked for."""
    started = [agents("abc"), agents("def")]

    code = run_command_line(["suspend", *words], environ)

    error = capsys.readouterr().err
    assert code == 2
    assert "clusterrun suspend abc    # train.py, node 0 of 2, pid" in error
    assert "clusterrun suspend def" in error
    assert [agent.events for agent in started] == [[], []]


def test_one_of_several_runs_is_named(
    agents: Callable[[str], Agent], environ: Mapping[str, str]
) -> None:
    """Two agents of one run on this host are one run."""
    one, _, other = agents("abc"), agents("abc"), agents("def")

    code = run_command_line(["suspend", "def"], environ)

    assert code == 0
    wait_until(lambda: other.events, "the request")
    assert one.events == []
    assert run_command_line(["suspend", "abc"], environ) == 0


def test_without_a_run_the_command_says_so(
    environ: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing to ask."""
    assert run_command_line(["suspend"], environ) == 2
    assert "no run of yours has an agent on this host" in capsys.readouterr().err


def test_two_words_are_refused(
    environ: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One run at a time."""
    assert run_command_line(["suspend", "abc", "def"], environ) == 2
    assert "clusterrun suspend takes one [RUN], and def is none" in capsys.readouterr().err


def test_the_socket_of_a_killed_agent_is_removed(environ: Mapping[str, str]) -> None:
    """No process listens there, and the process of its name is dead."""
    folder = folder_of(environ)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    stale = folder / f"job-{boot}-{child}-00"
    listen_at(stale).close()
    # Another host that shares the folder may have such a process.
    other = folder / f"job-{'0' * 8}-{child}-00"
    listen_at(other).close()

    assert find_jobs([folder]).jobs == ()
    assert not stale.exists()
    assert other.exists()


def test_an_agent_removes_what_it_has_made(
    agents: Callable[[str], Agent], environ: Mapping[str, str]
) -> None:
    """Socket and folder, unless another job has a socket there."""
    one, other = agents("abc"), agents("def")
    folder = folder_of(environ)

    one.end()
    assert len(list(folder.iterdir())) == 1
    other.end()

    assert not folder.exists()


@pytest.mark.parametrize("sent", [b"", b"\xff", b"x" * 100_000])
def test_what_is_no_request_is_dropped(environ: Mapping[str, str], sent: bytes) -> None:
    """Garbage, or more of it than any request has."""
    control = ControlSocket(
        lambda: pytest.fail("described"), no_look, environ, Unlimited(), list[Path]().append
    )
    list(control.events(0.0))
    (path,) = folder_of(environ).iterdir()

    with connect_to(path, 5.0) as connection:
        connection.settimeout(5.0)
        thread = threading.Thread(target=send_all, args=(connection, sent))
        thread.start()
        events: list[Event] = []

        def is_dropped() -> bool:
            events.extend(control.events(0.0))
            return bool(closed.poll(0))

        closed = select.poll()
        closed.register(connection, select.POLLHUP | select.POLLERR)
        wait_until(is_dropped, "the connection is closed")
        thread.join()
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""

    assert events == []
    control.close()


def send_all(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


def test_a_caller_without_a_request_is_dropped(environ: Mapping[str, str]) -> None:
    """After some seconds, for which the loop's timer is set."""
    control = ControlSocket(
        lambda: pytest.fail("described"), no_look, environ, Unlimited(), list[Path]().append
    )
    list(control.events(0.0))
    (path,) = folder_of(environ).iterdir()

    with connect_to(path, 5.0) as connection:
        list(control.events(1.0))
        assert control.due == 1.0 + SECONDS_TO_ASK
        list(control.events(control.due))

        assert connection.recv(1) == b""
    control.close()


AS_ANOTHER_USER = (
    imports(connect_to)
    + """
import sys
from pathlib import Path
try:
    connect_to(Path(sys.argv[1]), 5.0)
except PermissionError as error:
    print(error)
"""
)


@pytest.mark.needs("root", "setpriv")
def test_another_user_is_neither_served_nor_asked(environ: Mapping[str, str]) -> None:
    """SO_PEERCRED shows the user, even where permissions do not keep him out."""
    control = ControlSocket(
        lambda: pytest.fail("described"), no_look, environ, Unlimited(), list[Path]().append
    )
    list(control.events(0.0))
    (path,) = folder_of(environ).iterdir()

    done = run_as_another_user(AS_ANOTHER_USER, str(path))
    list(control.events(0.0))

    assert "another user's process listens there" in done.stdout, done.stderr
    assert control.due == NEVER
    control.close()
