"""What the coordinator knows."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

from clusterrun.coordination.agreement import Agreement, NotWanted
from clusterrun.coordination.lease import CoordinatorLease
from clusterrun.coordination.look_rounds import LookedAt, LookRounds
from clusterrun.coordination.members import OWN, Members
from clusterrun.coordination.terms import Terms
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.messages import Hello
from clusterrun.domain.outcome import (
    ExternalCause,
    Fate,
    Hung,
    NodeLost,
    NodesJoined,
    WorkerFailed,
)
from clusterrun.domain.stacks import GroupedStacks
from clusterrun.domain.succession import HostFaults


class JobPhase(Enum):
    """The life of a job, as the coordinator sees it; ``PHASES_AFTER`` lists the transitions."""

    GATHERING = "gathering"
    """Nodes join."""

    RUNNING = "running"
    """All nodes have their ranks; entered once for each attempt."""

    RESTARTING = "restarting"
    """All workers have stopped; the next attempt begins as soon as all its places are taken."""

    OVER = "over"
    """All nodes know how the job ended, or why it cannot begin."""


PHASES_AFTER: Mapping[JobPhase, frozenset[JobPhase]] = {
    JobPhase.GATHERING: frozenset({JobPhase.RUNNING, JobPhase.OVER}),
    JobPhase.RUNNING: frozenset({JobPhase.RESTARTING, JobPhase.OVER}),
    JobPhase.RESTARTING: frozenset({JobPhase.RUNNING, JobPhase.OVER}),
    JobPhase.OVER: frozenset(),
}


class Report(Struct, frozen=True):
    """How the workers of one node ended, and when each ended or failed, by the coordinator's clock."""

    fates: tuple[Fate, ...]
    ends: tuple[float, ...]
    external_cause: ExternalCause | None


ReasonToStop = Fate | ExternalCause | NodeLost | NodesJoined | Hung

ReasonToRestart = WorkerFailed | NodeLost | NodesJoined | Hung


class StackRound(Struct):
    """The members were asked for their workers' stacks."""

    number: int
    hang: Hung | None
    """Why: the job hangs; None: a user asked."""
    deadline: float
    awaited: set[int]
    """Members that have not answered."""
    groups: GroupedStacks = field(default_factory=GroupedStacks)


class Request(Struct, frozen=True):
    """A suspension is wanted ``by`` whom, since ``at``."""

    by: str
    at: float
    is_typed: bool = False
    """A person has typed the request, or typed it too."""


class Attempt(Struct):
    """What is known of the attempt that runs."""

    number: int
    reason_to_stop: ReasonToStop | None = None
    """The first thing that went wrong; None while nothing has."""
    external_causes: dict[ExternalCause, float] = field(default_factory=dict)
    """Those that members reported at once, and when the first report of each came."""
    announced: dict[int, tuple[Fate, float]] = field(default_factory=dict)
    """The first failure of each member that reported one at once, and when it was."""
    reports: dict[int, Report] = field(default_factory=dict)
    """Of the members whose workers have all ended."""
    idle: set[int] = field(default_factory=set)
    """Members none of whose workers has printed or exited for ``hang_timeout``; absent ones excluded."""
    hang_timeout: float = 0.0
    """As they say; 0.0 until the first one does."""
    idle_since: float = NEVER
    """When the last of them was last active."""
    hang_due: float = NEVER
    """When the job counts as hung, unless a worker is active before; NEVER: it has been told."""
    stack_round: StackRound | None = None
    agreement: Agreement = NotWanted()


class JobState(Struct):
    """All that the coordinator knows; only ``decide`` and what it calls change it.

    Members are numbered by their connections. Each event changes what it must and copies nothing:
    its cost does not grow with the number of members, unless it sends something to all of them.
    """

    terms: Terms
    has_token: bool
    """Callers have proved that they hold the job's token."""
    master_port: int
    """Where the workers of the first attempt meet."""
    began: float
    members: Members
    attempt: Attempt
    lease: CoordinatorLease
    next_notice: float
    phase: JobPhase = JobPhase.GATHERING
    callers: int = 0
    """Connections without a ``Hello`` yet."""
    early: dict[int, float] = field(default_factory=dict)
    """While gathering: when those members began to call that did so well before node 0 began."""
    complete_at: float = NEVER
    """Since when there are as many members as nodes."""
    enough_at: float = NEVER
    """Since when there are enough members, if fewer than all may begin."""
    warned: bool = False
    """A warning was printed of what should agree and does not."""
    refused: tuple[str, ...] = ()
    """The first few refused callers with the reasons; each is printed once."""
    ranks: Mapping[int, int] = field(default_factory=dict)
    """Once running: node rank by connection."""
    first_ranks: Mapping[int, int] = field(default_factory=dict)
    """Once running: the rank of the first worker, by connection."""
    hosts: str = ""
    """Once running: the members' hosts, for messages."""
    previous: ReasonToRestart | None = None
    """What ended the attempt before; None in the first one."""
    waiting: list[int] = field(default_factory=list)
    """Once running: members without a place, in the order of joining."""
    placed: set[int] = field(default_factory=set)
    """Members that have, or have had, a place: their agents know the attempts."""
    roster: frozenset[int] = frozenset()
    """All members at the beginning of the attempt."""
    roster_before: frozenset[int] = frozenset()
    """As ``roster``, of the attempt before, without ``departed``, if the coordinator has successors:
    some agents may not know yet that another attempt has begun."""
    unaware: set[int] = field(default_factory=set)
    """Members that have not confirmed yet that they know of this attempt, if it has successors."""
    takes_over: str = ""
    """The identity of the lost coordinator whose agents this one gathers; "": it gathers none."""
    address: str = ""
    """Where other nodes reach this one, if it has succeeded another coordinator; else ""."""
    departed: set[int] = field(default_factory=set)
    """Those of them whose agent is known to have ended: their hosts' kernels have reported it."""
    restarts: int = 0
    """Attempts that followed the failure of a worker."""
    grows_at: float = NEVER
    """When all workers restart to let in nodes that wait."""
    losses: int = 0
    """Nodes with a place that were lost and did not end the job."""
    faults: dict[str, HostFaults] = field(default_factory=dict)
    """By host, if nodes may be left out for them."""
    quick_restarts: int = 0
    """Of them, the last ones in a row whose worker had failed soon after its start."""
    pause_ends: float = NEVER
    """While restarting: when the next attempt may begin; NEVER: there is no pause."""
    settles_at: float = 0.0
    """A member was found silent: until then others are, too, if they were cut off together."""
    leases_end: float = 0.0
    """When no worker of a lost member is left: those whose end is not known may run until then."""
    rejoin_ends: float = NEVER
    """While restarting: how long empty places may stay so; NEVER: they do not."""
    lost_before_report: dict[int, NodeLost] = field(default_factory=dict)
    """Members lost while their workers ran, in that order: no report of them will come."""
    lost_after_report: dict[int, NodeLost] = field(default_factory=dict)
    """Members lost when their workers had ended: only another attempt would need them."""
    silent: set[int] = field(default_factory=set)
    """Lost members that were silent for too long: the verdict is sent to them, too."""
    lost_at: float = NEVER
    """When the first member of ``lost_before_report`` last sent something."""
    paused: set[int] = field(default_factory=set)
    """Members whose users have paused them."""
    can_suspend: bool = False
    """A rank has called ``suspend.requested``, in this attempt or an earlier one."""
    request: Request | None = None
    """The suspension that is wanted, in this attempt or else in the next one."""
    stack_rounds: int = 0
    """How often stacks were collected, in all attempts."""
    looks: LookRounds = field(default_factory=LookRounds)
    informed: int = 0
    """How many nodes know that the job cannot begin."""
    contradiction: tuple[str, str] = ("", "")
    """Why it cannot, and a hint."""

    @property
    def own_hello(self) -> Hello:
        """Node 0's own."""
        return self.members.hellos[OWN]

    @property
    def lease_ends(self) -> float:
        """When the workers of this coordinator's attempt have to end, unless more is confirmed."""
        rosters = (self.roster, self.roster_before) if self.unaware else (self.roster,)
        return self.lease.ends(rosters, self.departed | self.paused)

    def is_absent(self, connection: int) -> bool:
        return connection in self.lost_before_report or connection in self.lost_after_report

    @property
    def lost(self) -> dict[int, NodeLost]:
        """The lost members of this attempt."""
        return {**self.lost_before_report, **self.lost_after_report}

    def present(self) -> tuple[int, ...]:
        """Return all members that are not lost."""
        return tuple(each for each in self.ranks if not self.is_absent(each))

    def ranks_of(self, connection: int) -> range:
        """Return the ranks of a member's workers."""
        first = self.first_ranks[connection]
        return range(first, first + self.members.hellos[connection].workers)

    def looked_at(self) -> LookedAt:
        """Return the members as a look into the job names them."""
        hellos = self.members.hellos
        return LookedAt(
            ranks=self.ranks,
            hosts={each: hello.host for each, hello in hellos.items()},
            present=self.present(),
            lost=self.lost,
            paused=frozenset(self.paused),
            waiting=tuple(self.waiting),
        )

    def mark_absent(self, connection: int) -> None:
        """Expect no stacks from a member any more."""
        self.attempt.idle.discard(connection)
        if self.attempt.stack_round is not None:
            self.attempt.stack_round.awaited.discard(connection)
