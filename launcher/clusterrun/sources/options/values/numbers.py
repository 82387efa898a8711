"""Read numbers: counts, ranks, ports, times, exit codes, CPUs."""

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.job import WorkerCount
from clusterrun.domain.ranks import RankSet
from clusterrun.errors import UsageError
from clusterrun.sources.options.suggestions import did_you_mean

LONGEST_WAIT = 604_800.0
"""Seconds in a week: no grace period is longer, and the kernel's timers take no infinity."""


SHORTEST_SILENCE = 0.5
"""Seconds: the kernel may take that long to send a lost packet again."""


def node_count(text: str) -> int:
    """Read ``N``, or MAX of ``MIN:MAX``."""
    return _node_range(text)[1]


def fewest_nodes(text: str) -> int:
    """Read ``N``, or MIN of ``MIN:MAX``."""
    return _node_range(text)[0]


def _node_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    fewest, most = whole_number(low), whole_number(high or low)
    if not fewest or not most or fewest > most:
        raise UsageError(f"{text!r} is not a number of nodes", "give a number from 1, or MIN:MAX")
    return fewest, most


def node_rank(text: str) -> int:
    return _from_zero(text, "the rank of a node")


def rank(text: str) -> int:
    """Read the rank of a worker in the whole job."""
    return _from_zero(text, "the rank of a worker")


def worker_count(text: str) -> int | WorkerCount:
    """Read the number of workers per node: a number from 1, ``auto``, ``gpu`` or ``cpu``.

    torchrun's ``xpu`` means Intel's GPUs, which are counted as any other.
    """
    words = {"auto": WorkerCount.AUTO, "gpu": WorkerCount.GPU, "cpu": WorkerCount.CPU}
    count = (words | {"xpu": WorkerCount.GPU}).get(text) or whole_number(text)
    if not count:
        hint = "give a number from 1, or auto, gpu or cpu"
        raise UsageError(f"{text!r} is not a number of workers", did_you_mean(text, words) or hint)
    return count


def restart_count(text: str) -> int:
    return _from_zero(text, "a number of restarts")


def node_multiple(text: str) -> int:
    number = whole_number(text)
    if not number:
        raise UsageError(f"{text!r} is not a number of nodes", "give a number from 1")
    return number


def spare_count(text: str) -> int:
    return _from_zero(text, "a number of nodes")


def failure_count(text: str) -> int:
    return _from_zero(text, "a number of failures")


def gpus_per_worker(text: str) -> int:
    return _from_zero(
        text, "a number of GPUs", "give a number; 0 if workers share GPUs, or use none"
    )


def _from_zero(text: str, meaning: str, hint: str = "give a number from 0") -> int:
    number = whole_number(text)
    if number is None:
        raise UsageError(f"{text!r} is not {meaning}", hint)
    return number


def port(text: str) -> int | None:
    """Read a TCP port; None for 0, which lets the launcher choose one, as with torchrun."""
    number = whole_number(text)
    if number is None or number > 65535:
        raise UsageError(
            f"{text!r} is not a port", "give a number from 1 to 65535, or 0 to have one chosen"
        )
    return number or None


def base_port(text: str) -> int:
    """Read the first of several ports."""
    number = whole_number(text)
    if not number or number >= 65_000:
        raise UsageError(f"{text!r} is not a port", "give a number from 1 to 64999")
    return number


def seconds(text: str) -> float:
    """Read a number of seconds, from 0 to a week."""
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= LONGEST_WAIT:
        raise UsageError(
            f"{text!r} is not a time in seconds", "give a number of seconds, such as 25 or 0.5"
        )
    return number


def waiting_time(text: str) -> float:
    """Read a number of seconds, from half a second to a week."""
    number = seconds(text)
    if number < SHORTEST_SILENCE:
        raise UsageError(
            f"{text!r} is too short to tell a lost node from a busy one",
            f"give at least {SHORTEST_SILENCE:g}",
        )
    return number


def exit_codes(text: str) -> tuple[int, ...]:
    """Read exit codes and ranges of them, ``3,5-7``; in order, each once."""
    hint = "give numbers from 1 to 255 and ranges of them, such as 3,5-7"
    codes: set[int] = set()
    for part in text.split(","):
        first, last = _range(part)
        if not first or not last or not first <= last <= 255:
            raise UsageError(f"{part!r} is not the exit code of a failure", hint)
        codes.update(range(first, last + 1))
    return tuple(sorted(codes))


def failure_code(text: str) -> int:
    """Read one exit code of a failure."""
    number = whole_number(text)
    if not number or number > 255:
        raise UsageError(
            f"{text!r} is not the exit code of a failure", "give a number from 1 to 255"
        )
    return number


def ranks(text: str) -> RankSet:
    """Read ranks and ranges of them, ``0,8-15``."""
    hint = "give numbers from 0 and ranges of them, such as 0,8-15"
    found = []
    for part in text.split(","):
        first, last = _range(part)
        if first is None or last is None or first > last:
            raise UsageError(f"{part!r} is not a rank", hint)
        found.append((first, last))
    return RankSet(tuple(found))


def _range(text: str) -> tuple[int | None, int | None]:
    first, dash, last = text.partition("-")
    return whole_number(first), whole_number(last if dash else first)


def cpu_list(text: str) -> CpuSet:
    """Read CPUs as the kernel and taskset write them: ``0-15,64``; at least one."""
    try:
        cpus = CpuSet.parse(text)
    except ValueError:
        cpus = CpuSet()
    if not cpus:
        raise UsageError(
            f"{text!r} is not a list of CPUs", "give numbers and ranges of them, such as 0-15,64-79"
        )
    return cpus


def whole_number(text: str) -> int | None:
    """Return the number that ``text`` writes in decimal digits; None for any other text."""
    digits = text.strip()
    # No machine needs longer numbers, and int() refuses thousands of digits.
    plain = digits.isascii() and digits.isdigit() and len(digits) < 10
    return int(digits) if plain else None
