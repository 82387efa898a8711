"""Performs what the job's policy decides, in the agent of node 0: for it in memory, for others by ``others``."""

from collections.abc import Callable, Iterable
from typing import Protocol, assert_never

from clusterrun.policy import job_events
from clusterrun.policy.job import Job
from clusterrun.policy.job_events import Action, CoordinatorEvent
from clusterrun.policy.members import OWN
from clusterrun.policy.messages import FromCoordinator


class Others(Protocol):
    """The members that are reached by connections."""

    def send(self, connections: Iterable[int], message: FromCoordinator) -> None:
        """Send a message to each of these that is still open."""

    def disconnect(self, connections: Iterable[int]) -> None:
        """Close these once all that was sent to them has left."""

    def stop_listening(self) -> None:
        """Accept no further connection, and hold the port for the workers."""


class Coordinator:
    """The coordinator of a job. The agent that runs it is a member without a connection."""

    def __init__(
        self, job: Job, next_port: Callable[[], int], notice: Callable[[str], object]
    ) -> None:
        """Take what decides, and how to act.

        Args:
            job: the policy.
            next_port: returns where the next attempt's workers meet.
            notice: prints a line for people.

        """
        self.job = job
        self.others: Others | None = None
        """None in a job on one node."""
        self._next_port = next_port
        self._notice = notice
        self._mail: list[FromCoordinator] = []

    def happens(self, event: CoordinatorEvent) -> None:
        for action in self.job.happens(event):
            self._perform(action, event.at)

    def take_mail(self) -> list[FromCoordinator]:
        """Return what was sent to this node's own agent since the last call."""
        mail, self._mail = self._mail, []
        return mail

    def _perform(self, action: Action, at: float) -> None:
        match action:
            case job_events.Send(connections, message):
                if OWN in connections:
                    self._mail.append(message)
                if self.others is not None:
                    self.others.send(connections, message)
            case job_events.PreparePort():
                self.happens(job_events.PortReady(self._next_port(), at))
            case job_events.PrintOnNodeZero(text):
                self._notice(text)
            case job_events.Disconnect(connections):
                if self.others is not None:
                    self.others.disconnect(connections)
            case job_events.StopListening():
                if self.others is not None:
                    self.others.stop_listening()
            case _:
                assert_never(action)
