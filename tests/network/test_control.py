"""The socket of a running agent: commands of its user find it and are answered."""

import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from clusterrun.cli.main import run_command_line
from clusterrun.loop import NEVER, Loop, Priority
from clusterrun.network import control
from clusterrun.network.channel import Channel
from clusterrun.network.control_client import find_jobs
from clusterrun.network.handshake import member_handshake
from clusterrun.network.requests import Describe, Description, StopJob
from clusterrun.policy import events, queries
from clusterrun.processes import TimeLimitedCalls
from clusterrun.user_sockets import connect_to, listen_at, socket_folder
from msgspec.msgpack import Decoder

from tests.as_another_user import run_as_another_user
from tests.imports import imports
from tests.network.turns import events_of_turn
from tests.waiting import SECONDS_TO_ACT, wait_until

QUERY = queries.Query(1, queries.Topic.RANKS, 1.2)
LONG = 20 << 20
"""Bytes of an answer that no socket takes at once."""


class Agent:
    """An agent's control socket, in a loop of its own; the test sets the clock."""

    def __init__(self, environ: Mapping[str, str], run_id: str = "abc") -> None:
        self.now = 0.0
        self.loop = Loop[events.Event](lambda: self.now)
        self.replies: list[Callable[[bytes], None]] = []
        """What takes the answers to the queries that it was asked."""
        self.removed_at_end: list[Path] = []
        described = Description(run_id, "n0", os.getpid(), 0, 2, "train.py")
        self.control = control.ControlSocket(
            lambda: described,
            self._ask,
            environ,
            files=TimeLimitedCalls(SECONDS_TO_ACT),
            remove_at_end=self.removed_at_end.append,
            notice=pytest.fail,
            loop=self.loop,
        )
        (self.path,) = self.removed_at_end

    def _ask(
        self, query: queries.Query, reply: Callable[[bytes], None], _now: float
    ) -> Iterable[events.Event]:
        assert query == QUERY
        self.replies.append(reply)
        return ()

    def run_for(self, seconds: float = 0.0) -> list[events.Event]:
        """Let it take a turn; return what has happened."""
        return events_of_turn(self.loop, seconds)

    def is_idle(self) -> bool:
        """Return whether nothing wakes it."""
        began = time.monotonic()
        return self.run_for(0.05) == [] and time.monotonic() - began > 0.04

    def close(self) -> None:
        self.control.close()
        self.loop.close()


class RunningAgent(Agent):
    """One whose loop turns in a thread; it ends as soon as anything is asked of it."""

    def __init__(self, environ: Mapping[str, str], run_id: str = "abc") -> None:
        super().__init__(environ, run_id)
        self.events: list[events.Event] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._live)
        self._thread.start()

    def _live(self) -> None:
        while not self._ends.is_set() and not self.events:
            self.events += self.run_for(0.01)
        self.control.close()

    def close(self) -> None:
        if not self._ends.is_set():
            self._ends.set()
            self._thread.join()
            super().close()


class Stranger:
    """What is served without any effect."""

    def events(self, _now: float) -> Iterable[events.Event]:
        return ()


class Command:
    """A command that asks an agent in the same process."""

    def __init__(self, agent: Agent) -> None:
        self.channel = Channel(
            Decoder(Description), connect_to(agent.path, 5.0), member_handshake(b"")
        )
        self._agent = agent

    def ask(self, request: StopJob | queries.Query | Describe) -> list[events.Event]:
        """Send a request; return what it causes, once it has arrived."""
        self.channel.send(request)
        happened = []
        for _ in range(4):
            happened += self._agent.run_for()
            self.channel.flush()
            if not self.channel.is_ready:
                assert self.channel.receive() == []
        return happened

    def shut_down_writing(self) -> None:
        """End its half of the connection, as one may that has asked."""
        with socket.socket(fileno=os.dup(self.channel.fileno())) as sock:
            sock.shutdown(socket.SHUT_WR)

    def read_all(self) -> int:
        """Return how many bytes the agent sends before it closes the connection."""
        count = 0
        with socket.socket(fileno=os.dup(self.channel.fileno())) as sock:
            sock.settimeout(5.0)
            while data := sock.recv(1 << 20):
                count += len(data)
                assert self._agent.run_for() == []
        return count


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def agent(environ: Mapping[str, str], stack: ExitStack) -> Agent:
    """Return an agent whose turns a test takes."""
    made = Agent(environ)
    stack.callback(made.close)
    return made


@pytest.fixture
def agents(environ: Mapping[str, str], stack: ExitStack) -> Callable[[str], RunningAgent]:
    """Start agents of runs."""

    def start(run_id: str) -> RunningAgent:
        started = RunningAgent(environ, run_id)
        stack.callback(started.close)
        return started

    return start


@pytest.fixture
def call(agent: Agent, stack: ExitStack) -> Callable[[], Command]:
    """Start commands that ask the agent."""

    def start() -> Command:
        command = Command(agent)
        stack.callback(command.channel.close)
        return command

    return start


def folder_of(environ: Mapping[str, str]) -> Path:
    folder = socket_folder(environ)
    assert folder is not None
    return folder


@pytest.mark.parametrize("words", [(), ("other",)])
def test_stop_lists_several_runs(
    agents: Callable[[str], RunningAgent],
    environ: Mapping[str, str],
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    """Without a name or with a wrong one, no job is stopped."""
    started = [agents("abc"), agents("def")]

    code = run_command_line(["suspend", *words], environ)

    error = capsys.readouterr().err
    assert code == 2
    assert "clusterrun suspend abc    # train.py, node 0 of 2, pid" in error
    assert "clusterrun suspend def" in error
    assert [agent.events for agent in started] == [[], []]


def test_name_selects_one_run(
    agents: Callable[[str], RunningAgent], environ: Mapping[str, str]
) -> None:
    """Two agents of one run on this host are one run."""
    one, _, other = agents("abc"), agents("abc"), agents("def")

    code = run_command_line(["suspend", "def"], environ)

    assert code == 0
    wait_until(lambda: other.events, "the request")
    assert one.events == []
    assert run_command_line(["suspend", "abc"], environ) == 0


def test_socket_of_killed_agent_is_removed(environ: Mapping[str, str]) -> None:
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


def test_agent_removes_its_socket_and_folder(
    agents: Callable[[str], RunningAgent], environ: Mapping[str, str]
) -> None:
    """The folder stays if another job has a socket there."""
    one, other = agents("abc"), agents("def")
    folder = folder_of(environ)

    one.close()
    assert list(folder.iterdir()) == [other.path]
    other.close()

    assert not folder.exists()


def test_stop_is_requested_and_answered(call: Callable[[], Command]) -> None:
    """The answer describes the job; then the connection is closed."""
    command = call()

    assert command.ask(StopJob(at_once=True)) == [
        events.StopRequested("clusterrun stop --now", True, 0.0)
    ]
    (described,) = command.channel.receive()
    assert described.run_id == "abc"
    assert command.channel.is_closed_by_peer()


@pytest.mark.parametrize("sent", [b"", b"\xff", b"x" * 100_000])
def test_invalid_request_is_dropped(agent: Agent, sent: bytes) -> None:
    """Garbage, or more bytes than any request has."""
    with connect_to(agent.path, 5.0) as connection:
        thread = threading.Thread(target=send_all, args=(connection, sent))
        thread.start()
        happened: list[events.Event] = []

        def is_dropped() -> bool:
            happened.extend(agent.run_for())
            return bool(closed.poll(0))

        closed = select.poll()
        closed.register(connection, select.POLLHUP | select.POLLERR)
        wait_until(is_dropped, "the connection is closed")
        thread.join()
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""

    assert (happened, agent.replies, agent.control.due) == ([], [], NEVER)
    assert agent.is_idle()


def send_all(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


def test_client_without_request_times_out(agent: Agent) -> None:
    """The loop wakes for it."""
    with connect_to(agent.path, 5.0) as connection:
        agent.now = 1.0
        agent.run_for()
        assert agent.control.due == 1.0 + control.SECONDS_TO_ASK
        agent.now = agent.control.due
        agent.run_for()

        assert connection.recv(1) == b""
    assert agent.is_idle()


def test_accepting_pauses_without_free_descriptors(
    agent: Agent, call: Callable[[], Command]
) -> None:
    """The loop must not spin for a connection that can't be accepted."""
    command = call()
    agent.now = 10.0
    with no_descriptors():
        agent.run_for()

    assert agent.is_idle()
    assert agent.control.due == 10.0 + control.SECONDS_WITHOUT_DESCRIPTORS
    agent.now = agent.control.due
    assert len(command.ask(StopJob(at_once=True))) == 1
    assert agent.control.due == NEVER


def test_waiting_client_does_not_wake_the_loop(agent: Agent, call: Callable[[], Command]) -> None:
    """The loop sleeps until there is an answer or the client disconnects."""
    commands = [call(), call()]
    for command in commands:
        assert command.ask(QUERY) == []
    commands[0].shut_down_writing()
    rests = agent.is_idle()
    agent.replies[0](b"\x80")
    answered = commands[0].read_all()
    commands[1].channel.close()
    wakes = not agent.is_idle()

    assert (rests, answered, wakes, agent.control.due) == (True, 5, True, NEVER)
    assert agent.is_idle()
    # The command may end before its answer.
    agent.replies[1](b"\x80")


@pytest.mark.parametrize("when", ["before it asks", "before its answer", "while it is answered"])
def test_client_may_disconnect_at_any_time(
    agent: Agent, call: Callable[[], Command], when: str
) -> None:
    """The next client, which gets the same descriptor, is served."""
    command = call()
    agent.run_for()
    if when != "before it asks":
        command.ask(QUERY)
    if when == "while it is answered":
        agent.replies[0](bytes(LONG))
    command.channel.close()
    for _ in range(2):
        agent.run_for()

    assert agent.control.due == NEVER
    assert agent.is_idle()
    assert len(call().ask(StopJob(at_once=False))) == 1


def test_long_answer_is_sent_as_it_is_read(agent: Agent, call: Callable[[], Command]) -> None:
    """A client that stops reading is disconnected."""
    reader, idle = call(), call()
    for command in (reader, idle):
        command.ask(QUERY)
    agent.now = 2.0
    for reply in agent.replies:
        reply(bytes(LONG))

    assert reader.read_all() == 4 + LONG
    assert agent.is_idle()
    assert agent.control.due == 2.0 + control.SECONDS_TO_READ
    agent.now = agent.control.due
    agent.run_for()
    assert agent.control.due == NEVER
    assert 0 < idle.read_all() < LONG


def test_number_of_clients_is_limited(agent: Agent, call: Callable[[], Command]) -> None:
    """Others wait in the kernel's queue until a client times out."""
    for _ in range(control.MAX_CLIENTS + 1):
        call()
    agent.run_for()
    at_first = connections_of(agent)
    for _ in range(control.MAX_CLIENTS):
        agent.run_for()
    full = connections_of(agent)
    rests = agent.is_idle()
    agent.now = control.SECONDS_TO_ASK
    agent.run_for()
    agent.run_for()
    after = connections_of(agent)

    assert (at_first, full, after) == (control.MAX_ACCEPTED_PER_TURN, control.MAX_CLIENTS, 1)
    assert rests


def connections_of(agent: Agent) -> int:
    """Return how many connections it has accepted; other threads may open and close files meanwhile."""
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        number = int(file.name)
        # No socket, or closed by now.
        with (
            suppress(OSError),
            socket.fromfd(number, socket.AF_UNIX, socket.SOCK_STREAM) as end,
        ):
            listens = end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            # Where the folder's path is long, it is bound by a descriptor of it.
            is_its_own = str(end.getsockname()).endswith(agent.path.name)
            count += is_its_own and not listens
    return count


def test_unauthenticated_connections_do_not_delay_commands(
    agent: Agent, call: Callable[[], Command], stack: ExitStack
) -> None:
    """Programs that can connect to node 0 can't keep its user from stopping the job."""
    for _ in range(control.MAX_ACCEPTED_PER_TURN):
        # Each has always sent something.
        ready = os.eventfd(1)
        stack.callback(os.close, ready)
        agent.loop.watch(ready, Stranger().events, Priority.UNAUTHENTICATED)

    assert len(call().ask(StopJob(at_once=False))) == 1


def test_waiting_client_is_disconnected_at_the_end(
    agent: Agent, call: Callable[[], Command]
) -> None:
    """An answer that comes later is dropped."""
    waiting, connected = call(), call()
    waiting.ask(QUERY)
    for _ in range(2):
        agent.control.close()
    agent.replies[0](b"\x80")

    assert waiting.read_all() == 0
    assert connected.read_all() > 0
    assert not agent.path.exists()
    assert agent.is_idle()


AS_ANOTHER_USER = (
    imports(connect_to)
    + """
import os, socket, sys
from pathlib import Path
path = Path(sys.argv[1])
try:
    connect_to(path, 5.0)
except PermissionError as error:
    print(error)
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(5.0)
    # The whole path may be longer than the kernel takes.
    os.chdir(path.parent)
    connection.connect(path.name)
    print(connection.recv(1))
"""
)


@pytest.mark.needs("root", "setpriv")
def test_other_user_is_not_served_and_not_asked(agents: Callable[[str], RunningAgent]) -> None:
    """SO_PEERCRED shows the user even if permissions admit them."""
    agent = agents("abc")

    done = run_as_another_user(AS_ANOTHER_USER, str(agent.path))

    assert "another user's process listens there" in done.stdout, done.stderr
    assert done.stdout.endswith("b''\n"), done.stderr
    assert agent.control.due == NEVER


def test_socket_has_its_path_in_the_kernels_list(tmp_path: Path) -> None:
    """Cleaners of /tmp keep a socket that is there."""
    path = tmp_path / "job"

    with listen_at(path):
        assert f" {path}\n" in Path("/proc/net/unix").read_text()
