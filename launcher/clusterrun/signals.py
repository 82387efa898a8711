"""Signals: which end the job, which are forwarded; signals to this process as events.

Python's signal handling writes a byte to a pipe, which the loop reads.
"""

import os
import signal
from collections.abc import Iterable
from types import FrameType

from msgspec import Struct

ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""The only signals that end the job when an agent receives them."""

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
"""Forwarded to workers that handle them, except ``--suspend-signal``. They do not end the launcher."""

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
    """The fork server received it, as the workers' parent, and forwarded it to the agent."""


class ChildEnded(Struct, frozen=True):
    """A child of the agent, its own or adopted, has exited and must be reaped."""

    at: float


def signal_name(number: int) -> str:
    """Return "SIGTERM", or "signal 35" for a real-time signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Signals:
    """All signals to this process, as a source of events.

    Signals that are ignored at the start stay ignored, except SIGQUIT: a shell script's ``&`` ignores
    it to keep a program from being killed, and it does not kill the launcher.
    """

    def __init__(self) -> None:
        """Install the handlers; ``HANDLED_SIGNALS`` and ``FORWARDED_SIGNALS`` no longer kill this process."""
        self._inbox, wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        # Our parent may have blocked them while it started us.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, *ENDING_SIGNALS})
        # Even if it was ignored: the kernel would then reap our children and drop their exit status.
        signal.signal(signal.SIGCHLD, _do_nothing)
        for number in (*HANDLED_SIGNALS, *FORWARDED_SIGNALS):
            # What nohup or a shell's "&" ignores stays ignored, in the workers too.
            if number == signal.SIGQUIT or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _do_nothing)

    def fileno(self) -> int:
        return self._inbox

    def events(self, now: float) -> Iterable[SignalReceived | ChildEnded]:
        """Yield the signals received since the last call, except those that other code handles."""
        try:
            numbers = os.read(self._inbox, 4096)
        except BlockingIOError:
            return
        for number in numbers:
            if number == signal.SIGCHLD:
                yield ChildEnded(now)
            elif number in HANDLED_SIGNALS or number in FORWARDED_SIGNALS:
                yield SignalReceived(number, now)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Python itself writes the byte to the wakeup descriptor, but only if there is a handler."""
