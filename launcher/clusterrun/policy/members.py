"""The agents of a job, as its coordinator knows them, and what is sent to them."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from clusterrun.bounds import as_line
from clusterrun.policy.job_events import Action, PrintOnNodeZero, Send
from clusterrun.policy.messages import (
    AttemptMessage,
    Done,
    FirstFailure,
    FromCoordinator,
    Hello,
    Notice,
    RankExitedEarly,
    RanksExited,
    Saves,
    WorkersReady,
    WorkerStartsAgain,
)
from clusterrun.policy.outcome import ExternalCause, NodeLost, WorkerResult

OWN = 0
"""The connection of node 0's own agent."""

TimedResult = tuple[float, WorkerResult]
"""When a worker ended or failed, by the coordinator's clock, and how."""


class NodeReport(Struct, frozen=True):
    """How the workers of one node ended: all of them have."""

    results: tuple[TimedResult, ...]
    external_cause: ExternalCause | None


class Node(Struct, eq=False):
    """One agent: the only record of it. What belongs to an attempt is forgotten when the next begins."""

    connection: int
    hello: Hello
    address: str = ""
    """Where it connects from; "" for node 0's own."""
    called_at: float = 0.0
    """When it began to call, by the coordinator's clock."""
    rank: int | None = None
    """Its node rank, which it keeps when it is lost until another takes it; None: it waits for one."""
    first_rank: int = 0
    """The rank of its first worker."""
    of_services: tuple[int, ...] = ()
    """The numbers of its workers that are services'."""
    had_rank: bool = False
    """It has, or has had, a place."""
    paused: bool = False
    """Its user has paused it."""
    paused_at: float = 0.0
    """When, the last time."""
    here: bool = True
    """It is a member, and not lost."""
    lost: NodeLost | None = None
    """How, if it had a place."""
    may_continue: bool = False
    """It was lost by its silence, and the job ends with it: it finds the verdict if it continues."""
    next_pause_notice: float = 0.0
    """When another line about a pause of it may be printed."""
    pause_is_printed: bool = False
    """A line about the last pause was printed."""
    failure: TimedResult | None = None
    """The first failure in the attempt that it has reported at once."""
    report: NodeReport | None = None
    """The end of the attempt on this node."""

    @property
    def is_reachable(self) -> bool:
        """Return whether a message may arrive: a silent one may continue."""
        return self.here or self.may_continue

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks of its workers, then the numbers of services'."""
        own = range(self.first_rank, self.first_rank + self.hello.workers)
        return (*own, *self.of_services) if self.of_services else own

    def owns(self, ranks: Iterable[int]) -> bool:
        """Return whether each of these is the rank of a worker of its own."""
        own = self.ranks
        return all(rank in own for rank in ranks)

    def may_send(self, message: AttemptMessage) -> bool:
        """Return whether an agent of ours with these workers could send this."""
        fails = not isinstance(message, FirstFailure) or not message.result.exit_status.succeeded
        return fails and self.owns(ranks_in(message))


def ranks_in(message: AttemptMessage) -> Iterable[int]:
    """Return the ranks that a message of a node is about."""
    match message:
        case FirstFailure(_, result):
            return (result.rank,)
        case Done(_, results):
            return (each.result.rank for each in results)
        case RanksExited(_, exits):
            return (each.number for each in exits)
        case Saves(unsaved=unsaved, silent=silent):
            return (*unsaved, *silent)
        case RankExitedEarly(_, rank):
            return (rank,)
        case WorkersReady(_, numbers):
            return numbers
        case WorkerStartsAgain(_, number):
            return (number,)
        case _:
            return ()


class Members:
    """All agents of a job: each event changes what it must, however many they are."""

    def __init__(self, own: Node) -> None:
        """Begin with the agent that runs the coordinator."""
        self.own = own
        self.by_connection: dict[int, Node] = {OWN: own}
        """In the order of joining; a lost one with a place until another attempt begins."""
        self.places: list[Node] = []
        """Those with a place, by node rank."""
        self.waiting: list[Node] = []
        """Those without one, once the job runs, in the order of joining."""
        self.lost: list[Node] = []
        """Those with a place that are lost, in the order of their losses."""
        self.out: list[Action] = []
        """What is to be done about the event that happens."""

    def find(self, connection: int) -> Node | None:
        return self.by_connection.get(connection)

    def add(self, node: Node) -> None:
        self.by_connection[node.connection] = node

    def remove(self, node: Node) -> None:
        self.by_connection.pop(node.connection, None)

    @property
    def present(self) -> list[Node]:
        """Those with a place that are not lost."""
        return [each for each in self.places if each.here]

    def send(self, receivers: Iterable[Node], message: FromCoordinator) -> None:
        connections = tuple(each.connection for each in receivers)
        if connections:
            self.out.append(Send(connections, message))

    def note(self, text: str, receivers: Iterable[Node] | None = None) -> None:
        """Print a line on these nodes; on node 0, if none are named."""
        self.send([self.own] if receivers is None else receivers, Notice(as_line(text)))

    def print(self, text: str) -> None:
        """Print a line on node 0, also before its agent is a member like any other."""
        self.out.append(PrintOnNodeZero(text))
