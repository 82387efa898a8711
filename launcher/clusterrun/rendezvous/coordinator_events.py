"""The coordinator's messages to a member of a running job, as events of its agent. Pure."""

from clusterrun.coordination.messages import (
    AllStacks,
    FromCoordinator,
    NextAttempt,
    SendStacks,
    Stop,
    Verdict,
)
from clusterrun.domain.events import (
    Event,
    RestartOrdered,
    StacksGathered,
    StacksRequested,
    StopOrdered,
    VerdictReached,
)


def event_of(message: FromCoordinator, at: float, *, on_node_zero: bool) -> Event | None:
    """Return what a message means to the agent; None if it is not the agent's concern."""
    match message:
        case Stop(attempt, why, external_cause):
            return StopOrdered(why, attempt, at, external_cause)
        case NextAttempt(_, reason):
            return RestartOrdered(reason, at)
        case Verdict(reason, no_restart):
            return VerdictReached(reason, no_restart, at)
        case SendStacks(_, number, idle_for, host):
            return StacksRequested(number, idle_for, host, on_node_zero, at)
        case AllStacks(groups, missing):
            return StacksGathered(groups, missing, at)
        case _:
            return None
