"""Which of several failures is the cause; the others are consequences, or stopped by the launcher."""

import re
import signal
from collections.abc import Sequence
from enum import IntEnum

from clusterrun.domain.outcome import Exited, Fate, Killed
from clusterrun.domain.tracebacks import (
    exception_after,
    last_traceback,
    plain_lines,
    without_ignored,
)

LAST_LINES = 12
"""The last lines of standard error in which a consequence is recognized."""

CONSEQUENCE = (
    r"connection (was )?(closed|reset|aborted) by (the )?(remote )?peer"
    r"|connection reset|connection refused|broken pipe|socket (has been )?closed"
    r"|remote process exited|ncclremoteerror|nccl communicator was aborted"
    r"|failed to recv, got 0 bytes|distnetworkerror|diststoreerror"
    r"|gloo.*(timed out|read error|connectfullmesh failed)"
)
"""What gloo, NCCL and torch's TCPStore print on a rank whose peer is gone (seen in torch 2.13)."""

OUR_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGKILL})


class Weight(IntEnum):
    """How much a failure looks like the cause; the lowest wins, then the earliest."""

    OUT_OF_MEMORY = 0
    """Killed by the kernel for memory."""

    BY_SIGNAL = 1
    """Ended by a signal that the launcher did not send."""

    FAILED = 2
    """Exited by itself, for a reason of its own."""

    FAILED_WHILE_STOPPED = 3
    """Was stopped by the launcher, but failed for a reason of its own."""

    CONSEQUENCE = 4
    """Failed because a peer is gone."""


def choose_cause(fates: Sequence[Fate]) -> Fate | None:
    """Return the fate that caused the others; None if all failed workers were stopped.

    ``fates`` are in the order in which the workers failed, or ended.
    """
    weights = [(_weight(fate), order) for order, fate in enumerate(fates)]
    suspects = [(weight, order) for weight, order in weights if weight is not None]
    return fates[min(suspects)[1]] if suspects else None


def may_be_cause(fate: Fate) -> bool:
    """Return whether ``choose_cause`` could return this fate."""
    return _weight(fate) is not None


def _weight(fate: Fate) -> Weight | None:
    """Return the weight of a failure; None for a success or a stopped worker."""
    if fate.ending.succeeded:
        return None
    if fate.stopped_by_us:
        return _weight_of_stopped(fate)
    match fate.ending:
        case Killed() if fate.out_of_memory:
            return Weight.OUT_OF_MEMORY
        case Killed(signal.SIGABRT) if is_consequence(fate):
            return Weight.CONSEQUENCE
        case Killed():
            return Weight.BY_SIGNAL
        case _:
            return Weight.CONSEQUENCE if is_consequence(fate) else Weight.FAILED


def _weight_of_stopped(fate: Fate) -> Weight | None:
    match fate.ending:
        case Killed(number) if number not in OUR_SIGNALS and not is_consequence(fate):
            return Weight.FAILED_WHILE_STOPPED
        case Exited() if _has_traceback(fate) and not is_consequence(fate):
            return Weight.FAILED_WHILE_STOPPED
        case _:
            return None


def is_consequence(fate: Fate) -> bool:
    """Return whether the last lines of a failed worker are about a peer that is gone."""
    lines = without_ignored(fate.tail.splitlines())
    return any(re.search(CONSEQUENCE, line, re.IGNORECASE) for line in lines[-LAST_LINES:])


def _has_traceback(fate: Fate) -> bool:
    return any("Traceback" in line for line in without_ignored(fate.tail.splitlines()))


def ends_in_exception(tail: str) -> bool:
    """Return whether a worker printed an uncaught exception last."""
    lines = [line for line in without_ignored(plain_lines(tail)) if line]
    header = last_traceback(lines)
    # A script that prints something after a traceback went on.
    return header is not None and exception_after(lines, header) == len(lines) - 1
