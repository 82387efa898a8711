"""The commands of a scheduler: when a job ends, and how it is requeued."""

import re
import time
from collections.abc import Callable

from msgspec import Struct

from clusterrun.job.clusters.found import Variables
from clusterrun.job.declarations import Setting


class Scheduler(Struct, frozen=True):
    """The commands of a scheduler; the job's id is appended to each."""

    title: str
    """The name in messages."""
    batch: tuple[str, str] | None = None
    """The prefix of its directives in a batch script, and the command that submits FILE."""
    has_id: bool = True
    """The variable that identifies its jobs holds the job's id."""
    index_variable: str = ""
    """The variable with the index in an array, if the jobs of an array share their id; 0 without one."""
    requeue: tuple[str, ...] = ()
    end_command: tuple[str, ...] = ()
    """Prints when the job ends."""
    parse_end: Callable[[str, float], float | None] = lambda _output, _now: None
    """Takes the output of ``end_command`` and the time; returns when the job ends, None if it has no
    limit. Times are in seconds since the epoch."""
    end_variable: str = ""
    """The variable with the time at which the job ends, in seconds since the epoch."""
    restarts_variable: str = ""
    """The variable with the number of earlier starts."""

    def id_of(self, job: Setting[str], variables: Variables) -> Setting[str]:
        """Return the id of a job, ``ID[INDEX]`` if it is an element of an array whose jobs share theirs."""
        index = variables.text(self.index_variable)
        if index is None or index.value == "0":
            return job
        return Setting(f"{job.value}[{index.value}]", f"{job.origin}, {index.origin}")


def parse_time_left(output: str, now: float) -> float | None:
    """Read the time that is left: in seconds (flux-job(1)), or in hours and minutes (LSF's ``0:50 L``)."""
    found = re.search(r"\d[\d:]*", output)
    if found is None:
        return None
    if ":" not in found[0]:
        left = int(found[0])
        # Flux prints UINT_MAX for a job without a limit.
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
    """Return seconds since the epoch; None if ``text`` is not a local time in this ``strptime`` format."""
    try:
        return time.mktime(time.strptime(text, form))
    except (ValueError, OverflowError):
        return None
