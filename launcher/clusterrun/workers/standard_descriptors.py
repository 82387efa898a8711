"""The standard descriptors of a worker: the launcher's own, or pipes to the relay."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from msgspec import Struct

from clusterrun.domain.streams import Std
from clusterrun.workers.terminal import Terminal

PIPE_BYTES = 256 << 10
"""A burst of output need not wait for the terminal.

The kernel grants each user 64 MiB of pipes (fs.pipe-user-pages-soft): enough for 128 ranks.
"""


class StandardDescriptors(Struct, frozen=True):
    """``for_worker`` are its stdin, stdout and stderr.

    The others are for the relay; None where the worker writes to the terminal itself.
    """

    for_worker: tuple[int, int, int]
    from_stdout: int | None
    from_stderr: int | None


@contextmanager
def standard_descriptors(*, reads: bool, direct: Std) -> Iterator[StandardDescriptors]:
    """Open what a worker needs, and close it afterwards: the worker and the relay have duplicates.

    Args:
        reads: it gets the launcher's standard input, not /dev/null.
        direct: streams that it writes to the terminal itself, if the launcher's own are one.

    """
    with ExitStack() as opened:
        stdin = 0 if reads else _own(os.open(os.devnull, os.O_RDONLY), opened)
        stdout, from_stdout = _stream(1, opened, direct=Std.OUT in direct)
        stderr, from_stderr = _stream(2, opened, direct=Std.ERR in direct)
        yield StandardDescriptors((stdin, stdout, stderr), from_stdout, from_stderr)


def _stream(number: int, opened: ExitStack, *, direct: bool) -> tuple[int, int | None]:
    if direct and os.isatty(number):
        return number, None
    read_end, write_end = (_own(end, opened) for end in os.pipe2(os.O_CLOEXEC))
    with suppress(OSError):
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return write_end, read_end


def _own(descriptor: int, opened: ExitStack) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


class StandardInput(Struct, frozen=True):
    """Any worker may read a terminal; rank 0 reads anything else."""

    terminal: Terminal | None
    """The terminal that it is; None: it is none, or the launcher is not in its foreground."""
    workers: int
    """Number of workers on this node."""

    @property
    def shared_terminal(self) -> Terminal | None:
        """The terminal whose foreground the one worker becomes; None: there are several workers."""
        return self.terminal if self.workers == 1 else None

    def is_read_by(self, rank: int) -> bool:
        """Return whether the worker of this rank gets it; all others get /dev/null."""
        return rank == 0 or self.terminal is not None
