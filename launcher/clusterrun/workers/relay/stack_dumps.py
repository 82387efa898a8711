"""Separates the stacks that faulthandler prints on SIGQUIT from a worker's own lines. Pure."""

import re

from clusterrun.policy.stacks import LONGEST
from clusterrun.workers.relay.tail import plain

_HEADER = rb"(Current thread|Thread) 0x[0-9a-f]+( .*)?\(most recent call first\):\s*$"
_FRAME = rb"  (File .*, line (\d+|\?\?\?) in |<|\.\.\.|Garbage-collecting)"
_ADDRESS = r"(?m)^((?:Current thread|Thread)) 0x[0-9a-f]+"
_BENEATH_THE_SCRIPT = (
    r'(?m)^  File "(?:.*/fork_server/__main__\.py|<python -m>)", line \d+ in <module>\n?'
)
"""The launcher's own frames, which every forked worker has."""

_ALONE = r"\A(?:Current thread|Thread)[^\n]*\n"


class DumpFilter:
    """Takes faulthandler's lines out of a stream's, while it is armed.

    Other threads may print in between, so that each line is judged by itself.
    """

    def __init__(self) -> None:
        self.armed = False
        self.lines = 0
        """Number of faulthandler's lines since it was armed."""
        self.found_own_lines = False
        """Whether what was fed last had whole lines of the worker's own."""
        self._dump = bytearray()
        self._blank = b""

    def arm(self) -> None:
        self.armed, self.lines = True, 0
        self._dump.clear()

    def disarm(self) -> bytes:
        """Take out no more; return what was held back and belongs to the worker's own lines."""
        self.armed = False
        blank, self._blank = self._blank, b""
        return blank

    def feed(self, lines: bytes) -> bytes:
        if not self.armed:
            return lines
        self.found_own_lines = False
        return b"".join(self._feed_line(line) for line in lines.splitlines(keepends=True))

    @property
    def stack(self) -> str:
        """What has been taken out: the stacks of all threads, without what differs by process."""
        text = re.sub(_BENEATH_THE_SCRIPT, "", plain(bytes(self._dump)))
        text = re.sub(_ADDRESS, r"\1", text).rstrip("\n")
        # The name of the only thread is left out.
        return text if text.count(" (most recent call first):") > 1 else re.sub(_ALONE, "", text)

    def _feed_line(self, line: bytes) -> bytes:
        if header := re.search(_HEADER, line):
            # An empty line separates threads; a progress bar may stand before the first one.
            self._take(self._blank + line[header.start() :])
            self._blank = b""
            return line[: header.start()] and line[: header.start()] + b"\n"
        before, self._blank = self._blank, b""
        if self.lines and re.match(_FRAME, line):
            self._take(line)
            return before
        if self.lines and not before and line == b"\n":
            self._blank = line
            return b""
        self.found_own_lines = True
        return before + line

    def _take(self, line: bytes) -> None:
        self.lines += 1
        if len(self._dump) + len(line) <= LONGEST:
            self._dump += line
