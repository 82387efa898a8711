"""What the agent needs of the other rooms, as protocols."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from clusterrun.domain.plan import NodePlan
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.world import World
from clusterrun.policy.actions import WorkersAction
from clusterrun.policy.events import Event, LookEvent
from clusterrun.policy.messages import AgentMessage
from clusterrun.policy.node import Attempt
from clusterrun.policy.outcome import Evidence, Outcome


class Attempts(Protocol):
    """The attempts of the job."""

    def plan(self, world: World) -> NodePlan:
        """Return the plan of the attempt in this world, which starts now."""

    def note(self, attempt: Attempt, at: float) -> None:
        """Note what has become of an attempt with an event at ``at``."""

    def evidence(self) -> Evidence:
        """Return what the node shows of the OOM killer and of broken hardware in this attempt."""

    def failed(self, outcome: Outcome) -> None:
        """Print how an attempt ended that is followed by another."""


class Looks(Protocol):
    """Answers the looks of users into the job: see ``clusterrun.policy.looks``."""

    def take(self, event: LookEvent) -> Iterable[Event]:
        """Take what belongs to a look."""

    def collect_stacks(self, now: float) -> Iterable[Event]:
        """Have the workers of this node print their Python stacks; ``StacksCollected`` follows."""


class Peers(Protocol):
    """All nodes of the job, this one included, by way of the coordinator."""

    def send(self, message: AgentMessage) -> Iterable[Event]:
        """Send a message to the coordinator; return what it answers at once.

        ``Done`` is answered once all nodes have sent theirs.
        """


class Workers(Protocol):
    """The workers of this node, and their output.

    A method that returns events knows at once what the loop has otherwise later.
    """

    def start(self, plan: NodePlan) -> None:
        """Start all workers of an attempt, once the fork server is prepared."""

    def start_held(self) -> None:
        """Start workers that wait for it: ``ForkServerPrepared`` has happened."""

    def perform(self, action: WorkersAction) -> None:
        """Do what the policy has decided."""

    def collect(self, local_rank: LocalRank, now: float) -> Iterable[Event]:
        """Have the last output of an exited worker written; ``OutputEnded`` follows."""

    def sweep(self, now: float) -> Iterable[Event]:
        """Kill what the workers left behind; ``CleanedUp`` is returned, or follows."""

    def reap(self) -> None:
        """Reap adopted children that have exited."""

    def pause(self) -> None:
        """Stop the workers, then this process; return when it is continued."""

    def logs(self, plan: NodePlan) -> Mapping[LocalRank, str]:
        """Return the file of each worker's standard error; empty where none are kept."""
