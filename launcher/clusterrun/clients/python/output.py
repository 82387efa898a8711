"""Where the job's output goes: to ``sys.stdout`` and ``sys.stderr`` of the caller.

Where these are this process's own descriptors, the job writes there itself. Where a notebook or
pytest has put something else in their place, the job writes to a pipe, and the caller's thread
copies what it reads: nothing else would show it in the cell or the test.
"""

import codecs
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

_READ_BYTES = 1 << 16

_BAR = "\x1e"
"""A line that begins with it is the state of a progress bar (``workers.relay.routes.OwnOutput``)."""


class JobStreams:
    """Standard output and standard error of a job."""

    def __init__(self) -> None:
        """Look at what ``sys.stdout`` and ``sys.stderr`` are now."""
        self.stdout = OutputStream(sys.stdout, sys.__stdout__, 1)
        self.stderr = OutputStream(sys.stderr, sys.__stderr__, 2)

    @property
    def draws_bars(self) -> bool:
        """Whether both are a notebook's."""
        return self.stdout.bars is not None and self.stderr.bars is not None

    @property
    def pipes(self) -> list[int]:
        """The descriptors to read and to ``copy``."""
        return [each.pipe for each in (self.stdout, self.stderr) if each.pipe is not None]

    def started(self) -> None:
        """Close the agent's ends, which it has inherited."""
        self.stdout.started()
        self.stderr.started()

    def copy(self, pipe: int) -> bool:
        """Copy what has been printed; return whether more may come."""
        return (self.stdout if pipe == self.stdout.pipe else self.stderr).copy()

    def close(self) -> None:
        self.stdout.close()
        self.stderr.close()


class OutputStream:
    """One of the two: ``for_agent`` is the descriptor that the agent inherits."""

    def __init__(self, stream: TextIO | None, original: TextIO | None, number: int) -> None:
        self.pipe: int | None = None
        """What the caller reads; None if the agent writes to the descriptor itself."""
        self.bars: NotebookBars | None = None
        """Of a notebook's stream."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        """The beginning of a line that may be about a bar."""
        if stream is not None:
            # What was printed before the job is printed above it. Not all that print takes can flush.
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        descriptor = _descriptor(stream)
        is_closed = stream is original and descriptor == -1
        # What the job prints to a closed stream is lost, as what the caller prints.
        self._stream = None if is_closed else stream
        if stream is original and descriptor == number:
            self.for_agent = number
        else:
            self.pipe, self.for_agent = os.pipe()
            if type(stream).__module__.startswith("ipykernel."):
                self.bars = NotebookBars()

    def started(self) -> None:
        if self.pipe is not None:
            os.close(self.for_agent)

    def copy(self) -> bool:
        data = os.read(self.pipe, _READ_BYTES) if self.pipe is not None else b""
        text = self._decoder.decode(data, final=not data)
        if self.bars is not None:
            text = self._without_bars(self._held + text, self.bars, is_last=not data)
        if text and self._stream is not None:
            self._stream.write(text)
            with suppress(AttributeError):
                self._stream.flush()
        return bool(data)

    def _without_bars(self, text: str, bars: "NotebookBars", *, is_last: bool) -> str:
        """Show what is about bars; return the rest, but for a line whose rest must decide."""
        *whole, begun = text.split("\n")
        lines = [line for line in whole if not bars.take(line)]
        self._held = "" if is_last or not bars.may_begin(begun) else begun
        return "".join(f"{line}\n" for line in lines) + begun[len(self._held) :]

    def close(self) -> None:
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None


class NotebookBars:
    """The progress bars of the ranks, each in a place of its own in the cell."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, Any]] = {}
        """By name, each with the prefix of its lines and what shows it."""

    def may_begin(self, begun: str) -> bool:
        """Return whether the rest of a line decides if it is about a bar."""
        prefixes = (_BAR, *(prefix for prefix, _ in self._shown.values()))
        return any(begun.startswith(each) or each.startswith(begun) for each in prefixes)

    def take(self, line: str) -> bool:
        """Show a line in the place of a bar if it is about one; return whether it was."""
        if line.startswith(_BAR) and line.count(_BAR) >= 3:
            _, name, prefix, state = line.split(_BAR, 3)
            self._show(name, prefix, prefix + state)
            return True
        for name, (prefix, _) in self._shown.items():
            if line.startswith(prefix):
                # A bar ends with its line, and so does one that prints something else.
                self._show(name, prefix, line)
                del self._shown[name]
                return True
        return False

    def _show(self, name: str, prefix: str, text: str) -> None:
        from IPython.display import display

        content = {"text/plain": text}
        if name in self._shown:
            self._shown[name][1].update(content, raw=True)
        else:
            shown = display(content, raw=True, display_id=True)  # type: ignore[no-untyped-call]
            self._shown[name] = prefix, shown


def _descriptor(stream: TextIO | None) -> int:
    """Return the number of the open descriptor that a stream writes to; -1 if it has none."""
    with suppress(OSError, ValueError, AttributeError):
        descriptor = stream.fileno() if stream is not None else -1
        os.fstat(descriptor)
        return descriptor
    return -1
