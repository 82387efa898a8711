"""Tracebacks on the screen: each is whole, and equal ones of several ranks are shown once. Pure.

From its first line on, a traceback is held until nothing has followed its exception for a moment. Causes
and further lines of a message belong to it. Logs, and what is kept for the report, have all of them.
"""

import re
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from clusterrun.cpuset import runs
from clusterrun.loop import NEVER
from clusterrun.policy.tracebacks import CHAINS, TRACEBACK
from clusterrun.workers.relay.screen import COLOURS

QUIET_SECONDS = 0.2
"""Without a line, after an exception. Python reads the sources of a traceback after its first line."""

LONGEST_SECONDS = 2.0
"""For which one is held."""

MAX_HELD = 64 << 10
"""Bytes."""

GATHERING_SECONDS = 0.3
"""In which equal ones are counted into one line."""

SECONDS_IN_SIGHT = 10.0
"""The first one: after that, one like it is printed again."""

MAX_KEPT = 32
"""Tracebacks to compare with."""

_HEADER = TRACEBACK.encode()
_CHAINS = tuple(line.encode() for line in CHAINS)
_RANK_OF_TORCH = rb"\A\[rank\d+\]: ?"
"""torch puts it before each line."""


class _Held(Struct, eq=False):
    """What a rank has printed since a traceback's first line."""

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
        """When it counts as whole."""
        quiet = QUIET_SECONDS if self.has_exception else LONGEST_SECONDS
        return min(self.latest + quiet, self.since + LONGEST_SECONDS)

    def parts(self) -> tuple[bytes, bytes]:
        """Return its frames, and the rest: the messages of its exceptions."""
        plain = [_plain(line) for line in self.lines]
        frames = b"".join(line for line in plain if _is_frame(line))
        return frames, b"".join(line for line in plain if not _is_frame(line))


class TracebackBuffer:
    """Takes the tracebacks out of the lines of one rank's standard error; ``shared`` shows them."""

    def __init__(
        self,
        shared: "Tracebacks",
        label: str,
        prefix: bytes,
        show: Callable[[bytes, bytes], object],
        is_shown: Callable[[], bool],
    ) -> None:
        """Hold nothing yet.

        Args:
            shared: of all ranks of this node.
            label: of the rank, for messages.
            prefix: of its lines.
            show: prints lines with a prefix.
            is_shown: whether they are printed at all.

        """
        self.label = label
        self.prefix = prefix
        self.show = show
        self._shared = shared
        self._is_shown = is_shown
        self._held: _Held | None = None

    @property
    def due(self) -> float:
        """When to ``look``."""
        return NEVER if self._held is None else self._held.due

    def feed(self, lines: bytes) -> bytes:
        """Return what is not part of a traceback."""
        if self._held is None and (_HEADER not in lines or not self._is_shown()):
            return lines
        passed = b""
        for line in lines.splitlines(keepends=True):
            now = self._shared.clock()
            if self._held is None and _HEADER in line and _is_header(_plain(line)):
                self._held = _Held(now, now)
            if self._held is None:
                passed += line
                continue
            self._held.add(line, now)
            if self._held.size > MAX_HELD:
                # What was before it comes first.
                self.show(self.prefix, passed)
                passed = b""
                self.finish()
        return passed

    def look(self, now: float) -> None:
        """Have what is whole by now shown."""
        if now >= self.due:
            self.finish()

    def finish(self) -> None:
        """Have what is held shown, also because the rank prints no more, or it was asked for."""
        held, self._held = self._held, None
        if held is not None:
            self._shared.add(self, held)


class _Shown(Struct, frozen=True):
    whose: TracebackBuffer
    message: bytes
    at: float


class Tracebacks:
    """Those of all ranks of this node."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.due = NEVER
        """When to ``look``."""
        self._shown: dict[bytes, _Shown] = {}
        """By their frames."""
        self._same: dict[tuple[_Shown, bytes], list[TracebackBuffer]] = {}
        """Who has printed one with the same frames; by the message, if that is another."""

    def add(self, whose: TracebackBuffer, held: _Held) -> None:
        """Show one, or count it: another rank has printed the same."""
        now = self.clock()
        frames, message = held.parts()
        first = self._shown.get(frames)
        if first is None or first.whose is whose or now > first.at + SECONDS_IN_SIGHT:
            self._shown.pop(frames, None)
            if len(self._shown) == MAX_KEPT:
                del self._shown[next(iter(self._shown))]
            self._shown[frames] = _Shown(whose, message, now)
            whose.show(whose.prefix, b"".join(held.lines))
            return
        other = b"" if message == first.message else message
        self._same.setdefault((first, other), []).append(whose)
        self.due = now if len(self._same) > MAX_KEPT else min(self.due, now + GATHERING_SECONDS)

    def look(self, now: float) -> None:
        """Say who has printed the same, if that is due."""
        if now >= self.due:
            self.say()

    def say(self) -> None:
        """Say who has printed the same by now."""
        same, self._same, self.due = self._same, {}, NEVER
        for (first, message), whose in same.items():
            text = b"the same traceback as %b" % first.whose.label.encode()
            text += b", but:\n" + message if message else b"\n"
            joined = _joined([each.prefix for each in whose])
            for each in whose[:1] if joined is not None else whose:
                each.show(each.prefix if joined is None else joined, text)

    def forget(self) -> None:
        """Compare with none of those before: another attempt begins."""
        self.say()
        self._shown.clear()


def _plain(line: bytes) -> bytes:
    return re.sub(_RANK_OF_TORCH, b"", re.sub(COLOURS, b"", line))


def _is_header(line: bytes) -> bool:
    return line.lstrip(b" +").removeprefix(b"Exception Group ").startswith(_HEADER)


def _is_frame(line: bytes) -> bool:
    """Return whether a line without colours is not an exception's message."""
    return line[:1].isspace() or line.startswith((_HEADER, *_CHAINS))


def _joined(prefixes: Sequence[bytes]) -> bytes | None:
    """Return one prefix, "[ranks 1,3-5] ", for several that differ in one number at most; else None."""
    if len({*prefixes}) == 1:
        return prefixes[0]
    parts = [re.split(rb"(\d+)", re.sub(COLOURS, b"", prefix)) for prefix in prefixes]
    if len({len(each) for each in parts}) > 1:
        return None
    columns = list(zip(*parts, strict=True))
    varying = [place for place, column in enumerate(columns) if len({*column}) > 1]
    if len(varying) != 1 or not varying[0] % 2:
        return None
    (place,) = varying
    before, after = b"".join(parts[0][:place]), b"".join(parts[0][place + 1 :])
    numbers = ",".join(runs(sorted({int(number) for number in columns[place]}))).encode()
    plural = re.sub(rb"rank *\Z", b"ranks ", before)
    return plural + numbers + after
