"""Which of several failures is the cause: the others are its echoes, or were stopped by us. Pure."""

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
"""How far above the end of its standard error a failure may say that it is an echo."""

ECHO = re.compile(
    r"connection (was )?(closed|reset|aborted) by (the )?(remote )?peer"
    r"|connection reset|connection refused|broken pipe|socket (has been )?closed"
    r"|remote process exited|ncclremoteerror|nccl communicator was aborted"
    r"|failed to recv, got 0 bytes|distnetworkerror|diststoreerror"
    r"|gloo.*(timed out|read error|connectfullmesh failed)",
    re.IGNORECASE,
)
"""What gloo, NCCL and torch's TCPStore say on a rank whose peer is gone (seen in torch 2.13)."""

OUR_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGKILL})


class Weight(IntEnum):
    """How much a failure looks like the cause; the lowest wins, then the earliest."""

    OUT_OF_MEMORY = 0
    """Killed by the kernel for memory."""

    STRUCK = 1
    """Ended by a signal that none of us sent."""

    FAILED = 2
    """Ended by itself, with a reason of its own."""

    SLOW_TO_DIE = 3
    """Was still ending when its peers had failed already, with a reason of its own."""

    ECHO = 4
    """Says that a peer is gone."""


def choose_cause(fates: Sequence[Fate]) -> Fate | None:
    """Return the fate that caused the others, or None if no worker failed before we stopped it.

    ``fates`` are in the order in which the workers failed, or ended.
    """
    suspects = [(weight, order) for order, fate in enumerate(fates) for weight in _weights(fate)]
    return fates[min(suspects)[1]] if suspects else None


def _weights(fate: Fate) -> Sequence[Weight]:
    """Return the weight of a failure; nothing for a success or a worker that we ended."""
    if fate.ending.succeeded:
        return ()
    if fate.stopped_by_us:
        return _weights_of_stopped(fate)
    match fate.ending:
        case Killed() if fate.out_of_memory:
            return (Weight.OUT_OF_MEMORY,)
        case Killed(signal.SIGABRT) if is_echo(fate):
            return (Weight.ECHO,)
        case Killed():
            return (Weight.STRUCK,)
        case _:
            return (Weight.ECHO if is_echo(fate) else Weight.FAILED,)


def _weights_of_stopped(fate: Fate) -> Sequence[Weight]:
    match fate.ending:
        case Killed(number) if number not in OUR_SIGNALS and not is_echo(fate):
            return (Weight.SLOW_TO_DIE,)
        case Exited() if _tells_why(fate) and not is_echo(fate):
            return (Weight.SLOW_TO_DIE,)
        case _:
            return ()


def is_echo(fate: Fate) -> bool:
    """Tell whether the last lines of a failed worker blame a peer that went away."""
    lines = without_ignored(fate.tail.splitlines())
    return any(ECHO.search(line) for line in lines[-LAST_LINES:])


def _tells_why(fate: Fate) -> bool:
    return any("Traceback" in line for line in without_ignored(fate.tail.splitlines()))


def ends_in_exception(tail: str) -> bool:
    """Tell whether an exception that nobody caught is the last that a worker has printed."""
    lines = [line for line in without_ignored(plain_lines(tail)) if line]
    header = last_traceback(lines)
    # What a script prints after a traceback shows that it went on.
    return header is not None and exception_after(lines, header) == len(lines) - 1
