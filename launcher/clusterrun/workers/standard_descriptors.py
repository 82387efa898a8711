"""The standard descriptors of one worker: the terminal's own, or pipes to the relay."""

import fcntl
import os
from contextlib import suppress
from types import TracebackType
from typing import Self

from clusterrun.domain.streams import Std

PIPE_BYTES = 256 << 10
"""So that a burst of printing need not wait for the terminal.

The kernel grants each user 64 MiB of pipes (fs.pipe-user-pages-soft): enough for 128 ranks.
"""


class Plumbing:
    """Descriptors for one start; all that it opened is closed when the ``with`` block ends.

    ``streams`` go to the worker, ``from_stdout`` and ``from_stderr`` (None where the worker writes
    to the terminal itself) to the relay.
    """

    def __init__(self, *, reads: bool, direct: Std) -> None:
        """Open what a worker needs.

        Args:
            reads: it gets our standard input, not /dev/null.
            direct: streams that it writes to a terminal itself, where ours are one.

        """
        self._opened: list[int] = []
        stdin = 0 if reads else self._own(os.open(os.devnull, os.O_RDONLY))
        stdout, self.from_stdout = self._stream(1, direct=Std.OUT in direct)
        stderr, self.from_stderr = self._stream(2, direct=Std.ERR in direct)
        self.streams = (stdin, stdout, stderr)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close our copies: the worker and the relay have theirs."""
        for descriptor in self._opened:
            os.close(descriptor)

    def _stream(self, number: int, *, direct: bool) -> tuple[int, int | None]:
        if direct and os.isatty(number):
            return number, None
        read_end, write_end = (self._own(end) for end in os.pipe2(os.O_CLOEXEC))
        with suppress(OSError):
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return write_end, read_end

    def _own(self, descriptor: int) -> int:
        self._opened.append(descriptor)
        return descriptor
