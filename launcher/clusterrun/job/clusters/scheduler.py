"""What a scheduler says of its job: the end, the way back into the queue. How answers are read."""

import re
import time
from collections.abc import Callable

from msgspec import Struct


class Scheduler(Struct, frozen=True):
    """The commands of a scheduler; the last word of each, the job's id, is left out."""

    title: str
    """Its name for people."""
    batch: tuple[str, str] = ("", "")
    """How its lines in a batch script begin, and what submits FILE."""
    has_id: bool = True
    """Its variable holds the id of the job."""
    requeue: tuple[str, ...] = ()
    end_command: tuple[str, ...] = ()
    read_end: Callable[[str, float], float | None] = lambda _answer, _now: None
    """Takes an answer and the time, and returns the end, both in seconds since the epoch; None: the
    job has no end."""
    end: str = ""
    """The variable with the time at which the job ends, in seconds since the epoch."""
    starts: str = ""
    """The variable with the number of earlier starts."""


def parse_time_left(answer: str, now: float) -> float | None:
    """Read the time that is left: seconds (flux-job(1)), or LSF's ``0:50 L`` (bjobs -WL): hours and minutes."""
    found = re.search(r"\d[\d:]*", answer)
    if found is None:
        return None
    if ":" not in found[0]:
        left = int(found[0])
        # flux prints UINT_MAX for a job without a limit.
        return None if left >= 1 << 31 else now + left
    # With LSB_HMS_TIME_FORMAT, LSF adds seconds.
    text = found[0] if found[0].count(":") == 2 else f"{found[0]}:00"
    return now + seconds_of(text)


def seconds_of(text: str) -> int:
    """Return the seconds of ``[[HOURS:]MINUTES:]SECONDS``."""
    seconds = 0
    for part in text.split(":"):
        seconds = 60 * seconds + int(part or 0)
    return seconds


def local_time(text: str, form: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, form))
    except (ValueError, OverflowError):
        return None
