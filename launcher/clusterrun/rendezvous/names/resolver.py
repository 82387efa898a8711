"""Names become addresses in a child that can be killed: a name server may keep silent for minutes."""

import gc
import os
import select
import signal
import socket
from contextlib import suppress
from typing import NoReturn

import msgspec
from msgspec import Struct

from clusterrun.processes.descriptors import close_all_but
from clusterrun.processes.reaping import status_of
from clusterrun.rendezvous.names.addresses import Address, Resolve, all_addresses, numeric_address

SECONDS_FOR_AN_ANSWER = 15
"""Then the child is given up, and another asks anew: pods get their names late."""

SECONDS_TO_DIE = 1.0
"""After SIGKILL."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0

_PR_SET_PDEATHSIG = 1
_SIGNALS_OF_PARENT = signal.valid_signals() - {signal.SIGALRM}


class _Answer(Struct, frozen=True):
    addresses: tuple[Address, ...]
    error: str


class Lookup:
    """Asks for the addresses of a host until there are some."""

    def __init__(
        self, host: str, epoll: select.epoll, now: float, resolve: Resolve = all_addresses
    ) -> None:
        """Ask for ``host``, a name or an address; ``epoll`` watches for the answer."""
        self.host = host
        self._resolve = resolve
        self.addresses = numeric_address(host)
        """() while there is no answer."""
        self.trouble = ""
        """Why there is none yet, in words."""
        self.due = float("inf")
        """When ``turn`` is to be called even if nothing happens."""
        self._epoll = epoll
        self._pause = FIRST_PAUSE
        self._child: _Child | None = None
        if not self.addresses:
            self._ask(now)

    def again(self, now: float) -> None:
        """Ask anew: the addresses that were found are of no use."""
        if not numeric_address(self.host) and self._child is None:
            self.addresses = ()
            self._ask(now)

    def turn(self, now: float) -> None:
        """Hear the answer if there is one; ask anew when it is time to."""
        if self._child is not None:
            self._hear(self._child, now)
        elif now >= self.due:
            self._ask(now)

    def close(self) -> None:
        """Ask no more."""
        if self._child is not None:
            self._epoll.unregister(self._child.pipe)
            self._child.end()
            self._child = None

    def _ask(self, now: float) -> None:
        try:
            self._child = _Child(self.host, self._resolve)
        except OSError as error:
            # Limits of processes or files, which other jobs may have reached.
            self._put_off(f"it can't be asked for: {error.strerror}", now)
            return
        self._epoll.register(self._child.pipe, select.EPOLLIN)
        self.due = now + SECONDS_FOR_AN_ANSWER

    def _hear(self, child: "_Child", now: float) -> None:
        answer = child.answer()
        if answer is None and now < self.due:
            return
        self.close()
        if answer is None:
            answer = _Answer((), f"no answer within {SECONDS_FOR_AN_ANSWER} s")
        self.addresses = answer.addresses
        if self.addresses:
            self.trouble, self.due = "", float("inf")
        else:
            self._put_off(answer.error, now)

    def _put_off(self, trouble: str, now: float) -> None:
        """Ask again later, because of ``trouble``."""
        self.trouble = trouble
        self.due = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


class _Child:
    """A process that asks once, and writes the answer into a pipe."""

    def __init__(self, host: str, resolve: Resolve) -> None:
        self.pipe, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        parent = os.getpid()
        # Its copies of our handlers must not wake us for its own signals.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS_OF_PARENT)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                _answer_and_exit(host, resolve, write, parent)
        except OSError:
            os.close(self.pipe)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(write)

    def answer(self) -> _Answer | None:
        """Return the answer; None while there is none."""
        try:
            data = os.read(self.pipe, 1 << 16)
        except BlockingIOError:
            return None
        with suppress(msgspec.MsgspecError):
            return msgspec.msgpack.decode(data, type=_Answer)
        return _Answer((), "the resolver gave up")

    def end(self) -> None:
        """End and reap it."""
        os.close(self.pipe)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        # A file of the resolver's may be on a file system that hangs.
        status_of(self._pid, SECONDS_TO_DIE)


def _answer_and_exit(host: str, resolve: Resolve, write: int, parent: int) -> NoReturn:
    try:
        _let_go_of_the_agent(write, parent)
        os.write(write, msgspec.msgpack.encode(_ask(host, resolve)))
    finally:
        os._exit(0)


def _let_go_of_the_agent(keep: int, parent: int) -> None:
    """Hold nothing of the agent's open, and don't outlive it."""
    # No object of the agent's may be finalized here: its descriptor may be another's by now.
    gc.disable()
    close_all_but({keep})
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS_FOR_AN_ANSWER + 1)
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _ask(host: str, resolve: Resolve) -> _Answer:
    try:
        return _Answer(resolve(host), "")
    except socket.gaierror as error:
        return _Answer((), (error.strerror or "unknown").lower())
    except (OSError, UnicodeError) as error:
        return _Answer((), str(error))
