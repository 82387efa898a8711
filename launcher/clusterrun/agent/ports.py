"""What the agent needs of the other rooms, in its own words; ``launch`` brings them together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from clusterrun.agent.state import State
from clusterrun.domain.events import Event
from clusterrun.domain.outcome import (
    ExternalCause,
    Fate,
    Outcome,
)
from clusterrun.domain.plan import NodePlan
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.stacks import StackGroup


class Clock(Protocol):
    """The time, as the ``time`` module tells it."""

    def monotonic(self) -> float:
        """Return seconds that never jump."""
        ...

    def time(self) -> float:
        """Return seconds since the epoch."""
        ...


class Attempts(Protocol):
    """What is to be run, attempt by attempt."""

    def plan(self, attempt: int) -> NodePlan:
        """Return the plan of the n-th attempt, which starts now."""
        ...

    def note(self, before: State, after: State, at: float) -> None:
        """Note what an event at ``at`` has made of the policy's state."""
        ...

    def out_of_memory(self) -> str:
        """Return signs, in words, that the OOM killer struck in this attempt; else ""."""
        ...

    def failed(self, outcome: Outcome) -> None:
        """Tell the user of an attempt that failed and is followed by another."""
        ...


class EventSource(Protocol):
    """A descriptor that wakes us, and what it then has to say."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        ...

    @property
    def wants_write(self) -> bool:
        """Whether to wait until it is writable, too, and ``flush`` then."""
        ...

    @property
    def lost(self) -> bool:
        """Whether it has nothing more to say, ever."""
        ...

    def flush(self) -> None:
        """Send what waits to be sent, without blocking."""
        ...

    def events(self, now: float) -> Iterable[Event]:
        """Return what has happened, dated ``now``, without blocking."""
        ...


class Peers(Protocol):
    """All nodes of the job, this one included, by way of the coordinator.

    What returns events has got the coordinator's answer at once; else a source has it later.
    """

    @property
    def sources(self) -> Sequence[EventSource]:
        """Where their news comes from."""
        ...

    def report_failure(self, fate: Fate, age: float) -> Iterable[Event]:
        """Report that a worker failed ``age`` seconds ago, and how, as far as is known."""
        ...

    def report_external_cause(self, external_cause: ExternalCause) -> Iterable[Event]:
        """Report what ends the job from outside its workers."""
        ...

    def report_end(
        self, fates: Sequence[Fate], now: float, external_cause: ExternalCause | None
    ) -> Iterable[Event]:
        """Report how all workers of this node ended, and what ended them from outside.

        ``now`` is in seconds since the epoch, as the fates' clocks are: only ages travel. The
        answer is ``VerdictReached`` or ``RestartOrdered``, once all nodes have reported.
        """
        ...

    def request_stacks(self) -> Iterable[Event]:
        """Have the stacks of all ranks collected, and shown on node 0."""
        ...

    def report_stacks(self, number: int, groups: Sequence[StackGroup]) -> Iterable[Event]:
        """Answer the n-th request for the stacks of this node's workers, by global rank."""
        ...

    def report_stillness(self, seconds: float) -> Iterable[Event]:
        """Report that no worker here has printed or exited for ``seconds``; 0: one has again."""
        ...

    def report_suspension(self, *, suspended: bool) -> Iterable[Event]:
        """Report that this agent is about to be stopped, or continues."""
        ...


class Workers(Protocol):
    """The workers of this node, and their output.

    What returns events has found out at once what is otherwise told by a source.
    """

    @property
    def sources(self) -> Sequence[EventSource]:
        """Where news of the workers comes from."""
        ...

    def start(self, plan: NodePlan) -> None:
        """Ask for all workers of an attempt."""
        ...

    def signal(
        self,
        local_ranks: Iterable[LocalRank],
        number: int,
        *,
        group: bool,
        spare_failing: bool = False,
    ) -> None:
        """Send a signal to workers or their groups, or only to those whose script has not failed."""
        ...

    def forward(self, number: int) -> None:
        """Send a signal to the workers that handle it."""
        ...

    def collect_stacks(self, number: int) -> None:
        """Have the workers tell their Python stacks: ``StacksCollected``."""
        ...

    def lack_stacks(self, local_ranks: Iterable[LocalRank]) -> None:
        """Don't wait for these."""
        ...

    def show_stacks(self, text: str) -> None:
        """Print them, and keep them with the logs."""
        ...

    def collect(self, local_rank: LocalRank, now: float) -> Iterable[Event]:
        """Have an ended worker's last output written and told: ``OutputEnded``."""
        ...

    def sweep(self, now: float) -> Iterable[Event]:
        """Kill all that workers left behind: ``CleanedUp``."""
        ...

    def reap(self) -> None:
        """Collect adopted children that have ended (SIGCHLD came)."""
        ...

    def suspend(self) -> None:
        """Stop the workers, then ourselves; returns when we are continued."""
        ...

    def resume(self) -> None:
        """Continue the workers."""
        ...

    def interrupted(self) -> None:
        """Leave the workers' KeyboardInterrupt tracebacks off the screen from now on."""
        ...

    def logs(self, plan: NodePlan) -> Mapping[LocalRank, str]:
        """Return the file of each worker's standard error; empty where none are kept."""
        ...

    def say(self, text: str) -> bool:
        """Print a notice among the workers' lines; return whether anybody does."""
        ...
