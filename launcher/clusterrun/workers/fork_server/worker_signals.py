"""The signals that the server ignores or reports, and the signal handlers of workers."""

from __future__ import annotations

import _signal as signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

REPORTED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""A worker may send these to its parent, which under other launchers is the agent: the agent gets them."""

SHIELDED = (
    *REPORTED,
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
"""Schedulers send these to all processes of a step or container; only the agent handles them."""


def ignore_shielded() -> None:
    for number in SHIELDED:
        signal.signal(number, signal.SIG_IGN)


def restore(ignored: Collection[int]) -> None:
    """Set the signals that the launcher was started with as ignored to be ignored, all others to default.

    Python itself ignores SIGPIPE and SIGXFSZ.
    """
    for number in (*SHIELDED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)


def set_as_python_does() -> None:
    """Set the handlers that Python sets when it starts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
