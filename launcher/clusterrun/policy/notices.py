"""Texts of notices that several modules use or that depend on a case, and a limit on their number."""

import signal
from collections.abc import Iterable, Sequence
from typing import assert_never

from clusterrun.bounds import as_line
from clusterrun.errors import LauncherError
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
"""Names in a list; a longer list is cut."""

MAX_LEFTOVERS_NAMED = 5

CONTEXT = 20
"""Characters of two long values that are shown before their first difference."""

MAX_BURST = 64
"""Lines of one cause at once: more than an agent of the job causes in hours."""

SECONDS_PER_LINE = 5.0
"""The interval at which more lines of a cause may be printed."""

MAX_CAUSES = 1 << 12
"""Above this number, causes whose whole burst is allowed again are forgotten."""


class LineLimit:
    """A rate limit (token bucket) on the lines of each cause, such as an address."""

    def __init__(self) -> None:
        self._spent_until: dict[str, float] = {}
        """When the whole burst of a cause will be allowed again."""

    def allows(self, cause: str, at: float) -> bool:
        """Return whether another line may be printed, and count it if so."""
        if self.is_spent(cause, at):
            return False
        if len(self._spent_until) >= MAX_CAUSES:
            self._spent_until = {
                each: until for each, until in self._spent_until.items() if until > at
            }
        self._spent_until[cause] = max(at, self._spent_until.get(cause, -NEVER)) + SECONDS_PER_LINE
        return True

    def is_spent(self, cause: str, at: float) -> bool:
        """Return whether ``allows`` would return False."""
        rest = self._spent_until.get(cause, -NEVER) - at
        # Half an interval early: a sum of intervals is rounded.
        return rest > (MAX_BURST - 0.5) * SECONDS_PER_LINE


def process(hello: Hello) -> str:
    """Return "hostA (pid 12)"."""
    return f"{hello.host} (pid {hello.pid})"


def lost(node: NodeLost) -> str:
    """Return "node 1 (n1) is gone"."""
    return as_line(f"{node} ({node.host}) {node.how}")


def shortened(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def listed(names: Iterable[str]) -> str:
    """Return "a, b, c" or "a, b, ... and 12 more", without repeated names."""
    each = list(dict.fromkeys(names))
    if len(each) <= MAX_NAMES:
        return ", ".join(each)
    return f"{', '.join(each[: MAX_NAMES - 1])} and {len(each) - MAX_NAMES + 1} more"


def leftovers(processes: Sequence[LeftoverProcess]) -> str:
    """Return "sh (pid 12, of rank 0), python (pid 13) and 2 more"."""
    named = [
        f"{each.name} (pid {each.pid}{'' if each.rank is None else f', of rank {each.rank}'})"
        for each in processes[:MAX_LEFTOVERS_NAMED]
    ]
    more = len(processes) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def describe_exit(exit_status: ExitStatus) -> str:
    """Return how a worker of a service ended: "ended with exit code 1"."""
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
    return f"{name} is {first} on {_node(one, other)}, {second} on {_node(other, one)}"


def disagreement(name: str, one: Hello, other: Hello) -> str:
    """Return a warning: two nodes have different values that should be equal."""
    here, there = _node(one, other), _node(other, one)
    if name == ARGUMENTS:
        return f"not the same {name} on all nodes: {here} and {there} differ"
    first, second = _two_values(one.should.get(name), other.should.get(name))
    return f"not the same {name} on all nodes: {first} on {here}, {second} on {there}"


def _node(one: Hello, other: Hello) -> str:
    """Return the host of ``one``, with its pid if ``other`` has the same host."""
    return process(one) if one.host == other.host else one.host


def _two_values(one: str | None, other: str | None) -> tuple[str, str]:
    """Return two values; long ones begin shortly before their first difference."""
    if one is None or other is None:
        return shortened(one or "not set"), shortened(other or "not set")
    pairs = enumerate(zip(one, other, strict=False))
    differ_at = next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, differ_at - CONTEXT)
    dots = "..." if start else ""
    return dots + shortened(one[start:]), dots + shortened(other[start:])


def why_all_stop(cause: ReasonToStop, host: str) -> str:
    """Return why the workers of all nodes are stopped, as ``host`` reported it."""
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
        case NotSuspended(by, _, grace, was_cut_short=cut_short):
            when = "before the second request" if cut_short else f"within {grace:g} s"
            return f"not all ranks saved {when} ({shortened(by)})"
        case _:
            assert_never(cause)


def ended_while_waiting(
    host: str, unit: str, cause: Interrupted | HelperFailed | LauncherError
) -> str:
    """Return the error on the other nodes if node 0 ended before the job began.

    ``unit`` is "node" or "task".
    """
    if isinstance(cause, LauncherError):
        return f"{host} ({unit} 0) can't begin: {cause.message}"
    if isinstance(cause, Interrupted):
        return (
            f"{host} ({unit} 0) got {signal_name(cause.number)} while it waited for other {unit}s"
        )
    return f"the {cause.name} of {host} ({unit} 0) {cause.how} while it waited for other {unit}s"


def no_restart(number: int) -> str:
    """Return the notice of a signal that arrives while workers are stopped for a restart."""
    what = "interrupted" if number == signal.SIGINT else signal_name(number)
    return f"{what}: no restart"
