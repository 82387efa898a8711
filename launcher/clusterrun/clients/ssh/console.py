"""Write the output of all hosts to this process's standard output and standard error."""

import time

from clusterrun.bounds import as_line
from clusterrun.descriptor_output import HIGH_WATER_MARK, DescriptorOutput
from clusterrun.errors import printable

SECONDS_OF_ECHO = 10.0
"""Within this time, the same notice of another host is not repeated."""

MAX_NOTICES = 1000
"""The number of notices that are remembered; a broken host may send any number."""

SECONDS_TO_PRINT = 2.0
"""How long the last lines may take to write."""

SECONDS_BETWEEN_TRIES = 0.05


class HostsConsole:
    """Writes whole lines to both streams."""

    def __init__(self, out: DescriptorOutput, err: DescriptorOutput) -> None:
        self._outputs = {1: out, 2: err}
        self._noticed: dict[bytes, tuple[int, float]] = {}
        """By notice, the rank of the host that sent it first, and when."""

    @property
    def is_congested(self) -> bool:
        return any(output.waiting > HIGH_WATER_MARK for output in self._outputs.values())

    @property
    def waiting(self) -> list[DescriptorOutput]:
        """The outputs with unwritten data."""
        return [output for output in self._outputs.values() if output.waiting]

    @property
    def is_gone(self) -> bool:
        """Whether the reader of standard output has closed it."""
        return self._outputs[1].failure is not None

    def write(self, stream: int, data: bytes) -> None:
        """Write to standard output (1) or standard error (2)."""
        self._outputs[stream].write(data)
        self._outputs[stream].flush()

    def print(self, text: str) -> None:
        """Print a message of this process to standard error."""
        if text:
            shown = printable(text, "\t\n")
            self.write(2, f"{shown}\n".encode())

    def notice(self, rank: int, line: bytes) -> None:
        """Print a notice of the command on a host, unless another host has just sent the same.

        Control characters are replaced.
        """
        now = time.monotonic()
        first, at = self._noticed.get(line, (rank, now))
        if first != rank and now - at < SECONDS_OF_ECHO:
            return
        if len(self._noticed) == MAX_NOTICES:
            del self._noticed[next(iter(self._noticed))]
        self._noticed[line] = rank, now
        self.print(as_line(line.decode(errors="replace").rstrip("\n")))

    def flush(self) -> None:
        for output in self.waiting:
            output.flush()

    def close(self) -> None:
        """Write the rest, if the reader takes it in time."""
        deadline = time.monotonic() + SECONDS_TO_PRINT
        while self.waiting and time.monotonic() < deadline:
            self.flush()
            time.sleep(SECONDS_BETWEEN_TRIES)
