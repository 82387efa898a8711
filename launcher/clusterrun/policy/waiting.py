"""What a node does that waits for its check, for the others to join, or for a place in a job. Pure."""

from signal import SIGTERM, SIGTSTP

from msgspec import Struct, field

from clusterrun.loop import NEVER
from clusterrun.planning.plan import World
from clusterrun.policy import events
from clusterrun.policy.actions import Pause, SendToCoordinator
from clusterrun.policy.events import Event, NodeChecked
from clusterrun.policy.messages import RequestSuspension, SuspensionPossible, Verdict
from clusterrun.policy.node import SECONDS_OF_DUPLICATES
from clusterrun.policy.outcome import HelperFailed, Interrupted
from clusterrun.signals import ENDING_SIGNALS, SignalReceived, signal_name

WaitResult = Interrupted | HelperFailed | Verdict
"""A signal, the end of a helper process, or that of the job in which this node waited for a place."""


class Waiting(Struct):
    """The wait of one node, which has no worker yet."""

    suspend_signal: int | None
    """``--suspend-signal``."""
    end: World | NodeChecked | WaitResult | None = None
    """This node's world, what its check has found, or what has ended the wait without one."""
    kept: list[Event] = field(default_factory=list)
    """What the first attempt is to know."""
    job_runs: bool = False
    """This node waits for a place in a job that runs."""
    can_suspend: bool = False
    """A rank of that job may be suspended: SIGTERM asks for it, the first time."""
    asked_at: float = NEVER
    """When SIGTERM has asked for it."""

    def handle(self, event: Event) -> SendToCoordinator | Pause | None:
        """Take an event; return what to do about it; there is no worker to pause."""
        match event:
            case events.WorldJoined(world):
                self.end = world
            case NodeChecked():
                self.end = event
            case events.WaitListed():
                self.job_runs = True
            case SignalReceived():
                return self._signal(event)
            case events.SuspensionRequested(by) if self.job_runs:
                return SendToCoordinator(RequestSuspension(by))
            case events.StopRequested():
                self.end = Interrupted(SIGTERM)
            case events.HelperLost(name, how, number):
                self.end = HelperFailed(name, how, number)
            case events.CoordinatorSent(Verdict() as verdict):
                self.end = verdict
            case events.CoordinatorLost(node):
                self.end = Verdict(node, "")
            case events.CoordinatorSent(SuspensionPossible()):
                if not self.can_suspend:
                    self.kept.append(event)
                self.can_suspend = True
            case _:
                # Of a helper process, which lives on.
                self.kept.append(event)
        return None

    def _signal(self, event: SignalReceived) -> SendToCoordinator | Pause | None:
        number, asks = event.number, event.number == self.suspend_signal
        if self.job_runs and self.can_suspend and number == SIGTERM:
            if self.asked_at == NEVER:
                self.asked_at, asks = event.at, True
            elif event.at - self.asked_at < SECONDS_OF_DUPLICATES:
                return None
        if self.job_runs and asks:
            return SendToCoordinator(RequestSuspension(signal_name(number)))
        if number in ENDING_SIGNALS:
            self.end = Interrupted(number)
        elif number == SIGTSTP:
            return Pause()
        elif asks:
            # There is no worker yet to forward others to.
            self.kept.append(event)
        return None
