"""The values that another node may send: types that msgspec checks as it decodes a message.

What is not within these bounds is refused with the whole message; a sender makes its own values
fit by ``as_name``, ``as_line``, ``as_text`` and ``as_seconds``. Values of this node are not checked.
"""

import re
from typing import Annotated

from msgspec import Meta

LONGEST_NAME = 255
LONGEST_LINE = 1 << 14
LONGEST_TEXT = 1 << 16
MOST_SECONDS = 1e10
"""Three hundred years: a clock may be set while a job runs."""

_LATEST = 1e11
"""Seconds since the epoch that any time zone's calendar still has."""

_OBEYED = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
"""Characters that a terminal obeys instead of showing them, apart from tab and line feed."""

# Strings: compiled where they are first used, which is not on the way to the first worker.
_NOT_IN_A_LINE = rf"[\n\ud800-\udfff{_OBEYED}]"
_NOT_IN_A_TEXT = rf"[\ud800-\udfff{_OBEYED}]"
_NOT_IN_A_RUN_ID = rf"[/\t\n\ud800-\udfff{_OBEYED}]"

Name = Annotated[str, Meta(max_length=LONGEST_NAME, pattern=rf"\A[^\n{_OBEYED}]*\Z")]
"""A short line: of a host, an option, a step."""

Line = Annotated[str, Meta(max_length=LONGEST_LINE, pattern=rf"\A[^\n{_OBEYED}]*\Z")]

Text = Annotated[str, Meta(max_length=LONGEST_TEXT, pattern=rf"\A[^{_OBEYED}]*\Z")]
"""Lines."""

RunId = Annotated[
    str, Meta(max_length=LONGEST_NAME, pattern=rf"\A(?!\.{{1,2}}\Z)[^/\t\n{_OBEYED}]*\Z")
]
"""The name of a run, and of the folder of its logs: it leads nowhere else."""

Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]
"""A duration or an age."""

WallClock = Annotated[float, Meta(ge=0, le=_LATEST)]
"""Seconds since the epoch."""

COUNTED = Meta(ge=0, lt=1 << 31)

Count = Annotated[int, COUNTED]
"""A number of attempts, or a rank."""

Size = Annotated[int, Meta(ge=1, lt=1 << 31)]
"""A number of which there is at least one."""

ProcessId = Annotated[int, Meta(ge=0, lt=1 << 31)]
"""0 where there is no process."""

ExitStatus = Annotated[int, Meta(ge=0, le=255)]

SignalNumber = Annotated[int, Meta(ge=1, le=64)]

NoSignalOrNumber = Annotated[int, Meta(ge=0, le=64)]
"""0 where it was none."""

Port = Annotated[int, Meta(ge=1, le=65535)]


def as_name(text: str) -> str:
    """Return ``text`` as a ``Name``: what a terminal would obey becomes "?"."""
    return as_line(text)[:LONGEST_NAME]


def as_line(text: str) -> str:
    """Return ``text`` as a ``Line``."""
    return re.sub(_NOT_IN_A_LINE, "?", text[:LONGEST_LINE])


def as_text(text: str) -> str:
    """Return the end of ``text`` as a ``Text``."""
    return re.sub(_NOT_IN_A_TEXT, "?", text[-LONGEST_TEXT:])


def as_run_id(text: str) -> str:
    """Return what some scheduler calls a job as a ``RunId``."""
    name = re.sub(_NOT_IN_A_RUN_ID, "_", text[:LONGEST_NAME])
    return name.replace(".", "_") if name in {".", ".."} else name


def as_seconds(seconds: float) -> float:
    """Return ``seconds`` as ``Seconds``."""
    return min(max(0.0, seconds), MOST_SECONDS)


def as_wall_clock(seconds: float) -> float:
    """Return ``seconds`` as a ``WallClock``."""
    return min(max(0.0, seconds), _LATEST)
