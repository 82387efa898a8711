"""The standard descriptors of one worker: the terminal's own, or pipes to the relay."""

import fcntl
import os
from contextlib import suppress
from types import TracebackType
from typing import Self

from launcher.domain.plan import WorkerPlan
from launcher.domain.streams import Std
from launcher.workers.terminal import Terminal

PIPE_BYTES = 256 << 10
"""So that a burst of printing need not wait for the terminal.

The kernel grants each user 64 MiB of pipes (fs.pipe-user-pages-soft): enough for 128 ranks.
"""


class Plumbing:
    """Descriptors for one start; all that it opened is closed when the ``with`` block ends.

    ``streams`` go to the worker, ``from_stdout`` and ``from_stderr`` (None where the worker writes
    to the terminal itself) to the relay. The one worker that has the terminal reads from it, whatever
    its rank; otherwise global rank 0 gets our standard input, and others /dev/null.
    """

    def __init__(self, worker: WorkerPlan, terminal: Terminal | None, relayed: Std) -> None:
        """Open what ``worker`` needs; the streams ``relayed`` don't bypass the relay."""
        self._opened: list[int] = []
        direct = Std.NONE if terminal is None else ~relayed
        reads = terminal is not None or worker.rank == 0
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
