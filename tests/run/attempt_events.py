"""Events of an attempt, each with the values that its tests leave open."""

import signal

from clusterrun.bounds import LocalRank
from clusterrun.policy.events import (
    CleanedUp,
    CoordinatorSent,
    Event,
    HelperLost,
    OutputEnded,
    WorkerEnded,
    WorkerStarted,
)
from clusterrun.policy.messages import Order, Verdict
from clusterrun.policy.outcome import Exited, Killed, Reason
from clusterrun.signals import SignalReceived

FORK_SERVER_LOST = HelperLost("fork server", "was killed by SIGKILL", signal.SIGKILL, at=10.0)


def started(local_rank: int) -> WorkerStarted:
    """The worker executes its program; its process id is 100 and its rank."""
    return WorkerStarted(LocalRank(local_rank), 100 + local_rank, warning="", at=1.0)


def exited(local_rank: int, code: int = 0) -> WorkerEnded:
    """The worker ends by itself."""
    return WorkerEnded(LocalRank(local_rank), Exited(code), at=10.0)


def killed(local_rank: int, number: int, *, by_lease: bool = False) -> WorkerEnded:
    """A signal ends the worker."""
    return WorkerEnded(LocalRank(local_rank), Killed(number), at=10.0, by_lease=by_lease)


def signal_received(number: int) -> SignalReceived:
    """The agent gets a signal."""
    return SignalReceived(number, at=10.0)


def cleaned_up(*survivors: str) -> Event:
    """Nothing is left but the survivors."""
    return CleanedUp(survivors, at=10.0)


def printed(local_rank: int, tail: str = "") -> OutputEnded:
    """All that the ended worker printed is written."""
    return OutputEnded(LocalRank(local_rank), tail, error_file="", at=10.0)


def sent(message: Order) -> CoordinatorSent:
    """The coordinator sends a message."""
    return CoordinatorSent(message, at=10.0)


def verdict(reason: Reason) -> CoordinatorSent:
    """All nodes are done."""
    return sent(Verdict(reason, ""))
