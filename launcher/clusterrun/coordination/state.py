"""What the coordinator knows."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

from clusterrun.coordination.heartbeat import HeartbeatRhythm
from clusterrun.coordination.members import Members
from clusterrun.coordination.messages import Hello
from clusterrun.coordination.restart_policy import RestartRules
from clusterrun.domain.job import LastCall
from clusterrun.domain.outcome import ExternalCause, Fate, NodeLost, WorkerFailed
from clusterrun.domain.stacks import GroupedStacks

NEVER = float("inf")


class Phase(Enum):
    """The life of a job, as the coordinator sees it; ``PHASES_AFTER`` lists the transitions."""

    GATHERING = "gathering"
    """Nodes join."""

    RUNNING = "running"
    """All nodes have their ranks; entered once for each attempt."""

    RESTARTING = "restarting"
    """All workers have stopped; the next attempt begins as soon as its port is known."""

    OVER = "over"
    """All nodes know how the job ended, or why it cannot begin."""


PHASES_AFTER: Mapping[Phase, frozenset[Phase]] = {
    Phase.GATHERING: frozenset({Phase.RUNNING, Phase.OVER}),
    Phase.RUNNING: frozenset({Phase.RESTARTING, Phase.OVER}),
    Phase.RESTARTING: frozenset({Phase.RUNNING}),
    Phase.OVER: frozenset(),
}


class Terms(Struct, frozen=True):
    """What node 0 knows of the job before other nodes join; newcomers are compared with it."""

    hello: Hello
    nodes: int
    """How many nodes are expected; once the job runs, how many there are."""
    run_id: str
    place: str
    """Where the nodes meet, for messages: ``n0:29500``."""
    master_addr: str
    master_port: int
    timeout: float
    """Seconds in which all nodes must join."""
    hosts: tuple[str, ...]
    """Host names by node rank; () if they are not known."""
    strict: bool
    """What should agree must agree."""
    rhythm: HeartbeatRhythm
    restarts: RestartRules
    keeps_joining_port: bool
    """Members meet at a port of their own, which stays open; otherwise workers get the port."""
    has_token: bool = False
    """Callers have proved that they hold the job's token."""
    last_call: LastCall | None = None
    """When the job begins without some of its nodes; None: never."""
    exports: str = ""
    """``RendezvousSettings.exports``."""


class Report(Struct, frozen=True):
    """How the workers of one node ended, and when each ended or failed, by the coordinator's clock."""

    fates: tuple[Fate, ...]
    ends: tuple[float, ...]
    external_cause: ExternalCause | None


class StackRound(Struct):
    """The members were asked for their workers' stacks."""

    number: int
    deadline: float
    awaited: set[int]
    """Members that have not answered."""
    groups: GroupedStacks = field(default_factory=GroupedStacks)


class Attempt(Struct):
    """What is known of the attempt that runs."""

    number: int
    reason_to_stop: Fate | ExternalCause | NodeLost | None = None
    """The first thing that went wrong; None while nothing has."""
    external_causes: dict[ExternalCause, float] = field(default_factory=dict)
    """Those that members reported at once, and when the first report of each came."""
    announced: dict[int, tuple[Fate, float]] = field(default_factory=dict)
    """The first failure of each member that reported one at once, and when it was."""
    reports: dict[int, Report] = field(default_factory=dict)
    """Of the members whose workers have all ended."""
    idle: set[int] = field(default_factory=set)
    """Members none of whose workers has printed or exited for long; absent ones excluded."""
    stack_round: StackRound | None = None


class State(Struct):
    """All that the coordinator knows; only ``decide`` and what it calls change it.

    Members are numbered by their connections. Each event changes what it must and copies nothing:
    its cost does not grow with the number of members, unless it sends something to all of them.
    """

    terms: Terms
    began: float
    members: Members
    attempt: Attempt
    next_notice: float
    phase: Phase = Phase.GATHERING
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
    previous: WorkerFailed | None = None
    """What ended the attempt before; None in the first one."""
    left: dict[int, NodeLost] = field(default_factory=dict)
    """Members that disconnected after their report: only another attempt would need them."""
    lost: dict[int, NodeLost] = field(default_factory=dict)
    """Members that disconnected without a report, in that order."""
    silent: set[int] = field(default_factory=set)
    """Members, lost or left, that were silent for too long: the verdict is sent to them, too."""
    lost_at: float = NEVER
    """When the first lost member last sent something."""
    suspended: set[int] = field(default_factory=set)
    """Members whose users have suspended them."""
    stack_rounds: int = 0
    """How often stacks were collected, in all attempts."""
    informed: int = 0
    """How many nodes know that the job cannot begin."""
    contradiction: tuple[str, str] = ("", "")
    """Why it cannot, and a hint."""

    def is_absent(self, connection: int) -> bool:
        return connection in self.lost or connection in self.left

    def present(self) -> tuple[int, ...]:
        """Return all members that are neither lost nor have left."""
        return tuple(each for each in self.ranks if not self.is_absent(each))

    def mark_absent(self, connection: int) -> None:
        """Expect no stacks from a member any more."""
        self.attempt.idle.discard(connection)
        if self.attempt.stack_round is not None:
            self.attempt.stack_round.awaited.discard(connection)
