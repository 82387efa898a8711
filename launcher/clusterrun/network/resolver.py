"""Resolves names in a child process, which can be killed: a name server may take minutes."""

import socket
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import Struct

from clusterrun.loop import NEVER, EventT, Loop, Ready
from clusterrun.network.addresses import (
    Address,
    Interfaces,
    Resolve,
    all_addresses,
    is_own,
    numeric_address,
)
from clusterrun.processes import TimeLimitedChild

SECONDS_FOR_AN_ANSWER = 15
"""After that the child is killed and another one starts: a pod's name may be published late."""

SECONDS_FOR_OWN_NAME = 2.0
"""A slower resolver would delay the libraries of every rank as well."""

MIN_BACKOFF = 0.1
MAX_BACKOFF = 2.0


class _Answer(Struct, frozen=True):
    addresses: tuple[Address, ...]
    error: str


class Lookup:
    """Resolves a host name, with retries until it has addresses."""

    def __init__(
        self,
        host: str,
        loop: Loop[EventT],
        ready: Ready[EventT],
        now: float,
        resolve: Resolve = all_addresses,
    ) -> None:
        """Start; ``loop`` calls ``ready`` when ``turn`` has something to do."""
        self.host = host
        """A name or an address."""
        self._resolve = resolve
        self.addresses = numeric_address(host)
        """() until the name resolves."""
        self.error = ""
        """Why the name does not resolve; "" before the first answer."""
        self.due = NEVER
        """When to call ``turn`` even if nothing happens."""
        self._watch: Callable[[int], None] = lambda pipe: loop.watch(pipe, ready)
        self._forget = loop.forget
        self._backoff = MIN_BACKOFF
        self._child: TimeLimitedChild | None = None
        if not self.addresses:
            self._start(now)

    def look_up_again(self, now: float) -> None:
        """Drop the addresses of a name, because none of them works."""
        if not numeric_address(self.host) and self._child is None:
            self.addresses = ()
            self._start(now)

    def turn(self, now: float) -> None:
        """Read the answer if there is one; retry when that is due."""
        if self._child is not None:
            self._take_answer(self._child, now)
        elif now >= self.due:
            self._start(now)

    def close(self) -> None:
        if self._child is not None:
            self._forget(self._child.fileno())
            self._child.end()
            self._child = None

    def _start(self, now: float) -> None:
        try:
            ask = partial(_look_up, self.host, self._resolve)
            self._child = TimeLimitedChild(ask, SECONDS_FOR_AN_ANSWER, now=now)
        except OSError as error:
            # A limit of processes or files, which other jobs may have reached.
            self._fail(f"the lookup could not start: {error.strerror}", now)
            return
        self._watch(self._child.fileno())
        self.due = now + SECONDS_FOR_AN_ANSWER

    def _take_answer(self, child: TimeLimitedChild, now: float) -> None:
        data = child.answer(now)
        if data is None:
            return
        self.close()
        try:
            answer = msgspec.msgpack.decode(data, type=_Answer)
        except msgspec.MsgspecError:
            late = f"no answer within {SECONDS_FOR_AN_ANSWER} s"
            answer = _Answer((), late if child.is_late else "the lookup process died")
        self.addresses = answer.addresses
        if self.addresses:
            self.error, self.due = "", NEVER
        else:
            self._fail(answer.error, now)

    def _fail(self, error: str, now: float) -> None:
        self.error = error
        self.due = now + self._backoff
        self._backoff = min(2 * self._backoff, MAX_BACKOFF)


def resolves_for_others(host: str, clock: Callable[[], float], interfaces: Interfaces) -> bool:
    """Return whether this machine's name ``host`` resolves to an address that other machines can reach.

    If it does not (127.0.1.1 on Debian; an address of no interface in a pod with hostNetwork or behind
    a VPN; an unknown name), gloo and NCCL need the name of an interface, or they fail with
    "connectFullMesh failed".
    """
    loop, deadline = Loop[None](clock), clock() + SECONDS_FOR_OWN_NAME
    lookup = Lookup(host, loop, lambda _now: (), clock())
    try:
        while not lookup.addresses and not lookup.error and clock() < deadline:
            loop.turn(deadline)
            lookup.turn(clock())
    finally:
        lookup.close()
        loop.close()
    return any(
        not address.is_loopback and is_own(address.text, interfaces) for address in lookup.addresses
    )


def _look_up(host: str, resolve: Resolve) -> bytes:
    try:
        answer = _Answer(resolve(host), "")
    except socket.gaierror as error:
        answer = _Answer((), (error.strerror or "unknown").lower())
    except (OSError, UnicodeError) as error:
        answer = _Answer((), str(error))
    return msgspec.msgpack.encode(answer)
