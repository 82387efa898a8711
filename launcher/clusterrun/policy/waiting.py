"""What a node does while it waits for its check, for the other nodes, or for a rank in a running job. Pure."""

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
"""What ends the wait without a world: a signal, a lost helper process, or the end of the job."""


class WaitingNode(Struct):
    """A node that waits and has no worker yet."""

    suspend_signal: int | None
    """``--suspend-signal``."""
    end: World | NodeChecked | WaitResult | None = None
    """What has ended the wait; None: it waits."""
    kept: list[Event] = field(default_factory=list)
    """Events that the first attempt is to handle."""
    job_runs: bool = False
    """The job runs without this node, which waits for a rank."""
    can_suspend: bool = False
    """A rank of that job has called ``suspend.requested``: the first SIGTERM requests a suspension."""
    requested_at: float = NEVER
    """When SIGTERM requested it."""

    def handle(self, event: Event) -> SendToCoordinator | Pause | None:
        """Handle an event; return the action that follows. ``Pause`` has no worker to stop."""
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
                # It is about a helper process, which the first attempt will use.
                self.kept.append(event)
        return None

    def _signal(self, event: SignalReceived) -> SendToCoordinator | Pause | None:
        number, requests = event.number, event.number == self.suspend_signal
        if self.job_runs and self.can_suspend and number == SIGTERM:
            if self.requested_at == NEVER:
                self.requested_at, requests = event.at, True
            elif event.at - self.requested_at < SECONDS_OF_DUPLICATES:
                return None
        if self.job_runs and requests:
            return SendToCoordinator(RequestSuspension(signal_name(number)))
        if number in ENDING_SIGNALS:
            self.end = Interrupted(number)
        elif number == SIGTSTP:
            return Pause()
        elif requests:
            # There is no worker yet to forward others to.
            self.kept.append(event)
        return None
