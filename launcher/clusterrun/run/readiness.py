"""Asks the worker of a service whether it is ready: a connection, or an answer to GET, at its own port.

It is asked at the address where other nodes reach it. So a server that listens on 127.0.0.1 only, the
default of some, is found at once, and named.
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

PAUSES = (0.1, 0.2, 0.5)
"""Seconds before the next tries; then a second."""

SECONDS_PER_TRY = 10.0

SECONDS_UNTIL_SILENT = 1.0
"""From then on, a try without an answer is the reason, and no longer what became of the last one."""

MAX_READ = 4096
"""Bytes of an answer: its first line is enough."""

MAX_STATUS_CHARACTERS = 200
"""Characters of that line in a report: another program may answer with anything."""

LISTENING = "0A"
"""TCP_LISTEN in /proc/net/tcp (include/net/tcp_states.h of the kernel)."""


class ReadinessProbe:
    """The tries for one worker, until it has answered, or its time is over."""

    def __init__(
        self, local_rank: LocalRank, service: Service, host: str, port: int, loop: Loop[Event]
    ) -> None:
        """Begin to ask at ``host`` and ``port``, in the agent's loop."""
        self._local_rank, self._service = local_rank, service
        self._host, self._port, self._loop = host, port, loop
        self._addresses = _addresses_of(host)
        self._ends = loop.clock() + service.ready_timeout
        self._next_at = self._tried_at = loop.clock()
        self._tries = 0
        self._socket: socket.socket | None = None
        self._is_connected = False
        self._answer = b""
        self._why = "it was not asked"
        loop.time(self)

    @property
    def due(self) -> float:
        return min(self._next_at, self._ends)

    def events(self, now: float) -> Iterable[Event]:
        """Try, or give up."""
        if now >= self._ends:
            if self._socket is not None:
                self._was_silent(now - self._tried_at)
            self.close()
            yield WorkerNotReady(self._local_rank, self._whole_reason(), now)
        elif self._socket is not None and now >= self._next_at:
            self._was_silent(SECONDS_PER_TRY)
            self._fails(self._why, now)
        elif now >= self._next_at:
            yield from self._try(now)

    def close(self) -> None:
        """Ask no more."""
        self._loop.remove_timer(self)
        self._forget()
        self._next_at = self._ends = NEVER

    def _try(self, now: float) -> Iterable[Event]:
        self._answer, self._is_connected = b"", False
        self._tried_at, self._next_at = now, now + SECONDS_PER_TRY
        # A server may listen at one of several.
        address = self._addresses[self._tries % len(self._addresses)]
        self._socket = sock = socket.socket(address.family, socket.SOCK_STREAM)
        sock.setblocking(False)
        error = sock.connect_ex(address.at(self._port))
        if error in {0, errno.EINPROGRESS}:
            self._loop.watch(sock.fileno(), self._goes_on, writes=True)
        else:
            self._fails(os.strerror(error), now)
        return ()

    def _goes_on(self, now: float) -> Iterable[Event]:
        """Take note that the connection stands, or read the answer."""
        sock = self._socket
        if sock is None:
            return
        try:
            if not self._is_connected:
                if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    self._fails(os.strerror(error), now)
                    return
                if sock.getsockname() == sock.getpeername():
                    # The kernel has chosen this very port for our side, and nothing listens there.
                    self._fails(os.strerror(errno.ECONNREFUSED), now)
                    return
                self._is_connected = True
                if self._service.ready == "tcp":
                    yield from self._is_ready(now)
                    return
                sock.sendall(self._request())
                self._loop.watch(sock.fileno(), self._goes_on)
                return
            received = sock.recv(MAX_READ)
        except BlockingIOError:
            return
        except OSError as error:
            self._fails(error.strerror or str(error), now)
            return
        self._answer += received
        if b"\n" in self._answer or len(self._answer) >= MAX_READ or not received:
            status = self._answer.partition(b"\n")[0].decode("latin-1").strip()
            words = status.split()
            if words[:1] and words[0].startswith("HTTP/") and words[1:2] and words[1][0] == "2":
                yield from self._is_ready(now)
            else:
                self._fails(status[:MAX_STATUS_CHARACTERS] or "it has closed the connection", now)

    def _request(self) -> bytes:
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = (
            f"GET {self._service.ready} HTTP/1.1",
            f"Host: {host}:{self._port}",
            "User-Agent: clusterrun",
            "Connection: close",
        )
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")

    def _is_ready(self, now: float) -> Iterable[Event]:
        self.close()
        yield WorkerReady(self._local_rank, now)

    def _was_silent(self, seconds: float) -> None:
        if not self._tries or seconds >= SECONDS_UNTIL_SILENT:
            self._why = f"no answer within {seconds:.2g} s"

    def _fails(self, why: str, now: float) -> None:
        self._why = as_line(why)
        self._forget()
        pause = PAUSES[self._tries] if self._tries < len(PAUSES) else 1.0
        self._tries += 1
        self._next_at = now + pause

    def _forget(self) -> None:
        if self._socket is not None:
            self._loop.forget(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _whole_reason(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        place = f"{host}:{self._port}"
        asked = (
            place if self._service.ready == "tcp" else f"GET http://{place}{self._service.ready}"
        )
        only = "" if _listeners_at(self._port) else "; nothing listens there: start it with $PORT"
        if not self._addresses[0].is_loopback and _listens_on_loopback_alone(self._port):
            only = "; it listens on 127.0.0.1 only: start it with --host 0.0.0.0, or its like"
        return as_line(f"{asked}: {self._why}{only}")


def _addresses_of(host: str) -> list[Address]:
    """Return the address of a host; of a name, which is this machine's, all of its own.

    A resolver may block for minutes. Most servers listen at 0.0.0.0, which is not an address of IPv6.
    """
    if known := numeric_address(host):
        return list(known[:1])
    own = [address for found in own_interfaces().values() for address in found]
    found = [each for text in own for each in numeric_address(text)]
    others = [each for each in found if not each.is_loopback]
    return sorted(others or found, key=lambda each: each.family != socket.AF_INET)


def _listens_on_loopback_alone(port: int) -> bool:
    found = _listeners_at(port)
    return bool(found) and all(
        address.endswith("7F") or address == f"{'0' * 24}01000000" for address in found
    )


def _listeners_at(port: int) -> list[str]:
    """Return the addresses at which programs listen at a port, as /proc/net/tcp has them (proc(5))."""
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
