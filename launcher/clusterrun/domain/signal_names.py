"""Signals: their names, those that end the job, and those that are forwarded."""

import signal

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


def signal_name(number: int) -> str:
    """Return "SIGTERM", or "signal 35" for a real-time signal, most of which have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
