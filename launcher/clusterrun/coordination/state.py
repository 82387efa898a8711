"""What the coordinator knows, what can happen to it, and what it can ask for."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

from clusterrun.coordination.heartbeat import Rhythm
from clusterrun.coordination.messages import (
    AboutStacks,
    Done,
    EndedExternally,
    Failing,
    FromCoordinator,
    Hello,
    Suspension,
)
from clusterrun.coordination.restart_policy import RestartRules
from clusterrun.domain.last_call import LastCall
from clusterrun.domain.outcome import (
    ExternalCause,
    Fate,
    NodeLost,
    WorkerFailed,
)
from clusterrun.domain.stacks import StackGroup

OWN = 0
"""The connection of node 0's own agent."""

NEVER = float("inf")


class Phase(Enum):
    """The life of a job, as the coordinator sees it; ``PHASES_AFTER`` has the ways."""

    GATHERING = "gathering"
    """Not all nodes are there."""

    RUNNING = "running"
    """All were there, and have been told their ranks; once for each attempt."""

    RESTARTING = "restarting"
    """All have stopped, and will be told of the next attempt as soon as its port is known."""

    OVER = "over"
    """All has been said: why the nodes can't be one job, or why the job ended."""


PHASES_AFTER: Mapping[Phase, frozenset[Phase]] = {
    Phase.GATHERING: frozenset({Phase.RUNNING, Phase.OVER}),
    Phase.RUNNING: frozenset({Phase.RESTARTING, Phase.OVER}),
    Phase.RESTARTING: frozenset({Phase.RUNNING}),
    Phase.OVER: frozenset(),
}
"""Where the job may go from each phase."""


class Terms(Struct, frozen=True):
    """What node 0 says of the job; the other nodes are held against it."""

    hello: Hello
    nodes: int
    """That are to come; once the job runs, that are there."""
    run_id: str
    place: str
    """Where the nodes meet, for people: ``n0:29500``."""
    master_addr: str
    master_port: int
    timeout: float
    """Seconds that all nodes have to come."""
    hosts: tuple[str, ...]
    """Names of the nodes by rank; () where nothing tells."""
    strict: bool
    """What should agree must."""
    rhythm: Rhythm
    """Of the signs of life."""
    restarts: RestartRules
    open_for_good: bool
    """Members meet at a port of their own, which stays open; else it goes to the workers."""
    has_token: bool = False
    """Whoever introduces itself has proved that it holds the job's secret."""
    last_call: LastCall | None = None
    """When the job begins though not all have come; None: never."""
    exports: str = ""
    """``Invitation.exports``."""


class Report(Struct, frozen=True):
    """How the workers of one node ended, and when, or when they failed before, by our clock."""

    fates: tuple[Fate, ...]
    ends: tuple[float, ...]
    external_cause: ExternalCause | None


class StackRound(Struct, frozen=True):
    """The members have been asked for their workers' stacks."""

    number: int
    deadline: float
    answered: frozenset[int] = frozenset()
    groups: tuple[StackGroup, ...] = ()


class StackRounds(Struct, frozen=True):
    """What is known of ranks that may hang."""

    still: frozenset[int] = frozenset()
    """Members none of whose workers has moved for long."""
    rounds: int = 0
    """How often stacks have been collected, in all attempts."""
    round: StackRound | None = None
    """The round that is going on."""


class State(Struct, frozen=True):
    """All that the coordinator knows. Members are numbered by their connections."""

    terms: Terms
    began: float
    phase: Phase = Phase.GATHERING
    callers: int = 0
    """Connections that have not introduced themselves yet."""
    members: Mapping[int, Hello] = field(default_factory=dict)
    """In the order in which they came."""
    claims: Mapping[int, int] = field(default_factory=dict)
    """Who has said which rank: connection by rank."""
    peers: Mapping[int, str] = field(default_factory=dict)
    """While gathering: the address of each member, apart from node 0's own."""
    early: Mapping[int, float] = field(default_factory=dict)
    """When those members began to call that did well before this node 0 was there."""
    complete_at: float = NEVER
    """Since when there are as many members as nodes."""
    enough_at: float = NEVER
    """Since when there are as many as are enough, where fewer than all may be."""
    next_notice: float = NEVER
    warned: bool = False
    """Of what should agree and does not."""
    refused: tuple[str, ...] = ()
    """Who was refused alone and why, the first few; each is said once."""
    ranks: Mapping[int, int] = field(default_factory=dict)
    """Once running: the node rank of each connection."""
    first_ranks: Mapping[int, int] = field(default_factory=dict)
    """Once running: the rank of the first worker of each connection."""
    attempt: int = 0
    previous: WorkerFailed | None = None
    """What ended the attempt before; None in the first one."""
    cause_of_stop: Fate | ExternalCause | NodeLost | None = None
    """The first thing that went wrong in this attempt; None while nothing has."""
    external_causes: tuple[ExternalCause, ...] = ()
    """What came from outside in this attempt, and was told at once."""
    announced: Mapping[int, tuple[Fate, float]] = field(default_factory=dict)
    """The first failure of each member that told of one at once, and when it was."""
    reports: Mapping[int, Report] = field(default_factory=dict)
    """Of the members that are done with this attempt."""
    left: Mapping[int, NodeLost] = field(default_factory=dict)
    """Members that went after their report: nobody misses them but another attempt."""
    lost: Mapping[int, NodeLost] = field(default_factory=dict)
    """Members that went without a report, in that order."""
    silent: frozenset[int] = frozenset()
    """Members, lost or left, that were silent for too long: they hear the verdict if they can."""
    lost_at: float = NEVER
    """When the first of them showed its last sign of life."""
    stacks: StackRounds = StackRounds()
    suspended: frozenset[int] = frozenset()
    """Members whose users have stopped them."""
    told: int = 0
    """How many nodes have been told that the nodes can't be one job."""
    quarrel: tuple[str, str] = ("", "")
    """Why they can't, and a hint."""


class Called(Struct, frozen=True):
    """Somebody has connected."""

    at: float


class HungUp(Struct, frozen=True):
    """Somebody who had not introduced himself is gone."""

    refused: str
    """Who was sent away and why: "10.0.0.2: it has another token"; "" if nobody was."""
    at: float


class Introduced(Struct, frozen=True):
    """A caller, at address ``peer``, has said who it is."""

    connection: int
    peer: str
    hello: Hello
    at: float


class Heard(Struct, frozen=True):
    """A member says something."""

    connection: int
    message: Failing | EndedExternally | Done
    at: float


class Overheard(Struct, frozen=True):
    """A member says something that does not matter to the job's end."""

    connection: int
    message: AboutStacks | Suspension
    at: float


class Gone(Struct, frozen=True):
    """The connection to a member is gone."""

    connection: int
    refused: str
    """As in ``HungUp``."""
    at: float
    unreachable: bool = False
    """Its host answers nothing any more; else it was closed, or its agent has ended."""


class Silent(Struct, frozen=True):
    """A member has said nothing for too long."""

    connection: int
    at: float


class Ticked(Struct, frozen=True):
    """Time has passed."""

    at: float


class PortReady(Struct, frozen=True):
    """The next attempt's workers can meet at ``port``: the answer to ``PreparePort``."""

    port: int


class Abandoned(Struct, frozen=True):
    """Node 0 itself gives up before all nodes are there: ``why``, in words."""

    why: str
    at: float
    hint: str = ""


Happening = (
    Called
    | HungUp
    | Introduced
    | Heard
    | Overheard
    | Gone
    | Silent
    | Ticked
    | PortReady
    | Abandoned
)


class Send(Struct, frozen=True):
    """Send one message to these connections, as far as they still are there."""

    connections: tuple[int, ...]
    message: FromCoordinator


class HangUp(Struct, frozen=True):
    """Close these connections once all that was sent to them is on its way."""

    connections: tuple[int, ...]


class CloseDoor(Struct, frozen=True):
    """Let nobody else in, and keep the port for the workers."""


class PreparePort(Struct, frozen=True):
    """Make the workers' port ready for another attempt: a given one is kept, a chosen one fresh."""


class Say(Struct, frozen=True):
    """Print one notice on node 0."""

    text: str


Reply = Send | HangUp | CloseDoor | PreparePort | Say

Decision = tuple[State, tuple[Reply, ...]]
