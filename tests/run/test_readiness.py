"""Readiness probes with a real loop and real sockets, and a clock that tests set."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.job.job import ProgramKind, WorkerProgram
from clusterrun.job.services import Service
from clusterrun.loop import NEVER, Loop
from clusterrun.network.addresses import own_interfaces
from clusterrun.policy.events import Event, WorkerNotReady, WorkerReady
from clusterrun.ports import bind_wildcard
from clusterrun.run import readiness
from clusterrun.run.readiness import ReadinessProbe

from tests.waiting import SECONDS_TO_ACT

BEGIN, SECONDS = 100.0, 600.0
"""When the service is asked first, and how long it has."""

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\n\r\n"

RESETS = struct.pack("ii", 1, 0)
"""With SO_LINGER: the end of this socket resets the connection."""


class Asking:
    """A worker that is asked, and the turns of the loop."""

    def __init__(self, host: str, port: int, ready: str) -> None:
        self.now = BEGIN
        self.events: list[Event] = []
        self.loop = Loop[Event](lambda: self.now)
        service = Service(
            name="server",
            where="job.yaml:2 services.server",
            program=WorkerProgram(ProgramKind.EXECUTABLE, "server", ()),
            ready=ready,
            ready_timeout=SECONDS,
        )
        self.readiness = ReadinessProbe(LocalRank(3), service, host, port, self.loop)

    def turn(self) -> None:
        """Wait until a descriptor is ready or a time has come, and serve it."""
        self.loop.turn()
        self.loop.keep(self._keep)

    def begin_a_try(self) -> float:
        """Move the clock to the next try; return how long that was."""
        waited = self.readiness.due - self.now
        self.now = self.readiness.due
        self.turn()
        return waited

    def answer(self, listener: socket.socket, *parts: bytes, resets: bool = False) -> bytes:
        """Have the next try answered so by a server that closes then; return what it was asked."""
        self.begin_a_try()
        return self.answer_this(listener, *parts, resets=resets)

    def answer_this(self, listener: socket.socket, *parts: bytes, resets: bool = False) -> bytes:
        until = self.readiness.due
        self.turn()
        connection, _ = listener.accept()
        with connection:
            asked = request_on(connection)
            for part in filter(None, parts):
                connection.sendall(part)
                self.turn()
            if resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
        while self.readiness.due == until and not self.events:
            self.turn()
        return asked

    def reason(self) -> str:
        """Let its time pass; return why it is not ready."""
        self.now = BEGIN + SECONDS
        self.turn()
        (event,) = self.events
        assert isinstance(event, WorkerNotReady)
        assert (event.local_rank, event.at) == (3, self.now)
        return event.why

    @property
    def is_ready(self) -> bool:
        return self.events == [WorkerReady(LocalRank(3), self.now)]

    def _keep(self, event: Event) -> bool:
        self.events.append(event)
        return False


def request_on(connection: socket.socket) -> bytes:
    connection.settimeout(SECONDS_TO_ACT)
    request = b""
    while not request.endswith(b"\r\n\r\n"):
        part = connection.recv(4096)
        assert part, f"closed after {request!r}"
        request += part
    return request


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return what closes everything at the end."""
    with ExitStack() as made:
        yield made


Listen = Callable[..., socket.socket]


@pytest.fixture
def listen(stack: ExitStack) -> Listen:
    """Return a function that makes a server's socket listen at a host and port."""

    def made(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = stack.enter_context(socket.create_server((host, port), family=family))
        except OSError as error:
            pytest.skip(f"{host}: {error}")
        listener.settimeout(SECONDS_TO_ACT)
        return listener

    return made


Ask = Callable[..., Asking]


@pytest.fixture
def ask(stack: ExitStack) -> Ask:
    """Return a function that begins to ask at a listening socket, or at a port."""

    def made(at: socket.socket | int, ready: str = "/health", host: str = "127.0.0.1") -> Asking:
        port = at if isinstance(at, int) else at.getsockname()[1]
        asking = Asking(host, port, ready)
        stack.callback(asking.loop.close)
        stack.callback(asking.readiness.close)
        return asking

    return made


@pytest.fixture
def held_port(stack: ExitStack) -> int:
    """Return a port that is reserved for a worker and has no listener yet."""
    number: int = stack.enter_context(bind_wildcard(0)).getsockname()[1]
    return number


@pytest.fixture
def own_address() -> str:
    """Return an address at which other machines reach this one."""
    found = [address for addresses in own_interfaces().values() for address in addresses]
    others = [each for each in found if ":" not in each and not each.startswith("127.")]
    if not others:
        pytest.skip("this machine has loopback addresses only")
    return others[0]


def port_of(listener: socket.socket) -> int:
    number: int = listener.getsockname()[1]
    return number


def test_tcp_probe_needs_only_a_connection(listen: Listen, ask: Ask) -> None:
    """Nothing is sent, because the program may speak any protocol."""
    listener = listen()
    asking = ask(listener, "tcp")
    asking.begin_a_try()
    asking.turn()

    assert asking.is_ready
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(SECONDS_TO_ACT)
        assert connection.recv(100) == b""


def test_request_is_http_get(listen: Listen, ask: Ask) -> None:
    """With the path of the job file."""
    listener = listen()

    asked = ask(listener, "/health/").answer(listener, OK).decode()

    first, *headers = asked.split("\r\n")
    assert first == "GET /health/ HTTP/1.1"
    assert f"Host: 127.0.0.1:{port_of(listener)}" in headers
    assert "Connection: close" in headers


@pytest.mark.parametrize(
    "parts",
    [
        (OK,),
        (b"HTTP/1.1 204 No Content\r\n\r\n",),
        (b"HTTP/1.0 200\n",),
        (b"HTTP/1.1 200 OK",),
        (b"HT", b"TP/1.1 2", b"00 OK\r", b"\n\r\n"),
    ],
    ids=["200", "204", "no reason phrase", "closed before the line's end", "in pieces"],
)
def test_status_2xx_is_ready(listen: Listen, ask: Ask, parts: tuple[bytes, ...]) -> None:
    listener = listen()
    asking = ask(listener)

    asking.answer(listener, *parts)

    assert asking.is_ready


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (BUSY, "HTTP/1.1 503 Service Unavailable"),
        (b"HTTP/1.1 301 Moved\r\nLocation: /health/\r\n\r\n", "HTTP/1.1 301 Moved"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "HTTP/1.1 404 Not Found"),
        (b"HTTP/1.1 1200\r\n", "HTTP/1.1 1200"),
        (b"HTTP/1.1\r\n", "HTTP/1.1"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0-OpenSSH_9.2"),
        (b"200 OK\r\n", "200 OK"),
        (b"\x15\x03\x01\x1b[2J\n", "???\x1b[2J".replace("\x1b", "?")),
        (b"", "it has closed the connection"),
    ],
    ids=["503", "redirect", "404", "1200", "no status", "ssh", "no HTTP", "binary", "nothing"],
)
def test_other_answer_is_not_ready(listen: Listen, ask: Ask, answer: bytes, why: str) -> None:
    """The answer is the reason; a redirect leads to a different path."""
    listener = listen()
    asking = ask(listener)

    asking.answer(listener, answer)

    assert asking.events == []
    assert asking.reason() == f"GET http://127.0.0.1:{port_of(listener)}/health: {why}"


def test_long_answer_is_cut(listen: Listen, ask: Ask) -> None:
    """The reason is one line of a report."""
    listener = listen()
    asking = ask(listener)

    asking.answer(listener, b"x" * 5000)

    assert asking.reason().endswith(f"/health: {'x' * 200}")


def test_reset_is_not_ready(listen: Listen, ask: Ask) -> None:
    """As by a program that ends."""
    listener = listen()
    asking = ask(listener)

    asking.answer(listener, resets=True)

    assert asking.reason().endswith("/health: Connection reset by peer")


def test_probe_is_repeated_until_ready(listen: Listen, ask: Ask) -> None:
    """Soon at first, then every second."""
    listener = listen()
    asking, waited = ask(listener), []
    for _ in range(6):
        waited.append(asking.begin_a_try())
        asking.answer_this(listener, BUSY)
    assert asking.events == []

    asking.answer(listener, OK)

    assert asking.is_ready
    assert waited == pytest.approx([0, 0.1, 0.2, 0.5, 1, 1])
    assert asking.readiness.due == NEVER


def test_refused_probe_is_repeated(listen: Listen, ask: Ask, held_port: int) -> None:
    """A reserved port refuses connections; the server can still listen there."""
    asking = ask(held_port)
    for _ in range(3):
        asking.begin_a_try()
        asking.turn()
    assert asking.events == []

    listener = listen(port=held_port)
    asking.answer(listener, OK)

    assert asking.is_ready


def test_silent_server_times_out(listen: Listen, ask: Ask) -> None:
    """The next try may be answered."""
    listener = listen()
    asking = ask(listener)
    asking.begin_a_try()
    asking.turn()
    connection, _ = listener.accept()
    with connection:
        request_on(connection)

        assert asking.begin_a_try() == readiness.SECONDS_PER_TRY
        assert connection.recv(100) == b""
    assert asking.events == []

    asking.answer(listener, OK)

    assert asking.is_ready


def test_silence_of_the_first_try_is_the_reason(listen: Listen, ask: Ask) -> None:
    listener = listen()
    asking = ask(listener)
    asking.begin_a_try()
    asking.begin_a_try()

    assert asking.reason().endswith("/health: no answer within 10 s")


@pytest.mark.parametrize("refused", [0, 1], ids=["the first try", "a later try"])
def test_timeout_during_a_try_has_a_reason(
    listen: Listen, ask: Ask, held_port: int, refused: int
) -> None:
    """Silence of this try, or the failure of the one before."""
    asking = ask(held_port)
    for _ in range(refused):
        asking.begin_a_try()
        asking.turn()
    listener = listen(port=held_port)
    asking.now = BEGIN + SECONDS - 4
    asking.turn()
    asking.turn()
    connection, _ = listener.accept()
    with connection:
        request_on(connection)

        assert asking.reason().endswith("/health: no answer within 4 s")


@pytest.mark.parametrize(
    ("ready", "asked"), [("tcp", "127.0.0.1:{}"), ("/health", "GET http://127.0.0.1:{}/health")]
)
def test_refusal_is_the_reason_at_the_timeout(
    ask: Ask, held_port: int, ready: str, asked: str
) -> None:
    """With what was probed."""
    asking = ask(held_port, ready)
    asking.begin_a_try()
    asking.turn()

    nothing = "; nothing listens there: start it with $PORT"
    assert asking.reason() == f"{asked.format(held_port)}: Connection refused{nothing}"
    assert asking.readiness.due == NEVER


def test_reason_is_one_line(ask: Ask, held_port: int) -> None:
    """Whatever the path: nodes send each other no other texts."""
    asking = ask(held_port, "/a\nb")
    asking.begin_a_try()
    asking.turn()

    assert asking.reason().endswith(
        "/a?b: Connection refused; nothing listens there: start it with $PORT"
    )


@pytest.mark.parametrize("answer", [OK, BUSY], ids=["ready", "not ready"])
def test_ipv6_address_has_brackets(listen: Listen, ask: Ask, answer: bytes) -> None:
    """In the request and in the reason."""
    listener = listen("::1")
    asking = ask(listener, host="::1")

    asked = asking.answer(listener, answer)

    address = f"[::1]:{port_of(listener)}"
    assert f"\r\nHost: {address}\r\n".encode() in asked
    if answer is OK:
        assert asking.is_ready
    else:
        assert asking.reason().startswith(f"GET http://{address}/health: HTTP/1.1 503")


@pytest.mark.parametrize("loopback", ["127.0.0.1", "127.0.0.2", "::1"])
@pytest.mark.parametrize("name", ["", "this-machine.invalid"], ids=["address", "name"])
def test_server_on_loopback_only_gets_advice(
    listen: Listen, ask: Ask, own_address: str, name: str, loopback: str
) -> None:
    """Other nodes could not reach it. It is the default of some servers."""
    host = name or own_address
    asking = ask(listener := listen(loopback), host=host)
    asking.begin_a_try()
    asking.turn()

    assert asking.reason() == (
        f"GET http://{host}:{port_of(listener)}/health: Connection refused; it listens on"
        " 127.0.0.1 only: start it with --host 0.0.0.0, or the equivalent option"
    )


def test_missing_listener_gets_advice(ask: Ask, own_address: str, held_port: int) -> None:
    """The advice is not about an address."""
    asking = ask(held_port, host=own_address)
    asking.begin_a_try()
    asking.turn()

    assert asking.reason().endswith(
        "/health: Connection refused; nothing listens there: start it with $PORT"
    )


def test_server_that_also_listens_on_loopback_gets_no_advice(
    listen: Listen, ask: Ask, own_address: str
) -> None:
    listener = listen("")
    asking = ask(listener, host=own_address)

    asking.answer(listener, BUSY)

    assert asking.reason().endswith("/health: HTTP/1.1 503 Service Unavailable")


def test_own_name_is_not_resolved(listen: Listen, ask: Ask) -> None:
    """A name server may take minutes; the name is this machine's."""
    listener = listen("")
    asking = ask(listener, host="no-such-host.invalid")

    asked = asking.answer(listener, OK)

    assert asking.is_ready
    assert f"Host: no-such-host.invalid:{port_of(listener)}".encode() in asked


def test_connection_to_itself_is_not_ready(
    monkeypatch: pytest.MonkeyPatch, ask: Ask, held_port: int
) -> None:
    """The kernel may use the probed port for this side, and TCP connects a socket to itself."""

    class FromThatPort(socket.socket):
        def connect_ex(self, address: object) -> int:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(("127.0.0.1", held_port))
            return super().connect_ex(address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", FromThatPort)
    asking = ask(held_port, "tcp")
    asking.begin_a_try()
    asking.turn()

    assert asking.events == []
    assert asking.reason().endswith(
        ": Connection refused; nothing listens there: start it with $PORT"
    )


@pytest.mark.parametrize("is_accepted", [False, True], ids=["asked", "accepted"])
def test_close_ends_the_probe(listen: Listen, ask: Ask, *, is_accepted: bool) -> None:
    """The worker has ended: nothing more is probed or reported."""
    listener = listen()
    asking = ask(listener)
    asking.begin_a_try()
    asking.turn()
    connection, _ = listener.accept()
    with connection:
        request_on(connection)
        if is_accepted:
            connection.sendall(b"HTTP/1.1 ")
            asking.turn()

        asking.readiness.close()
        asking.readiness.close()

        assert connection.recv(100) == b""
    asking.now = BEGIN + 2 * SECONDS
    asking.loop.turn(asking.now)
    asking.loop.keep(lambda event: pytest.fail(str(event)))
    assert asking.readiness.due == NEVER
