"""Signals by their names."""

import signal


def signal_name(number: int) -> str:
    """Return "SIGTERM", or "signal 35" for a real-time signal, most of which have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
