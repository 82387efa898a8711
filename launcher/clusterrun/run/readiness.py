"""Probes whether the worker of a service is ready: by connecting to its port, or with an HTTP GET.

The probe uses the address where other nodes reach the worker. So it detects a server that listens only on
127.0.0.1, which is the default of some.
"""

import errno
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from clusterrun.bounds import LocalRank, as_line
from clusterrun.job.services import Service
from clusterrun.loop import NEVER, Loop
from clusterrun.network.addresses import Address, numeric_address, own_interfaces
from clusterrun.policy.events import Event, WorkerNotReady, WorkerReady

RETRY_SECONDS = (0.1, 0.2, 0.5)
"""Before the first retries; later ones come after a second each."""

SECONDS_PER_TRY = 10.0

MIN_SECONDS_OF_SILENCE = 1.0
"""After that a try without an answer replaces the failure of the previous try in the message."""

MAX_READ = 4096
"""Bytes of an answer; only its first line is used."""

MAX_STATUS_CHARACTERS = 200
"""Of that line in a message: a different program may answer with anything."""

LISTENING = "0A"
"""TCP_LISTEN in /proc/net/tcp (the kernel's include/net/tcp_states.h)."""


class ReadinessProbe:
    """The probes of one worker, until it is ready or its time is over."""

    def __init__(
        self, local_rank: LocalRank, service: Service, host: str, port: int, loop: Loop[Event]
    ) -> None:
        """Start to probe ``host`` and ``port`` in the agent's loop."""
        self._local_rank, self._service = local_rank, service
        self._host, self._port, self._loop = host, port, loop
        self._addresses = _addresses_of(host)
        self._deadline = loop.clock() + service.ready_timeout
        self._next_at = self._tried_at = loop.clock()
        self._tries = 0
        self._socket: socket.socket | None = None
        self._is_connected = False
        self._answer = b""
        self._why = "it was never probed"
        loop.add_timer(self)

    @property
    def due(self) -> float:
        return min(self._next_at, self._deadline)

    def events(self, now: float) -> Iterable[Event]:
        """Start a try, end one that takes too long, or give up."""
        if now >= self._deadline:
            if self._socket is not None:
                self._note_silence(now - self._tried_at)
            self.close()
            yield WorkerNotReady(self._local_rank, self._failure_text(), now)
        elif self._socket is not None and now >= self._next_at:
            self._note_silence(SECONDS_PER_TRY)
            self._fail(self._why, now)
        elif now >= self._next_at:
            yield from self._try(now)

    def close(self) -> None:
        """Stop probing."""
        self._loop.remove_timer(self)
        self._close_socket()
        self._next_at = self._deadline = NEVER

    def _try(self, now: float) -> Iterable[Event]:
        self._answer, self._is_connected = b"", False
        self._tried_at, self._next_at = now, now + SECONDS_PER_TRY
        # A server may listen at only one of several addresses.
        address = self._addresses[self._tries % len(self._addresses)]
        self._socket = sock = socket.socket(address.family, socket.SOCK_STREAM)
        sock.setblocking(False)
        error = sock.connect_ex(address.at(self._port))
        if error in {0, errno.EINPROGRESS}:
            self._loop.watch(sock.fileno(), self._handle_socket, writes=True)
        else:
            self._fail(os.strerror(error), now)
        return ()

    def _handle_socket(self, now: float) -> Iterable[Event]:
        """Send the request once the connection is established; then read the answer."""
        sock = self._socket
        if sock is None:
            return
        try:
            if not self._is_connected:
                if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    self._fail(os.strerror(error), now)
                    return
                if sock.getsockname() == sock.getpeername():
                    # The kernel has chosen the same port for this side, and nothing listens there.
                    self._fail(os.strerror(errno.ECONNREFUSED), now)
                    return
                self._is_connected = True
                if self._service.ready == "tcp":
                    yield from self._succeed(now)
                    return
                sock.sendall(self._request())
                self._loop.watch(sock.fileno(), self._handle_socket)
                return
            received = sock.recv(MAX_READ)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error.strerror or str(error), now)
            return
        self._answer += received
        if b"\n" in self._answer or len(self._answer) >= MAX_READ or not received:
            status = self._answer.partition(b"\n")[0].decode("latin-1").strip()
            words = status.split()
            if words[:1] and words[0].startswith("HTTP/") and words[1:2] and words[1][0] == "2":
                yield from self._succeed(now)
            else:
                self._fail(status[:MAX_STATUS_CHARACTERS] or "it has closed the connection", now)

    def _request(self) -> bytes:
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = (
            f"GET {self._service.ready} HTTP/1.1",
            f"Host: {host}:{self._port}",
            "User-Agent: clusterrun",
            "Connection: close",
        )
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")

    def _succeed(self, now: float) -> Iterable[Event]:
        self.close()
        yield WorkerReady(self._local_rank, now)

    def _note_silence(self, seconds: float) -> None:
        if not self._tries or seconds >= MIN_SECONDS_OF_SILENCE:
            self._why = f"no answer within {seconds:.2g} s"

    def _fail(self, why: str, now: float) -> None:
        self._why = as_line(why)
        self._close_socket()
        pause = RETRY_SECONDS[self._tries] if self._tries < len(RETRY_SECONDS) else 1.0
        self._tries += 1
        self._next_at = now + pause

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._loop.forget(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _failure_text(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        probed = f"{host}:{self._port}"
        if self._service.ready != "tcp":
            probed = f"GET http://{probed}{self._service.ready}"
        advice = "" if _listeners_at(self._port) else "; nothing listens there: start it with $PORT"
        if not self._addresses[0].is_loopback and _listens_only_on_loopback(self._port):
            advice = (
                "; it listens on 127.0.0.1 only: start it with --host 0.0.0.0, or the equivalent"
                " option"
            )
        return as_line(f"{probed}: {self._why}{advice}")


def _addresses_of(host: str) -> list[Address]:
    """Return the addresses to probe: ``host`` if it is an address, else all of this machine.

    A name is this machine's. It is not resolved, because a resolver may block for minutes. IPv4
    addresses come first, because most servers listen at 0.0.0.0.
    """
    if known := numeric_address(host):
        return list(known[:1])
    own = [address for found in own_interfaces().values() for address in found]
    found = [each for text in own for each in numeric_address(text)]
    others = [each for each in found if not each.is_loopback]
    return sorted(others or found, key=lambda each: each.family != socket.AF_INET)


def _listens_only_on_loopback(port: int) -> bool:
    found = _listeners_at(port)
    return bool(found) and all(
        address.endswith("7F") or address == f"{'0' * 24}01000000" for address in found
    )


def _listeners_at(port: int) -> list[str]:
    """Return the addresses at which programs listen on a port, in the format of /proc/net/tcp (proc(5))."""
    found = []
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state = line.split()[:4]
            address, _, number = local.partition(":")
            if state == LISTENING and int(number, 16) == port:
                found.append(address)
    return found
