"""Where the job's output goes: to ``sys.stdout`` and ``sys.stderr`` of the caller.

Where these are this process's own descriptors, the job writes there itself. Where a notebook or
pytest has put something else in their place, the job writes to a pipe, and the caller's thread
copies what it reads: nothing else would show it in the cell or the test.
"""

import codecs
import os
import sys
from contextlib import suppress
from typing import TextIO

_READ_BYTES = 1 << 16


class JobStreams:
    """Standard output and standard error of a job."""

    def __init__(self) -> None:
        """Look at what ``sys.stdout`` and ``sys.stderr`` are now."""
        self.stdout = OutputStream(sys.stdout, sys.__stdout__, 1)
        self.stderr = OutputStream(sys.stderr, sys.__stderr__, 2)

    @property
    def pipes(self) -> list[int]:
        """The descriptors to read and to ``copy``."""
        return [each.pipe for each in (self.stdout, self.stderr) if each.pipe is not None]

    def started(self) -> None:
        """Close the command's ends, which it has inherited."""
        self.stdout.started()
        self.stderr.started()

    def copy(self, pipe: int) -> bool:
        """Copy what has been printed; return whether more may come."""
        return (self.stdout if pipe == self.stdout.pipe else self.stderr).copy()

    def close(self) -> None:
        self.stdout.close()
        self.stderr.close()


class OutputStream:
    """One of the two: ``for_command`` is the descriptor that the command inherits."""

    def __init__(self, stream: TextIO | None, original: TextIO | None, number: int) -> None:
        self.pipe: int | None = None
        """What the caller reads; None if the command writes to the descriptor itself."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if stream is not None:
            # What was printed before the job is printed above it. Not all that print takes can flush.
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        descriptor = _descriptor(stream)
        is_closed = stream is original and descriptor == -1
        # What the job prints to a closed stream is lost, as what the caller prints.
        self._stream = None if is_closed else stream
        if stream is original and descriptor == number:
            self.for_command = number
        else:
            self.pipe, self.for_command = os.pipe()

    def started(self) -> None:
        if self.pipe is not None:
            os.close(self.for_command)

    def copy(self) -> bool:
        data = os.read(self.pipe, _READ_BYTES) if self.pipe is not None else b""
        text = self._decoder.decode(data, final=not data)
        if text and self._stream is not None:
            self._stream.write(text)
            with suppress(AttributeError):
                self._stream.flush()
        return bool(data)

    def close(self) -> None:
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None


def _descriptor(stream: TextIO | None) -> int:
    """Return the number of the open descriptor that a stream writes to; -1 if it has none."""
    with suppress(OSError, ValueError, AttributeError):
        descriptor = stream.fileno() if stream is not None else -1
        os.fstat(descriptor)
        return descriptor
    return -1
