"""Read what is asked of a scheduler: times, sizes, GPUs, arrays, dependencies."""

import re
import signal

from clusterrun.domain.submissions.submission import (
    ArrayRange,
    Dependency,
    DependencyKind,
    Gpus,
    JobArray,
    SignalBeforeEnd,
)
from clusterrun.errors import UsageError
from clusterrun.job.suggestions import did_you_mean
from clusterrun.job.values import whole_number

SCHEDULERS = {
    "slurm": "sbatch",
    "lsf": "bsub",
    "flux": "flux",
    "pbs": "qsub",
    "kubernetes": "kubectl",
}
"""Schedulers that jobs are submitted to, each with the command that submits one.

Slurm is looked for first: it comes with wrappers that are called bsub and qsub. Kubernetes is the
last: login nodes have kubectl for other purposes.
"""

UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
LONGEST_SHOWN = 60
"""Characters of a value that is wrong."""
LONGEST_SIGNAL = 65_535
"""Seconds before the end (sbatch(1), --signal)."""
LONGEST_TIME = 10 * 365 * 86_400
"""Seconds: no queue has a longer limit, and not every scheduler has room for one."""
LARGEST_ARRAY_NUMBER = 4_000_000
"""sbatch(1), MaxArraySize in slurm.conf(5)."""

_CLOCK = re.compile(r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]\d):([0-5]\d)")
_IN_UNITS = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")
_SIZE = re.compile(r"(\d{1,9})([KMGT])(?:i?B)?", re.IGNORECASE)
_GPUS = re.compile(r"(?:([A-Za-z][\w.-]*):)?(\d{1,4})")
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?")
_NAME = re.compile(r"[A-Za-z0-9_][\w.@+/=-]*")


def time_limit(text: str) -> int:
    """Read ``2:00:00``, ``1-12:00:00``, ``90m`` or ``1d12h``; seconds.

    A plain number or ``2:30`` means minutes or hours by the scheduler, and is refused.
    """
    seconds = 0
    if clock := _CLOCK.fullmatch(text):
        seconds = sum(
            int(part or 0) * size for part, size in zip(clock.groups(), UNITS.values(), strict=True)
        )
    elif found := _IN_UNITS.fullmatch(text):
        seconds = sum(
            int(part or 0) * size for part, size in zip(found.groups(), UNITS.values(), strict=True)
        )
    if not 0 < seconds <= LONGEST_TIME:
        raise UsageError(
            f"{_shortened(text)} is not a time limit",
            "give, for example, 2:00:00, 90m, 12h or 1-12:00:00",
        )
    return seconds


def _shortened(text: str) -> str:
    return repr(text if len(text) < LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}...")


def memory_size(text: str) -> int:
    """Read ``64G`` or ``64GiB``; MiB."""
    found = _SIZE.fullmatch(text)
    size = int(int(found[1]) * MIB[found[2].upper()]) if found else 0
    if not size:
        raise UsageError(
            f"{_shortened(text)} is not a size of memory", "give, for example, 64G or 500M"
        )
    return size


def gpus(text: str) -> Gpus:
    """Read ``8`` or ``h100:8``."""
    found = _GPUS.fullmatch(text)
    if not found:
        raise UsageError(
            f"{text!r} is not a number of GPUs", "give, for example, 8 or h100:8; 0 for none"
        )
    return Gpus(int(found[2]), found[1] or "")


def array(text: str) -> JobArray:
    """Read ``0-15``, ``1,3,5-9:2`` or ``0-15%4``: at most 4 at a time."""
    numbers, limited, most = text.partition("%")
    found = [_RANGE.fullmatch(part) for part in numbers.split(",")]
    ranges = tuple(
        ArrayRange(int(each[1]), int(each[2] or each[1]), int(each[3] or 1))
        for each in found
        if each
    )
    at_once = whole_number(most) if limited else None
    if None in found or (limited and not at_once) or not all(map(_is_possible, ranges)):
        raise UsageError(
            f"{text!r} is not an array of jobs",
            "give numbers and ranges of them, such as 0-15, 1,3,5 or 0-15%4 for 4 at a time",
        )
    return JobArray(ranges, at_once)


def _is_possible(numbers: ArrayRange) -> bool:
    return numbers.first <= numbers.last <= LARGEST_ARRAY_NUMBER and numbers.step > 0


def dependencies(text: str) -> tuple[Dependency, ...]:
    """Read ``1234``, which must end with 0, or ``afterany:1234:1235,afterok:99``."""
    return tuple(_dependency(part) for part in text.split(","))


def _dependency(text: str) -> Dependency:
    kinds = {kind.value: kind for kind in DependencyKind}
    first, *ids = text.split(":")
    if not ids:
        first, ids = DependencyKind.AFTER_OK.value, [first]
    if first not in kinds or not all(_NAME.fullmatch(each) for each in ids):
        raise UsageError(
            f"{text!r} is no condition on other jobs",
            (first not in kinds and did_you_mean(first, kinds))
            or f"give ids of jobs, after {', '.join(kinds)}: afterok:1234",
        )
    return Dependency(kinds[first], tuple(ids))


def signal_before_end(text: str) -> SignalBeforeEnd:
    """Read ``USR1@300``."""
    name, _, seconds = text.partition("@")
    short = name.strip().upper().removeprefix("SIG")
    time = whole_number(seconds)
    if f"SIG{short}" not in signal.Signals.__members__ or not time or time > LONGEST_SIGNAL:
        raise UsageError(
            f"{text!r} is not a signal with its time", "give, for example, USR1@300: 300 s before"
        )
    return SignalBeforeEnd(short, time)


def name(text: str) -> str:
    """Read a name that a scheduler gives: of a job, a partition, an account."""
    if not _NAME.fullmatch(text):
        raise UsageError(
            f"{text!r} is not a name", "give letters, digits and any of _ . @ + / = - between them"
        )
    return text


def constraint(text: str) -> str:
    """Read features of nodes as the scheduler combines them: ``a100|h100``, ``[rack1|rack2]``."""
    if not text or re.search(r"[\s\"'\\`$]", text):
        raise UsageError(
            f"{text!r} is not a constraint", "give features of nodes, such as a100 or a100|h100"
        )
    return text


def names(text: str) -> tuple[str, ...]:
    """Read names, separated by commas."""
    return tuple(name(part.strip()) for part in text.split(","))


def image(text: str) -> str:
    """Read the file or the name of a container's image."""
    if not text or re.search(r"[\s\"'\\]", text):
        raise UsageError(
            f"{text!r} is not an image",
            "give a file, such as train.sif, or a name, such as docker://REGISTRY/NAME:TAG",
        )
    return text


def line(text: str) -> str:
    """Read a text of one line."""
    if not text.strip() or len(text.splitlines()) > 1:
        raise UsageError(f"{text!r} is not one line", "give one line; repeat it for more")
    return text


def file_pattern(text: str) -> str:
    """Read the path of a file, in which a scheduler may replace parts."""
    if not text or re.search(r"[\s\"'\\]", text):
        raise UsageError(
            f"{text!r} is not the path of an output file",
            "give a path without blanks, quotes and backslashes",
        )
    return text


def mounts(text: str) -> tuple[str, ...]:
    """Read ``SOURCE:TARGET,...``."""
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        if not part.startswith("/") or re.search(r"[\s\"']", part):
            raise UsageError(
                f"{part!r} is not a folder to mount", "give, for example, /data or /data:/mnt/data"
            )
    return found


def scheduler(text: str) -> str:
    if text not in SCHEDULERS:
        raise UsageError(
            f"{text!r} is not a scheduler that clusterrun submits to",
            did_you_mean(text, SCHEDULERS) or f"give one of {', '.join(SCHEDULERS)}",
        )
    return text
