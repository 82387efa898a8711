"""Connect the job's output to ``sys.stdout`` and ``sys.stderr`` of the caller.

If these write to descriptors 1 and 2, the job inherits the descriptors. If a notebook or pytest has
replaced them, the job writes to a pipe, and the caller's thread copies it to the replacement.
"""

import codecs
import os
import sys
from contextlib import suppress
from typing import TextIO

_READ_BYTES = 1 << 16


class OutputStream:
    """Standard output or standard error; ``for_command`` is the descriptor that the command inherits."""

    def __init__(self, stream: TextIO | None, original: TextIO | None, number: int) -> None:
        self.pipe: int | None = None
        """The end that the caller reads; None if the command inherits the stream's descriptor."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if stream is not None:
            # Earlier output must appear first. Objects that print() accepts may lack flush().
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        descriptor = _descriptor(stream)
        is_closed = stream is original and descriptor is None
        # Output to a closed stream is lost, for the job as for the caller.
        self._stream = None if is_closed else stream
        if stream is original and descriptor == number:
            self.for_command = number
        else:
            self.pipe, self.for_command = os.pipe()

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 without a pipe."""
        return -1 if self.pipe is None else self.pipe

    def close_command_end(self) -> None:
        """Close this process's copy of the end that the command has inherited."""
        if self.pipe is not None:
            os.close(self.for_command)

    def copy(self) -> bool:
        """Copy available output; return False at the end of file."""
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


def own_streams() -> tuple[OutputStream, OutputStream]:
    """Return the current ``sys.stdout`` and ``sys.stderr``."""
    return (
        OutputStream(sys.stdout, sys.__stdout__, 1),
        OutputStream(sys.stderr, sys.__stderr__, 2),
    )


def _descriptor(stream: TextIO | None) -> int | None:
    """Return the open descriptor of a stream, if it has one."""
    if stream is not None:
        with suppress(OSError, ValueError, AttributeError):
            descriptor = stream.fileno()
            os.fstat(descriptor)
            return descriptor
    return None
