"""The lines on the other workers: those that failed too, and those that the launcher stopped."""

import signal
from collections.abc import Iterable

from clusterrun.domain.cpuset import runs
from clusterrun.domain.outcome import Exited, Fate, Killed, NotStarted
from clusterrun.report.excerpt import exception_of
from clusterrun.report.worker_endings import in_words


def group_lines(fates: Iterable[Fate]) -> list[str]:
    """Return one line for all workers that ended in the same way."""
    groups: dict[str, list[Fate]] = {}
    for fate in fates:
        groups.setdefault(_role(fate), []).append(fate)
    return [f"  {ranks_of(group)}: {role}{_exception(group)}" for role, group in groups.items()]


def _role(fate: Fate) -> str:
    words = "out of memory" if fate.out_of_memory else in_words(fate.ending)
    match fate.ending:
        case NotStarted() if fate.stopped_by_us:
            return "not started"
        case NotStarted():
            return f"not started, {words}"
        case Killed(signal.SIGTERM) if fate.stopped_by_us:
            return "stopped by clusterrun"
        case Killed(signal.SIGKILL) if fate.stopped_by_us:
            return "stopped by clusterrun, needed SIGKILL"
        case _ if fate.stopped_by_us:
            return f"stopped by clusterrun, {words}"
        case Exited(0):
            return f"ended earlier, {words}"
        case _:
            return f"failed too, {words}"


def ranks_of(fates: list[Fate]) -> str:
    """Return "rank 3" or "ranks 0, 2-7"."""
    return f"rank{'s' if len(fates) > 1 else ''} {', '.join(runs(fate.rank for fate in fates))}"


def _exception(group: list[Fate]) -> str:
    # A worker that a signal ended may have printed a traceback long before.
    exceptions = [exception_of(fate) for fate in group if isinstance(fate.ending, Exited)]
    if not exceptions or not exceptions[0] or group[0].ending == Exited(0):
        return ""
    first = exceptions[0]
    return f": {first}" if len(set(exceptions)) == 1 else f"; rank {group[0].rank}: {first}"
