"""The terminal, which the launcher hands to a single worker as a shell does to its jobs.

SIGTTOU is blocked meanwhile: it stops a background group that changes the foreground group.
"""

import os
import signal
from contextlib import suppress
from typing import Self

from msgspec import Struct

from clusterrun.processes import blocked


class Terminal:
    """The controlling terminal of a launcher in the foreground, on its standard input."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.launcher_group = os.getpgrp()
        """The foreground group before a worker starts and after it has ended."""

    @classmethod
    def in_foreground(cls, stdin: int) -> Self | None:
        """Return the terminal on ``stdin``; None if it isn't one, or this group is in the background."""
        if not os.isatty(stdin):
            return None
        with suppress(OSError):
            if os.tcgetpgrp(stdin) == os.getpgrp():
                return cls(stdin)
        return None

    def give_to(self, group: int) -> None:
        """Make ``group`` the foreground, if the launcher is: it gets Ctrl-C, Ctrl-Z and the input."""
        with blocked(signal.SIGTTOU), suppress(OSError):
            if os.tcgetpgrp(self.descriptor) == self.launcher_group:
                os.tcsetpgrp(self.descriptor, group)

    def take_back_from(self, group: int) -> None:
        """Make the launcher the foreground, unless a shell has taken the terminal (``bg``)."""
        with blocked(signal.SIGTTOU), suppress(OSError):
            foreground = os.tcgetpgrp(self.descriptor)
            if foreground == group or not _exists(foreground):
                os.tcsetpgrp(self.descriptor, self.launcher_group)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class StandardInput(Struct, frozen=True):
    """The launcher's standard input: any worker may read a terminal; rank 0 reads anything else."""

    terminal: Terminal | None
    """None if it isn't a terminal, or the launcher is in the background."""
    workers: int
    """Number of workers on this node."""

    @property
    def shared_terminal(self) -> Terminal | None:
        """The terminal whose foreground a single worker becomes; None if there are several workers."""
        return self.terminal if self.workers == 1 else None

    def is_read_by(self, rank: int) -> bool:
        """Return whether the worker of this rank gets it; the others get /dev/null."""
        return rank == 0 or self.terminal is not None
