"""Signals by their names."""

import signal


def signal_name(number: int) -> str:
    """Return "SIGTERM", or "signal 35" for one without a name: most real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
