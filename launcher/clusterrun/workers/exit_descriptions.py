"""How one of the launcher's processes ended, in words."""

import os

from clusterrun.domain.signal_names import signal_name


def how_it_ended(status: int) -> str:
    """Return "exited with code 1" or "was killed by SIGKILL" for a ``wait`` status."""
    if os.WIFSIGNALED(status):
        return f"was killed by {signal_name(os.WTERMSIG(status))}"
    return f"exited with code {os.WEXITSTATUS(status)}"


def signal_of(status: int) -> int:
    """Return the signal that ended the process of a ``wait`` status; 0 if it exited."""
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
