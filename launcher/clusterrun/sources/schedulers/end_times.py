"""Reads what schedulers answer when they are asked for the end of a job.

All return seconds since the epoch; None if the answer has no end, as of a job without a limit.
"""

import re
import time

_UNLIMITED = 1 << 31
"""Seconds: ``flux job timeleft`` prints UINT_MAX for a job without a limit."""


def iso_time(answer: str, _now: float) -> float | None:
    """Read ``EndTime=2026-11-22T23:59:01``, in local time (scontrol(1)); or seconds since the epoch.

    The latter if SLURM_TIME_FORMAT is ``%s``, which is what the question is asked with.
    """
    found = re.search(r"\bEndTime=(\S+)", answer)
    if found is None:
        return None
    if found[1].isdigit():
        return float(found[1])
    return _local(found[1], "%Y-%m-%dT%H:%M:%S")


def asctime_and_walltime(answer: str, _now: float) -> float | None:
    """Read start and limit as ``qstat -f`` prints them (pbs_job_attributes(7B)).

    PBS Professional and OpenPBS have ``stime``, Torque has ``start_time``; a long line goes on after
    a tab.
    """
    text = answer.replace("\n\t", "")
    started = re.search(r"^\s*(?:stime|start_time) = (.+)$", text, re.MULTILINE)
    limit = re.search(r"^\s*Resource_List\.walltime = ([\d:]+)$", text, re.MULTILINE)
    if started is None or limit is None:
        return None
    since = _local(started[1].strip(), "%a %b %d %H:%M:%S %Y")
    return None if since is None else since + _seconds(limit[1])


def seconds_left(answer: str, now: float) -> float | None:
    """Read the time that is left: seconds (flux-job(1)), or LSF's ``0:50 L`` (bjobs -WL): hours and minutes."""
    found = re.search(r"\d[\d:]*", answer)
    if found is None:
        return None
    if ":" not in found[0]:
        left = int(found[0])
        return None if left >= _UNLIMITED else now + left
    # With LSB_HMS_TIME_FORMAT, LSF adds seconds.
    text = found[0] if found[0].count(":") == 2 else f"{found[0]}:00"
    return now + _seconds(text)


def _seconds(text: str) -> int:
    """Return the seconds of ``[[HOURS:]MINUTES:]SECONDS``."""
    seconds = 0
    for part in text.split(":"):
        seconds = 60 * seconds + int(part or 0)
    return seconds


def _local(text: str, form: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, form))
    except (ValueError, OverflowError):
        return None
