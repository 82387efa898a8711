"""The other workers: those that failed too, and those that the launcher stopped."""

import signal
from collections.abc import Iterable

from clusterrun.domain.cpuset import runs
from clusterrun.domain.outcome import Exited, Fate, Killed, NotStarted
from clusterrun.report.excerpt import exception_of
from clusterrun.report.worker_endings import in_words


def group_lines(fates: Iterable[Fate]) -> list[str]:
    """Return a line for each set of workers that ended alike."""
    groups: dict[str, list[Fate]] = {}
    for fate in fates:
        groups.setdefault(_role(fate), []).append(fate)
    return [f"  {ranks_of(group)}: {role}{_first_words(group)}" for role, group in groups.items()]


def _role(fate: Fate) -> str:
    words = "out of memory" if fate.out_of_memory else in_words(fate.ending)
    match fate.ending:
        case NotStarted() if fate.stopped_by_us:
            return "not started any more"
        case NotStarted():
            return f"not started either, {words}"
        case Killed(signal.SIGTERM) if fate.stopped_by_us:
            return "stopped by clusterrun"
        case Killed(signal.SIGKILL) if fate.stopped_by_us:
            return "stopped by clusterrun, needed SIGKILL"
        case _ if fate.stopped_by_us:
            return f"stopped by clusterrun, {words}"
        case Exited(0):
            return f"had ended before, {words}"
        case _:
            return f"failed too, {words}"


def ranks_of(fates: list[Fate]) -> str:
    """Return "rank 3" or "ranks 0, 2-7"."""
    return f"rank{'s' if len(fates) > 1 else ''} {', '.join(runs(fate.rank for fate in fates))}"


def _first_words(group: list[Fate]) -> str:
    # One that a signal ended may have printed a traceback long before, and lived on.
    said = [exception_of(fate) for fate in group if isinstance(fate.ending, Exited)]
    if not said or not said[0] or group[0].ending == Exited(0):
        return ""
    return f": {said[0]}" if len(set(said)) == 1 else f"; rank {group[0].rank}: {said[0]}"
