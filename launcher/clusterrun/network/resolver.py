"""Looks names up in a child process, which can be killed: a name server may take minutes."""

import gc
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Struct

from clusterrun.loop import NEVER, EventT, Loop, Ready
from clusterrun.network.addresses import Address, Resolve, all_addresses, numeric_address
from clusterrun.processes import close_all_but, forked, status_of

SECONDS_FOR_AN_ANSWER = 15
"""Then the child is killed and another one tries again: pods get their names late."""

SECONDS_FOR_OWN_NAME = 2.0
"""A slower resolver would delay the libraries of every rank as well."""

SECONDS_TO_DIE = 1.0
"""After SIGKILL."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


class _Answer(Struct, frozen=True):
    addresses: tuple[Address, ...]
    error: str


class Lookup:
    """Looks a host up until it has addresses."""

    def __init__(
        self,
        host: str,
        loop: Loop[EventT],
        ready: Ready[EventT],
        now: float,
        resolve: Resolve = all_addresses,
    ) -> None:
        """Begin; ``loop`` calls ``ready`` when ``turn`` has something to do."""
        self.host = host
        """A name or an address."""
        self._resolve = resolve
        self.addresses = numeric_address(host)
        """() while there is no answer."""
        self.error = ""
        """Why there is none."""
        self.due = NEVER
        """When ``turn`` is due even if nothing happens."""
        self._watch: Callable[[int], None] = lambda pipe: loop.watch(pipe, ready)
        self._forget = loop.forget
        self._pause = FIRST_PAUSE
        self._child: _Child | None = None
        if not self.addresses:
            self._start(now)

    def look_up_again(self, now: float) -> None:
        """Drop the addresses of a name, because none of them is of use."""
        if not numeric_address(self.host) and self._child is None:
            self.addresses = ()
            self._start(now)

    def turn(self, now: float) -> None:
        """Take the answer if there is one; try again when that is due."""
        if self._child is not None:
            self._take_answer(self._child, now)
        elif now >= self.due:
            self._start(now)

    def close(self) -> None:
        if self._child is not None:
            self._forget(self._child.pipe)
            self._child.end()
            self._child = None

    def _start(self, now: float) -> None:
        try:
            self._child = _Child(self.host, self._resolve)
        except OSError as error:
            # Limits of processes or files, which other jobs may have reached.
            self._fail(f"the lookup could not start: {error.strerror}", now)
            return
        self._watch(self._child.pipe)
        self.due = now + SECONDS_FOR_AN_ANSWER

    def _take_answer(self, child: "_Child", now: float) -> None:
        answer = child.answer()
        if answer is None and now < self.due:
            return
        self.close()
        if answer is None:
            answer = _Answer((), f"no answer within {SECONDS_FOR_AN_ANSWER} s")
        self.addresses = answer.addresses
        if self.addresses:
            self.error, self.due = "", NEVER
        else:
            self._fail(answer.error, now)

    def _fail(self, error: str, now: float) -> None:
        """Try again after a pause."""
        self.error = error
        self.due = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


def resolves_for_others(host: str, clock: Callable[[], float]) -> bool:
    """Return whether ``host``, our own name, has an address that is not a loopback one.

    Where it has none (127.0.1.1 on Debian, or an unknown name), gloo and NCCL need to be given an
    interface, or they fail with "connectFullMesh failed".
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
    return any(not address.is_loopback for address in lookup.addresses)


class _Child:
    """A process that looks a host up once and writes the answer into a pipe."""

    def __init__(self, host: str, resolve: Resolve) -> None:
        self.pipe, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        agent = os.getpid()
        try:
            self._pid = forked(partial(_answer, host, resolve, write, agent))
        except OSError:
            os.close(self.pipe)
            raise
        finally:
            os.close(write)

    def answer(self) -> _Answer | None:
        """Return the answer; None if there is none yet."""
        try:
            data = os.read(self.pipe, 1 << 16)
        except BlockingIOError:
            return None
        with suppress(msgspec.MsgspecError):
            return msgspec.msgpack.decode(data, type=_Answer)
        return _Answer((), "the lookup process died")

    def end(self) -> None:
        """Kill it and reap it."""
        os.close(self.pipe)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        # It may hang in the kernel, on a file of the resolver's.
        status_of(self._pid, SECONDS_TO_DIE)


def _answer(host: str, resolve: Resolve, write: int, agent: int) -> None:
    # An object of the agent's that is finalized here could close a descriptor with a reused number.
    gc.disable()
    close_all_but({write})
    # Even if the agent can't end this process.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(SECONDS_FOR_AN_ANSWER + 1)
    _end_with(agent)
    os.write(write, msgspec.msgpack.encode(_look_up(host, resolve)))


def _end_with(agent: int) -> None:
    """Have the kernel kill this process when the agent dies."""
    # Imported only here: the agent itself does not need it.
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(0)


def _look_up(host: str, resolve: Resolve) -> _Answer:
    try:
        return _Answer(resolve(host), "")
    except socket.gaierror as error:
        return _Answer((), (error.strerror or "unknown").lower())
    except (OSError, UnicodeError) as error:
        return _Answer((), str(error))
