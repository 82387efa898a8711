"""The values that nodes send each other, as types with bounds; ranks, and numbers in messages.

msgspec checks the bounds when it decodes a message, and refuses one with a value outside them. A
sender makes its values fit with ``as_name``, ``as_line``, ``as_text`` and ``as_seconds``.
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
"""Of one node: more than any machine has GPUs or CPUs for."""

MAX_SECONDS = 1e10
"""Three hundred years: a clock may be changed while a job runs."""

_LATEST = 1e11
"""Seconds since the epoch that have a date in every time zone."""

_OBEYED = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Control characters of terminals, except tab and line feed; and what changes the order of letters."""

# Strings, compiled at their first use: that is not on the way to the first worker.
_NOT_IN_A_LINE = rf"[\n\ud800-\udfff{_OBEYED}]"
_NOT_IN_A_TEXT = rf"[\ud800-\udfff{_OBEYED}]"
_NOT_IN_A_RUN_ID = rf"[/\t\n\ud800-\udfff{_OBEYED}]"

Name = Annotated[str, Meta(max_length=MAX_NAME_LENGTH, pattern=rf"\A[^\n{_OBEYED}]*\Z")]
"""A short line: the name of a host, an option, a step."""

Line = Annotated[str, Meta(max_length=MAX_LINE_LENGTH, pattern=rf"\A[^\n{_OBEYED}]*\Z")]

Text = Annotated[str, Meta(max_length=MAX_TEXT_LENGTH, pattern=rf"\A[^{_OBEYED}]*\Z")]
"""Lines."""

Page = Annotated[str, Meta(max_length=1 << 20, pattern=rf"\A[^{_OBEYED}]*\Z")]
"""Very many lines."""

RunId = Annotated[
    str, Meta(max_length=MAX_NAME_LENGTH, pattern=rf"\A(?!\.{{1,2}}\Z)[^/\t\n{_OBEYED}]*\Z")
]
"""The name of a run and of its log folder: no path."""

Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
"""A duration or an age."""

Share = Annotated[float, Meta(ge=0, le=1)]
"""A part of a time, or of all: 0.5 is half of it."""

Load = Annotated[float, Meta(ge=0, le=1 << 20)]
"""Shares of several processes together: 2.5 is as much as two and a half of them all the time."""

WallClock = Annotated[float, Meta(ge=0, le=_LATEST)]
"""Seconds since the epoch."""

NON_NEGATIVE = Meta(ge=0, lt=1 << 31)

Count = Annotated[int, NON_NEGATIVE]
"""A number of attempts, or a rank."""

Size = Annotated[int, Meta(ge=1, lt=1 << 31)]

Bytes = Annotated[int, Meta(ge=0, lt=1 << 62)]

ProcessId = Annotated[int, Meta(ge=0, lt=1 << 31)]
"""0: no process."""

StatusCode = Annotated[int, Meta(ge=0, le=255)]

SignalNumber = Annotated[int, Meta(ge=1, le=64)]

SignalNumberOrZero = Annotated[int, Meta(ge=0, le=64)]
"""0: no signal."""

Port = Annotated[int, Meta(ge=1, le=65535)]

# Integers of three kinds that must not be mixed up.

LocalRank = NewType("LocalRank", int)
"""A worker's index on its node, from 0."""

GlobalRank = NewType("GlobalRank", int)
"""A worker's index in the job, from 0."""

NodeRank = NewType("NodeRank", int)
"""A node's index in the job, from 0."""


def as_name(text: str) -> str:
    """Return ``text`` as a ``Name``: control characters become "?"."""
    return as_line(text)[:MAX_NAME_LENGTH]


def as_line(text: str) -> str:
    return re.sub(_NOT_IN_A_LINE, "?", text[:MAX_LINE_LENGTH])


def as_text(text: str) -> str:
    """Return the end of ``text`` as a ``Text``."""
    return re.sub(_NOT_IN_A_TEXT, "?", text[-MAX_TEXT_LENGTH:])


def as_run_id(text: str) -> str:
    """Return a scheduler's name of a job as a ``RunId``."""
    name = re.sub(_NOT_IN_A_RUN_ID, "_", text[:MAX_NAME_LENGTH])
    return name.replace(".", "_") if name in {".", ".."} else name


def as_seconds(seconds: float) -> float:
    return min(max(0.0, seconds), MAX_SECONDS)


def as_share(share: float) -> float:
    """Return ``share`` within its bounds, to three digits: clocks that are read apart may exceed them."""
    return round(min(max(0.0, share), 1.0), 3)


def as_load(load: float) -> float:
    """Return ``load`` within its bounds, to three digits."""
    return round(min(max(0.0, load), float(1 << 20)), 3)


def as_wall_clock(seconds: float) -> float:
    return min(max(0.0, seconds), _LATEST)


def named_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as messages name them: "rank 3", "ranks 3, 5-7"."""
    known = sorted(ranks)
    return f"rank{'s' if len(known) > 1 else ''} {', '.join(number_ranges(known))}"


def counted(number: int, name: str) -> str:
    """Return "1 GPU", "2 GPUs"; the plural of ``name`` must be regular."""
    return f"{number} {name}{'' if number == 1 else 's'}"
