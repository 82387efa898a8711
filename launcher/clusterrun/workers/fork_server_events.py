"""Turns the fork server's messages into events; see ``fork_server`` for the messages."""

from clusterrun.domain.events import (
    CleanedUp,
    Event,
    SignalNotHandled,
    SignalReceived,
    WorkerExited,
    WorkerKilled,
    WorkerNotStarted,
    WorkerStarted,
    WorkerStopped,
)
from clusterrun.domain.ranks import LocalRank
from clusterrun.errors import InternalError, MachineError
from clusterrun.workers.channel import Message


def event_of(message: Message, now: float) -> Event:
    """Return the event that ``message`` reports.

    Raises:
        MachineError: the server can't make a PID namespace.
        InternalError: the message is unknown.

    """
    match message:
        case {"kind": "started", "local_rank": rank, "pid": pid, "remark": remark}:
            return WorkerStarted(LocalRank(rank), pid, remark, now)
        case {"kind": "not_started", "local_rank": rank, "step": step, "error": error}:
            return WorkerNotStarted(LocalRank(rank), step, error, now)
        case {"kind": "exited", "local_rank": rank, "code": code, "failure": failure}:
            return WorkerExited(LocalRank(rank), code, now, _age(failure, now) if code else 0.0)
        case {"kind": "exited", "local_rank": rank, "signal": number, "failure": failure}:
            return WorkerKilled(LocalRank(rank), number, now, _age(failure, now), failure[1])
        case {"kind": "stopped", "local_rank": rank, "number": number}:
            return WorkerStopped(LocalRank(rank), number, now)
        case {"kind": "signalled", "number": number, "at": at}:
            return SignalReceived(number, at, to_fork_server=True)
        case {"kind": "not_handled", "number": number, "local_ranks": ranks}:
            return SignalNotHandled(number, tuple(LocalRank(rank) for rank in ranks), now)
        case {"kind": "cleaned_up", "survivors": survivors}:
            return CleanedUp(tuple(survivors), now)
        case {"kind": "not_contained", "error": error}:
            raise MachineError(
                f"--contain can't make a PID namespace on this machine: {error}",
                "run as root, allow user namespaces, or leave --contain out",
            )
        case _:
            raise InternalError(f"the fork server sent {message}")


def _age(failure: tuple[float, int], now: float) -> float:
    """Return the seconds since a script failed; ``failure``: time and exit code, or 0.0 and 0."""
    failed_at, code = failure
    return max(0.0, now - failed_at) if code else 0.0
