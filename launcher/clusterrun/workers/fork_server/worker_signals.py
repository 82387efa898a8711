"""Which signals the server is shielded from, and what workers do with them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Collection
else:
    import _signal as signal

# What a worker may send to its parent, which under other launchers is the agent. The rest of the
# shielded ones are a process's own timers, and the terminal's.
HANDED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

# Sent to a whole step or container by schedulers; they are for the agent, which tells us what to do.
SHIELDED = (
    *HANDED_ON,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGXCPU,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)


def restore(ignored: Collection[int]) -> None:
    """Give the program the dispositions that the launcher was started with.

    SIGPIPE and SIGXFSZ are ignored by Python itself, not by the user.
    """
    for number in (*SHIELDED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)


def as_python_sets_them() -> None:
    """Do with signals what Python does with them when it starts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def shield() -> None:
    """Ignore what is meant for the agent."""
    for number in SHIELDED:
        signal.signal(number, signal.SIG_IGN)
