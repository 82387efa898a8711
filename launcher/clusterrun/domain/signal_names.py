"""Signals: their names, and those that end the job."""

import signal

ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Sent to an agent, they end the job; all others do not."""


def signal_name(number: int) -> str:
    """Return "SIGTERM", or "signal 35" for a real-time signal, most of which have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
