"""The agents of a job as the coordinator knows them, and the actions that follow from an event."""

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
    SaveReport,
    WorkersReady,
    WorkerStartsAgain,
)
from clusterrun.policy.outcome import ExternalCause, NodeLost, WorkerResult

LOCAL_CONNECTION = 0
"""The connection number of node 0's own agent."""

TimedResult = tuple[float, WorkerResult]
"""When a worker failed or ended, by the coordinator's clock, and how."""


class NodeReport(Struct, frozen=True):
    """How the workers of a node ended."""

    results: tuple[TimedResult, ...]
    external_cause: ExternalCause | None


class Node(Struct, eq=False):
    """One agent. Fields that belong to an attempt are reset when the next one begins."""

    connection: int
    hello: Hello
    address: str = ""
    """The address it connects from; "" for node 0's own agent."""
    called_at: float = 0.0
    """When it first tried to connect, by the coordinator's clock."""
    rank: int | None = None
    """Its node rank; None: it waits for one. A lost node keeps its rank until the next attempt."""
    first_rank: int = 0
    """The rank of its first worker."""
    service_workers: tuple[int, ...] = ()
    """The numbers of its service workers in the job."""
    had_rank: bool = False
    """It participates, or has participated, in an attempt."""
    paused: bool = False
    """Its user has paused it."""
    paused_at: float = 0.0
    """When its user last paused it."""
    is_present: bool = True
    """It is a member and not lost."""
    lost: NodeLost | None = None
    """How it was lost, if it was a participant."""
    may_continue: bool = False
    """It was lost by its silence, which ends the job; if it continues it still gets the verdict."""
    next_pause_notice: float = 0.0
    """When the next line about its pauses may be printed."""
    pause_is_printed: bool = False
    """A line about its last pause was printed."""
    failure: TimedResult | None = None
    """The first worker failure that it has reported in this attempt."""
    report: NodeReport | None = None
    """How all of its workers ended in this attempt; None: it has not reported that."""

    @property
    def is_reachable(self) -> bool:
        """Whether a message may arrive."""
        return self.is_present or self.may_continue

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks of its workers, then the numbers of its service workers."""
        own = range(self.first_rank, self.first_rank + self.hello.workers)
        return (*own, *self.service_workers) if self.service_workers else own

    def owns(self, ranks: Iterable[int]) -> bool:
        """Return whether all of these ranks run on this node."""
        own = self.ranks
        return all(rank in own for rank in ranks)

    def may_send(self, message: AttemptMessage) -> bool:
        """Return whether a correct agent with these workers could send this message."""
        if isinstance(message, FirstFailure) and message.result.exit_status.succeeded:
            return False
        return self.owns(_ranks_in(message))


def _ranks_in(message: AttemptMessage) -> Iterable[int]:
    """Return the ranks that a message is about."""
    match message:
        case FirstFailure(_, result):
            return (result.rank,)
        case Done(_, results):
            return (each.result.rank for each in results)
        case RanksExited(_, exits):
            return (each.number for each in exits)
        case SaveReport(unsaved=unsaved, silent=silent):
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
    """All agents of a job, and the actions that follow from the current event."""

    def __init__(self, own: Node) -> None:
        """Begin with the agent that runs the coordinator."""
        self.own = own
        self.by_connection: dict[int, Node] = {LOCAL_CONNECTION: own}
        """In the order of joining. A lost participant stays until the next attempt begins."""
        self.participants: list[Node] = []
        """The nodes of the current attempt, by node rank, lost ones included."""
        self.waiting: list[Node] = []
        """Members without a rank once the job runs, in the order of joining."""
        self.lost: list[Node] = []
        """The lost participants, in the order in which they were lost."""
        self.out: list[Action] = []
        """The actions that follow from the current event, in order."""

    def find(self, connection: int) -> Node | None:
        return self.by_connection.get(connection)

    def add(self, node: Node) -> None:
        self.by_connection[node.connection] = node

    def remove(self, node: Node) -> None:
        self.by_connection.pop(node.connection, None)

    @property
    def present(self) -> list[Node]:
        """The participants that are not lost."""
        return [each for each in self.participants if each.is_present]

    def send(self, receivers: Iterable[Node], message: FromCoordinator) -> None:
        connections = tuple(each.connection for each in receivers)
        if connections:
            self.out.append(Send(connections, message))

    def note(self, text: str, receivers: Iterable[Node] | None = None) -> None:
        """Print a line on these nodes; None: on node 0."""
        self.send([self.own] if receivers is None else receivers, Notice(as_line(text)))

    def print(self, text: str) -> None:
        """Print a line on node 0, before the job begins as well."""
        self.out.append(PrintOnNodeZero(text))
