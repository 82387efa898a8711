"""Prints tracebacks on the screen whole, and equal ones of several ranks once. Pure.

A traceback is buffered from its first line until nothing has followed its exception for a moment. Causes,
and further lines of a message, belong to it. Log files and the report have all tracebacks.
"""

import re
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from clusterrun.cpuset import number_ranges
from clusterrun.loop import NEVER
from clusterrun.policy.tracebacks import CHAINS, TRACEBACK
from clusterrun.workers.relay.screen import COLOURS

QUIET_SECONDS = 0.2
"""Without a line after an exception: the traceback is complete."""

MAX_SECONDS = 2.0
"""For which a traceback is buffered: Python reads its source lines after it has printed the first line."""

MAX_BYTES = 64 << 10
"""Of a buffered traceback."""

GATHERING_SECONDS = 0.3
"""Time to collect duplicates into one line."""

SECONDS_IN_SIGHT = 10.0
"""After this the first one may have scrolled away, so a duplicate is printed again."""

MAX_KEPT = 32
"""Tracebacks to compare with."""

_HEADER = TRACEBACK.encode()
_CHAINS = tuple(line.encode() for line in CHAINS)
_TORCH_RANK = rb"\A\[rank\d+\]: ?"
"""torch prepends it to each line."""


class _Lines(Struct, eq=False):
    """A rank's lines since the first line of a traceback."""

    since: float
    latest: float
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    has_exception: bool = False

    def add(self, line: bytes, now: float) -> None:
        self.lines.append(line)
        self.size += len(line)
        self.latest = now
        self.has_exception = self.has_exception or not _is_frame(_plain(line))

    @property
    def due(self) -> float:
        """When the traceback counts as complete."""
        quiet = QUIET_SECONDS if self.has_exception else MAX_SECONDS
        return min(self.latest + quiet, self.since + MAX_SECONDS)

    def frames_and_messages(self) -> tuple[bytes, bytes]:
        """Return the lines of its frames, and those of its exceptions' messages."""
        plain = [_plain(line) for line in self.lines]
        frames = b"".join(line for line in plain if _is_frame(line))
        return frames, b"".join(line for line in plain if not _is_frame(line))


class TracebackBuffer:
    """Takes the tracebacks out of one rank's standard error; ``shared`` prints them."""

    def __init__(
        self,
        shared: "Tracebacks",
        label: str,
        prefix: bytes,
        show: Callable[[bytes, bytes], object],
        is_shown: Callable[[], bool],
    ) -> None:
        """Start empty.

        Args:
            shared: the tracebacks of all ranks of this node.
            label: the rank's name in messages.
            prefix: the prefix of its lines.
            show: prints lines with a prefix.
            is_shown: returns whether its lines are printed at all.

        """
        self.label = label
        self.prefix = prefix
        self.show = show
        self._shared = shared
        self._is_shown = is_shown
        self._buffered: _Lines | None = None

    @property
    def due(self) -> float:
        """When to call ``update``."""
        return NEVER if self._buffered is None else self._buffered.due

    def feed(self, lines: bytes) -> bytes:
        """Take lines; return those that are not part of a traceback."""
        if self._buffered is None and (_HEADER not in lines or not self._is_shown()):
            return lines
        others = b""
        for line in lines.splitlines(keepends=True):
            now = self._shared.clock()
            if self._buffered is None and _HEADER in line and _is_header(_plain(line)):
                self._buffered = _Lines(now, now)
            if self._buffered is None:
                others += line
                continue
            self._buffered.add(line, now)
            if self._buffered.size > MAX_BYTES:
                # Lines before the traceback come first.
                self.show(others, self.prefix)
                others = b""
                self.flush()
        return others

    def update(self, now: float) -> None:
        """Print the traceback if it is complete."""
        if now >= self.due:
            self.flush()

    def flush(self) -> None:
        """Print the buffered lines, complete or not."""
        buffered, self._buffered = self._buffered, None
        if buffered is not None:
            self._shared.add(self, buffered)


class _Printed(Struct, frozen=True):
    rank: TracebackBuffer
    message: bytes
    at: float


class Tracebacks:
    """The tracebacks of all ranks of this node."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.due = NEVER
        """When to call ``update``."""
        self._printed: dict[bytes, _Printed] = {}
        """By their frames."""
        self._duplicates: dict[tuple[_Printed, bytes], list[TracebackBuffer]] = {}
        """The ranks that have printed the same frames, by the message if it differs."""

    def add(self, rank: TracebackBuffer, traceback: _Lines) -> None:
        """Print a traceback, or count it as a duplicate of another rank's."""
        now = self.clock()
        frames, message = traceback.frames_and_messages()
        first = self._printed.get(frames)
        if first is None or first.rank is rank or now > first.at + SECONDS_IN_SIGHT:
            self._printed.pop(frames, None)
            if len(self._printed) == MAX_KEPT:
                del self._printed[next(iter(self._printed))]
            self._printed[frames] = _Printed(rank, message, now)
            rank.show(b"".join(traceback.lines), rank.prefix)
            return
        other_message = b"" if message == first.message else message
        self._duplicates.setdefault((first, other_message), []).append(rank)
        many = len(self._duplicates) > MAX_KEPT
        self.due = now if many else min(self.due, now + GATHERING_SECONDS)

    def update(self, now: float) -> None:
        """Print which ranks have duplicates, if that is due."""
        if now >= self.due:
            self.report_duplicates()

    def report_duplicates(self) -> None:
        """Print which ranks have printed the same tracebacks so far."""
        duplicates, self._duplicates, self.due = self._duplicates, {}, NEVER
        for (first, message), ranks in duplicates.items():
            text = b"the same traceback as %b" % first.rank.label.encode()
            text += b", but:\n" + message if message else b"\n"
            joined = _join_prefixes([each.prefix for each in ranks])
            for each in ranks if joined is None else ranks[:1]:
                each.show(text, each.prefix if joined is None else joined)

    def forget(self) -> None:
        """Forget all printed tracebacks, because another attempt begins."""
        self.report_duplicates()
        self._printed.clear()


def _plain(line: bytes) -> bytes:
    return re.sub(_TORCH_RANK, b"", re.sub(COLOURS, b"", line))


def _is_header(line: bytes) -> bool:
    return line.lstrip(b" +").removeprefix(b"Exception Group ").startswith(_HEADER)


def _is_frame(line: bytes) -> bool:
    """Return whether a line without colours is not part of an exception's message."""
    return line[:1].isspace() or line.startswith((_HEADER, *_CHAINS))


def _join_prefixes(prefixes: Sequence[bytes]) -> bytes | None:
    """Return "[ranks 1,3-5] " for prefixes that differ in at most one number; None for others."""
    if len({*prefixes}) == 1:
        return prefixes[0]
    splits = [re.split(rb"(\d+)", re.sub(COLOURS, b"", prefix)) for prefix in prefixes]
    if len({len(each) for each in splits}) > 1:
        return None
    columns = list(zip(*splits, strict=True))
    varying = [index for index, column in enumerate(columns) if len({*column}) > 1]
    # Numbers are at odd indices.
    if len(varying) != 1 or not varying[0] % 2:
        return None
    (index,) = varying
    before, after = b"".join(splits[0][:index]), b"".join(splits[0][index + 1 :])
    numbers = ",".join(number_ranges(sorted({int(number) for number in columns[index]}))).encode()
    return re.sub(rb"rank *\Z", b"ranks ", before) + numbers + after
