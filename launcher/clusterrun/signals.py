"""Signals: their names, those that end the job or are forwarded; those to this process, as events.

A handler only writes a byte, which the loop reads.
"""

import os
import signal
from collections.abc import Iterable
from types import FrameType

from msgspec import Struct

ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Sent to an agent, they end the job; all others do not."""

FORWARDED_SIGNALS = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGXCPU,
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)
"""Forwarded to workers that handle them, apart from ``--suspend-signal``; they end nothing."""

HANDLED_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGCONT,
)


class SignalReceived(Struct, frozen=True):
    """The agent received signal ``number``."""

    number: int
    at: float
    to_fork_server: bool = False
    """The fork server received it, as the workers' parent, and forwards it to the agent."""


class ChildEnded(Struct, frozen=True):
    """A child of the agent has ended, of its own or adopted: it is to be reaped."""

    at: float


def signal_name(number: int) -> str:
    """Return "SIGTERM", or "signal 35" for a real-time signal, most of which have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Signals:
    """All signals to this process, as a source of events.

    Those ignored at the start stay so, SIGQUIT aside: a shell script's ``&`` ignores it for what it
    would end, and here it ends nothing.
    """

    def __init__(self) -> None:
        """Arm the handlers; from here on no signal of ``HANDLED_SIGNALS`` or ``FORWARDED_SIGNALS`` ends us."""
        self._inbox, wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        # A program that blocks them while it starts another one leaves them so for all that follow.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, *ENDING_SIGNALS})
        # Even if ignored so far: the kernel would reap our children, and not say how they ended.
        signal.signal(signal.SIGCHLD, _only_wake)
        for number in (*HANDLED_SIGNALS, *FORWARDED_SIGNALS):
            # nohup and a shell's "&" ignore for us and for the workers.
            if number == signal.SIGQUIT or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _only_wake)

    def fileno(self) -> int:
        return self._inbox

    def events(self, now: float) -> Iterable[SignalReceived | ChildEnded]:
        """Return what has come since.

        A signal that other code has a handler for is not an event.
        """
        try:
            numbers = os.read(self._inbox, 4096)
        except BlockingIOError:
            return
        for number in numbers:
            if number == signal.SIGCHLD:
                yield ChildEnded(now)
            elif number in HANDLED_SIGNALS or number in FORWARDED_SIGNALS:
                yield SignalReceived(number, now)


def _only_wake(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the byte is written by Python itself, to the wakeup descriptor."""
