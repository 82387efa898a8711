"""Sentences about nodes with a choice in them, and how many others may have printed.

One-line texts stand where they are sent.
"""

import signal
from collections.abc import Iterable, Sequence
from typing import assert_never

from clusterrun.bounds import as_line
from clusterrun.errors import LauncherError, exit_code_of_signal
from clusterrun.loop import NEVER
from clusterrun.policy.cause import ReasonToStop
from clusterrun.policy.events import LeftoverProcess
from clusterrun.policy.hangs import hang_headline
from clusterrun.policy.messages import ARGUMENTS, Hello
from clusterrun.policy.outcome import (
    EndedEarly,
    Exited,
    ExitStatus,
    HelperFailed,
    Hung,
    Interrupted,
    Killed,
    NodeLost,
    NotReady,
    NotStarted,
    NotSuspended,
    OutputGone,
    Suspended,
    WorkerResult,
)
from clusterrun.signals import signal_name

MAX_NAMES = 8
"""A longer list is cut."""

MAX_LEFT_NAMED = 5
"""Of the processes that workers have left running."""

CONTEXT = 20
"""Characters of two long values that are shown before their first difference."""

MAX_AT_ONCE = 64
"""Lines. All that a member of ours causes in a job of hours is less."""

SECONDS_OF_A_LINE = 5.0
"""After so long, one more."""

MAX_KEPT = 1 << 12
"""With more causes, those are forgotten whose lines are all allowed again."""


class LineLimit:
    """Counts the lines of each cause, such as an address."""

    def __init__(self) -> None:
        self._spent_until: dict[str, float] = {}
        """When all lines of a cause will be allowed again."""

    def allows(self, cause: str, at: float) -> bool:
        """Take note that a line is to be printed; return whether it may be."""
        spent = max(at, self._spent_until.get(cause, -NEVER)) + SECONDS_OF_A_LINE
        if spent - at > MAX_AT_ONCE * SECONDS_OF_A_LINE:
            return False
        if len(self._spent_until) >= MAX_KEPT:
            self._spent_until = {
                each: until for each, until in self._spent_until.items() if until > at
            }
        self._spent_until[cause] = spent
        return True

    def is_spent(self, cause: str, at: float) -> bool:
        """Return whether the next line may not be printed."""
        rest = self._spent_until.get(cause, -NEVER) - at
        return rest > (MAX_AT_ONCE - 1) * SECONDS_OF_A_LINE


def process(hello: Hello) -> str:
    """Return "hostA (pid 12)"."""
    return f"{hello.host} (pid {hello.pid})"


def lost(node: NodeLost) -> str:
    """Return "node 1 (n1) is gone"."""
    return as_line(f"{node} ({node.host}) {node.how}")


def shortened(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def listed(names: Iterable[str]) -> str:
    """Return "a, b, c", or "a, b, ... and 12 more"; equal ones once."""
    each = list(dict.fromkeys(names))
    if len(each) <= MAX_NAMES:
        return ", ".join(each)
    return f"{', '.join(each[: MAX_NAMES - 1])} and {len(each) - MAX_NAMES + 1} more"


def left(processes: Sequence[LeftoverProcess]) -> str:
    """Return "sh (pid 12, of rank 0), python (pid 13) and 2 more"."""
    named = [
        f"{each.name} (pid {each.pid}{'' if each.rank is None else f', of rank {each.rank}'})"
        for each in processes[:MAX_LEFT_NAMED]
    ]
    more = len(processes) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def describe_wait_status(exit_status: ExitStatus) -> str:
    """Return how a worker of a service ended, in a few words."""
    match exit_status:
        case Exited(code):
            return f"ended with exit code {code}"
        case Killed(number):
            return f"was killed by {signal_name(number)}"
        case NotStarted(step, error):
            return f"could not be started: {step}: {error}"
        case EndedEarly():
            return "ended with exit code 0"
        case NotReady(seconds, why):
            return f"was not ready within {seconds:g} s: {why}"
        case _:
            assert_never(exit_status)


def two_values(name: str, one: Hello, other: Hello) -> str:
    """Return "nnodes is 2 on hostA, 3 on hostB"."""
    first, second = _two_values(one.must.get(name), other.must.get(name))
    return f"{name} is {first} on {_place(one, other)}, {second} on {_place(other, one)}"


def disagreement(name: str, one: Hello, other: Hello) -> str:
    """Return the warning that two nodes do not run quite the same."""
    here, there = _place(one, other), _place(other, one)
    if name == ARGUMENTS:
        return f"not the same {name} on all nodes: {here} and {there} differ"
    first, second = _two_values(one.should.get(name), other.should.get(name))
    return f"not the same {name} on all nodes: {first} on {here}, {second} on {there}"


def _place(one: Hello, other: Hello) -> str:
    return process(one) if one.host == other.host else one.host


def _two_values(one: str | None, other: str | None) -> tuple[str, str]:
    """Return two values, long ones from shortly before their first difference."""
    if one is None or other is None:
        return shortened(one or "not set"), shortened(other or "not set")
    pairs = enumerate(zip(one, other, strict=False))
    differ_at = next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, differ_at - CONTEXT)
    dots = "..." if start else ""
    return dots + shortened(one[start:]), dots + shortened(other[start:])


def why_all_stop(cause: ReasonToStop, host: str) -> str:
    """Return why the workers of all nodes are stopped; ``host`` has reported it."""
    match cause:
        case WorkerResult():
            return f"{cause.worker} on {host} failed"
        case NodeLost():
            return lost(cause)
        case Hung(seconds, sign=sign):
            return hang_headline(seconds, sign)
        case Interrupted(number):
            return f"{host} got {signal_name(number)}"
        case OutputGone():
            return f"the output of {host} is closed"
        case HelperFailed(name, how, _):
            return f"the {shortened(name)} {shortened(how)}"
        case Suspended(by, step):
            return f"suspended at step {step} ({shortened(by)})"
        case NotSuspended(by, _, grace, is_given_up=given_up):
            when = "before the second request" if given_up else f"within {grace:g} s"
            return f"not all ranks saved {when} ({shortened(by)})"
        case _:
            assert_never(cause)


def ended_while_waiting(host: str, cause: Interrupted | HelperFailed | LauncherError) -> str:
    """Return the error of members whose node 0 ended before the job began."""
    if isinstance(cause, LauncherError):
        return f"{host} (node 0) can't begin: {cause.message}"
    if isinstance(cause, Interrupted):
        return f"{host} (node 0) got {signal_name(cause.number)} while it waited for other nodes"
    return f"the {cause.name} of {host} (node 0) {cause.how} while it waited for other nodes"


def no_restart(number: int) -> str:
    """Return what a signal means while the workers are being stopped for a restart."""
    what = "interrupted" if number == signal.SIGINT else signal_name(number)
    return f"{what}: no restart; exit code {exit_code_of_signal(number)}"
