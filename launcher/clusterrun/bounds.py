"""Bounded types of the values in messages between nodes; types of ranks; ranks and counts as text.

msgspec checks the bounds when it decodes a message, and rejects the message if a value is outside
them. Senders clamp their values with ``as_name``, ``as_line``, ``as_text``, ``as_seconds``, ...
"""

import re
from collections.abc import Iterable
from typing import Annotated, NewType

from msgspec import Meta

from clusterrun.cpuset import number_ranges

MAX_NAME_LENGTH = 255
MAX_LINE_LENGTH = 1 << 14
MAX_TEXT_LENGTH = 1 << 16

MAX_WORKERS = 10_000
"""On one node: more than any machine has CPUs or GPUs for."""

MAX_SECONDS = 1e10
"""300 years, because a clock may be changed while a job runs."""

_MAX_WALL_CLOCK = 1e11
"""Seconds since the epoch; Python can convert them to a date in every time zone."""

_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Terminal control characters, except tab and line feed, and characters that change the text direction."""

# Strings, because compiling them is not needed before the first worker starts.
_NOT_IN_A_LINE = rf"[\n\ud800-\udfff{_CONTROL}]"
_NOT_IN_A_TEXT = rf"[\ud800-\udfff{_CONTROL}]"
_NOT_IN_A_RUN_ID = rf"[/\t\n\ud800-\udfff{_CONTROL}]"

Name = Annotated[str, Meta(max_length=MAX_NAME_LENGTH, pattern=rf"\A[^\n{_CONTROL}]*\Z")]
"""A short line, such as the name of a host or an option."""

Line = Annotated[str, Meta(max_length=MAX_LINE_LENGTH, pattern=rf"\A[^\n{_CONTROL}]*\Z")]

Text = Annotated[str, Meta(max_length=MAX_TEXT_LENGTH, pattern=rf"\A[^{_CONTROL}]*\Z")]
"""Several lines."""

Page = Annotated[str, Meta(max_length=1 << 20, pattern=rf"\A[^{_CONTROL}]*\Z")]
"""A long text of many lines."""

RunId = Annotated[
    str, Meta(max_length=MAX_NAME_LENGTH, pattern=rf"\A(?!\.{{1,2}}\Z)[^/\t\n{_CONTROL}]*\Z")
]
"""The name of a run and of its log folder; not a path."""

Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
"""A duration or an age."""

Share = Annotated[float, Meta(ge=0, le=1)]
"""A fraction: 0.5 is half."""

Load = Annotated[float, Meta(ge=0, le=1 << 20)]
"""A sum of fractions over several processes: 2.5 is two and a half processes all of the time."""

WallClock = Annotated[float, Meta(ge=0, le=_MAX_WALL_CLOCK)]
"""Seconds since the epoch."""

NON_NEGATIVE = Meta(ge=0, lt=1 << 31)

Count = Annotated[int, NON_NEGATIVE]
"""Attempts, or a rank."""

Size = Annotated[int, Meta(ge=1, lt=1 << 31)]

Bytes = Annotated[int, Meta(ge=0, lt=1 << 62)]

ProcessId = Annotated[int, Meta(ge=0, lt=1 << 31)]
"""0 means no process."""

StatusCode = Annotated[int, Meta(ge=0, le=255)]

SignalNumber = Annotated[int, Meta(ge=1, le=64)]

SignalNumberOrZero = Annotated[int, Meta(ge=0, le=64)]
"""0 means no signal."""

Port = Annotated[int, Meta(ge=1, le=65535)]

# Three kinds of ranks, which mypy keeps apart.

LocalRank = NewType("LocalRank", int)
"""A worker's index on its node, from 0."""

GlobalRank = NewType("GlobalRank", int)
"""A worker's index in the job, from 0."""

NodeRank = NewType("NodeRank", int)
"""A node's index in the job, from 0."""


def as_name(text: str) -> str:
    """Return ``text`` as a ``Name``: cut to size, with "?" for control characters."""
    return as_line(text)[:MAX_NAME_LENGTH]


def as_line(text: str) -> str:
    return re.sub(_NOT_IN_A_LINE, "?", text[:MAX_LINE_LENGTH])


def as_text(text: str) -> str:
    """Return the end of ``text`` as a ``Text``, with "?" for control characters."""
    return re.sub(_NOT_IN_A_TEXT, "?", text[-MAX_TEXT_LENGTH:])


def as_run_id(text: str) -> str:
    """Return a scheduler's job name as a ``RunId``, with "_" for characters that a run id can't have."""
    name = re.sub(_NOT_IN_A_RUN_ID, "_", text[:MAX_NAME_LENGTH])
    return name.replace(".", "_") if name in {".", ".."} else name


def as_seconds(seconds: float) -> float:
    return min(max(0.0, seconds), MAX_SECONDS)


def as_share(share: float) -> float:
    """Return ``share`` clamped to 0 to 1 and rounded: clocks read at different times may exceed that."""
    return round(min(max(0.0, share), 1.0), 3)


def as_load(load: float) -> float:
    """Return ``load`` clamped to the bounds of ``Load`` and rounded."""
    return round(min(max(0.0, load), float(1 << 20)), 3)


def as_wall_clock(seconds: float) -> float:
    return min(max(0.0, seconds), _MAX_WALL_CLOCK)


def named_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as messages print them: "rank 3", "ranks 3, 5-7"."""
    known = sorted(ranks)
    return f"rank{'s' if len(known) > 1 else ''} {', '.join(number_ranges(known))}"


def counted(number: float, name: str) -> str:
    """Return "1 GPU", "2 GPUs" or "0.5 CPUs"; the plural of ``name`` must be regular."""
    text = f"{number:g}" if isinstance(number, float) else f"{number}"
    return f"{text} {name}{'' if number == 1 else 's'}"
