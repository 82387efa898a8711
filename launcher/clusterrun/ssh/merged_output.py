"""What all hosts print, on this process's own standard output and standard error."""

import os
import stat
import time
from functools import partial

from clusterrun.ssh.frames import Kind
from clusterrun.workers.relay.descriptor_output import CONGESTED, DescriptorOutput, open_output

LONGEST_LINE = 1 << 16
"""Bytes; a longer line is printed in parts."""

SECONDS_OF_ECHO = 10.0
"""Within this time a line of clusterrun's own that another host printed, too, is not repeated."""

OWN_LINE = b"clusterrun: "
CONTINUED = b"  "
"""How the lines of a hint begin."""


class MergedOutput:
    """Two streams, which all hosts share line by line."""

    def __init__(self, out: DescriptorOutput, err: DescriptorOutput) -> None:
        self.outputs = {Kind.OUT: out, Kind.ERR: err}
        self._begun: dict[tuple[int, Kind], bytearray] = {}
        self._own_lines: dict[bytes, tuple[int, float]] = {}
        self._repeats: set[int] = set()
        """Hosts whose last line was not printed, as another host had printed it."""

    @property
    def is_congested(self) -> bool:
        return any(output.waiting > CONGESTED for output in self.outputs.values())

    @property
    def waiting(self) -> list[DescriptorOutput]:
        """The outputs that have something left to write."""
        return [output for output in self.outputs.values() if output.waiting]

    @property
    def is_gone(self) -> bool:
        """Whether the reader of standard output has closed it."""
        return self.outputs[Kind.OUT].failure is not None

    def take(self, rank: int, kind: Kind, data: bytes) -> None:
        """Print the whole lines of a host; keep the one that is begun."""
        begun = self._begun.setdefault((rank, kind), bytearray())
        begun += data
        end = begun.rfind(b"\n") + 1
        if not end and len(begun) > LONGEST_LINE:
            end = len(begun)
        self._print(rank, kind, bytes(begun[:end]))
        del begun[:end]

    def finish(self, rank: int) -> None:
        """Print the line that a host has begun and will not end."""
        for kind in self.outputs:
            if begun := self._begun.pop((rank, kind), None):
                self._print(rank, kind, bytes(begun) + b"\n")

    def say(self, text: str) -> None:
        """Print lines of this process's own to standard error."""
        if text:
            self._write(Kind.ERR, f"{text}\n".encode(errors="backslashreplace"))

    def flush(self) -> None:
        for output in self.waiting:
            output.flush()

    def _print(self, rank: int, kind: Kind, lines: bytes) -> None:
        if kind is Kind.ERR:
            kept = [it for it in lines.splitlines(keepends=True) if not self._is_repeat(rank, it)]
            lines = b"".join(kept)
        if lines:
            self._write(kind, lines)

    def _write(self, kind: Kind, data: bytes) -> None:
        self.outputs[kind].write(data)
        self.outputs[kind].flush()

    def _is_repeat(self, rank: int, line: bytes) -> bool:
        is_own = line.startswith(OWN_LINE)
        if not is_own and not (line.startswith(CONTINUED) and rank in self._repeats):
            self._repeats.discard(rank)
            return False
        if not is_own:
            return True
        now = time.monotonic()
        printer, at = self._own_lines.get(line, (rank, now))
        if printer != rank and now - at < SECONDS_OF_ECHO:
            self._repeats.add(rank)
            return True
        self._own_lines[line] = (rank, now)
        self._repeats.discard(rank)
        return False


def own_outputs() -> MergedOutput:
    """Return this process's standard output and standard error."""
    return MergedOutput(_output(1, "stdout"), _output(2, "stderr"))


def _output(descriptor: int, name: str) -> DescriptorOutput:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        # Opened again, it would be written from its beginning.
        return DescriptorOutput(descriptor, partial(os.write, descriptor), name)
    return open_output(descriptor, name)
