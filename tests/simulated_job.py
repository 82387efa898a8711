"""A whole job without processes, sockets and clocks: the policies of all its nodes, and their words.

Each node's agent is its ``decide``, the coordinator is its own; between them messages lie in
queues until somebody delivers them, one by one, in any order that TCP allows. Who plays with it
lets workers end, agents die and time pass, and looks at what becomes of it.
"""

from collections import deque
from collections.abc import Iterable
from copy import deepcopy
from enum import Enum

from clusterrun.agent.actions import (
    CleanUp,
    CollectOutput,
    Finish,
    ReportEnd,
    ReportFailure,
    Restart,
    SendToCoordinator,
    SetDeadline,
    SignalWorkers,
)
from clusterrun.agent.conclusion import conclude, fates_of
from clusterrun.agent.decide import decide
from clusterrun.agent.state import Rules, State
from clusterrun.coordination.actions import Disconnect, PreparePort, Send
from clusterrun.coordination.coordinator import decide as decide_for_all
from clusterrun.coordination.coordinator import opened
from clusterrun.coordination.events import (
    CallerConnected,
    HelloReceived,
    MemberGone,
    MemberSilent,
    MessageReceived,
    PortReady,
    TimePassed,
)
from clusterrun.coordination.events import Event as CoordinatorEvent
from clusterrun.coordination.messages import (
    AgentMessage,
    Failing,
    FromCoordinator,
    NextAttempt,
    Suspension,
    Verdict,
    WorldFormed,
    done,
)
from clusterrun.coordination.restart_policy import RestartRules
from clusterrun.coordination.state import PHASES_AFTER, Phase
from clusterrun.domain.events import (
    CleanedUp,
    CoordinatorLost,
    DeadlinePassed,
    Event,
    HelperLost,
    OutputEnded,
    SignalReceived,
    WorkerExited,
    WorkerKilled,
    WorkerStarted,
)
from clusterrun.domain.outcome import Fate as WorkerFate
from clusterrun.domain.outcome import Outcome
from clusterrun.domain.ranks import LocalRank
from clusterrun.rendezvous.coordinator_events import event_of

from tests.agent.node_plans import plan_of
from tests.rendezvous.nodes import hello, terms

GRACE = 25.0


class Fate(Enum):
    """What has become of a node's agent."""

    LIVES = "lives"
    FROZEN = "frozen"
    KILLED = "killed"
    OVER = "over"


class Node:
    """One node: its agent, its workers, and what was said and not heard yet."""

    def __init__(self, number: int, nodes: int, workers: int) -> None:
        self.number = number
        self.size = workers
        self.fate = Fate.LIVES
        self.connected = True
        self.outcome: Outcome | None = None
        self.up: deque[AgentMessage] = deque()
        self.down: deque[FromCoordinator] = deque()
        self.tried: list[int] = []
        """The attempts that it has started workers of."""
        self.told_attempt = 0
        self._nodes = nodes
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Start all workers of an attempt."""
        self.attempt = attempt
        self.tried.append(attempt)
        self.alive = set(map(LocalRank, range(self.size)))
        self.codes: dict[LocalRank, int] = {}
        self.deadline = self.sweeping = False
        self.silent: set[LocalRank] = set()
        self.state = State(
            Rules(GRACE, foreground=False), attempt, self._nodes, False, frozenset(self.alive)
        )

    @property
    def acts(self) -> bool:
        """Whether its agent does anything."""
        return self.fate is Fate.LIVES


class SimulatedJob:
    """All nodes of a job, from the moment at which all have joined."""

    def __init__(self, sizes: Iterable[int], restarts: RestartRules) -> None:
        """Let nodes with so many workers join, and all workers be asked for."""
        sizes = tuple(sizes)
        self.now = 100.0
        self.limit = restarts.limit
        count = len(sizes)
        self.coordinator = opened(terms(count, restarts=restarts, workers=sizes[0]), 0.0)
        self.nodes: list[Node] = []
        # A node that is alone has waited for nobody.
        self._happens(TimePassed(0.0))
        for number in range(1, count):
            said = hello(number, count, rank=number, workers=sizes[number])
            self._happens(CallerConnected(self.now))
            self._happens(HelloReceived(number, "", said, self.now))
        self.nodes = [Node(number, count, size) for number, size in enumerate(sizes)]
        for node in self.nodes:
            for local_rank in range(node.size):
                self.tell(node, WorkerStarted(LocalRank(local_rank), 100, "", self.now))

    # What may happen.

    def worker_ends(self, node: Node, local_rank: LocalRank, code: int) -> None:
        """A worker ends by itself, or where ``code`` is negative, by a signal."""
        node.alive.discard(local_rank)
        node.codes[local_rank] = code
        if code < 0:
            self.tell(node, WorkerKilled(local_rank, -code, self.now))
        else:
            self.tell(node, WorkerExited(local_rank, code, self.now))

    def time_passes(self, node: Node) -> None:
        """The deadline of an agent is over."""
        node.deadline = False
        self.tell(node, DeadlinePassed(self.now))

    def is_swept(self, node: Node) -> None:
        """Nothing of the attempt is left there."""
        node.sweeping = False
        node.alive.clear()
        self.tell(node, CleanedUp((), self.now))

    def output_ends(self, node: Node, local_rank: LocalRank) -> None:
        """The last words of a worker are known."""
        node.silent.discard(local_rank)
        self.tell(node, OutputEnded(local_rank, "ValueError: it", "", self.now))

    def is_signalled(self, node: Node, number: int) -> None:
        """An agent is told to end."""
        self.tell(node, SignalReceived(number, self.now))

    def loses_fork_server(self, node: Node) -> None:
        """And all workers with it."""
        for local_rank in node.alive:
            node.codes[local_rank] = -9
        node.alive.clear()
        self.tell(node, HelperLost("fork server", "was killed by SIGKILL", 9, self.now))

    def is_killed(self, node: Node) -> None:
        """An agent dies, and all workers with it; what it has said still arrives."""
        node.fate = Fate.KILLED
        node.alive.clear()

    def is_frozen(self, node: Node) -> None:
        """An agent is stopped; its workers are not."""
        node.fate = Fate.FROZEN

    def is_continued(self, node: Node) -> None:
        """It finds what it was told meanwhile."""
        node.fate = Fate.LIVES

    def is_missed(self, node: Node) -> None:
        """The coordinator has heard nothing of a node for too long."""
        self._happens(MemberSilent(node.number, self.now))

    def misses_coordinator(self, node: Node) -> None:
        """A node has heard nothing of the coordinator for too long, and hangs up."""
        node.connected = False
        node.down.clear()
        self.tell(node, CoordinatorLost("n0", "has been silent for 15 s", self.now))

    def is_heard(self, node: Node) -> None:
        """The coordinator hears the next word of a node, or that there will be none."""
        if node.up:
            message = node.up.popleft()
            assert not isinstance(message, Suspension)
            is_late = message.attempt < self.coordinator.attempt.number
            before = deepcopy(self.coordinator) if is_late else None
            self._happens(MessageReceived(node.number, message, self.now))
            if before is not None:
                assert self.coordinator == before, "a message of an attempt that is over was heard"
        elif node.fate in {Fate.KILLED, Fate.OVER} or not node.connected:
            self._happens(MemberGone(node.number, "", self.now))

    def receives(self, node: Node) -> None:
        """A node hears the next word of the coordinator, or that there will be none."""
        if node.down:
            self._understood(node, node.down.popleft())
        elif not node.connected or self.nodes[0].fate in {Fate.KILLED, Fate.OVER}:
            node.connected = False
            self.tell(node, CoordinatorLost("n0", "is gone", self.now))

    # What follows from it.

    def tell(self, node: Node, event: Event) -> None:
        """Let an agent know of something, and do as it says."""
        self.now += 0.01
        if not node.acts:
            return
        node.state, actions = decide(node.state, event)
        for action in actions:
            match action:
                case SignalWorkers(local_ranks):
                    assert local_ranks <= node.alive, "signals the dead"
                case SetDeadline():
                    node.deadline = True
                case CollectOutput(local_rank):
                    node.silent.add(local_rank)
                case CleanUp():
                    node.sweeping = True
                case SendToCoordinator(message):
                    self._send(node, message)
                case ReportFailure(local_rank):
                    fates = self._fates(node)
                    fate = next(fate for fate in fates if fate.local_rank == local_rank)
                    self._send(node, Failing(node.state.attempt, fate, 0.0))
                case ReportEnd():
                    fates, cause = self._fates(node), node.state.external_cause
                    self._send(node, done(node.state.attempt, fates, self.now, cause))
                case Restart():
                    self._begin_again(node)
                case Finish():
                    node.outcome = conclude(node.state, node.attempt, self._fates(node))
                    node.fate = Fate.OVER

    def _send(self, node: Node, message: AgentMessage) -> None:
        if node.connected:
            node.up.append(message)

    def _begin_again(self, node: Node) -> None:
        assert node.told_attempt == node.attempt + 1
        for other in self.nodes:
            assert other.attempt > node.attempt or not other.alive, (
                f"node {node.number} begins before node {other.number} has stopped"
            )
        node.begin(node.attempt + 1)
        for local_rank in range(node.size):
            self.tell(node, WorkerStarted(LocalRank(local_rank), 100, "", self.now))

    def _fates(self, node: Node) -> tuple[WorkerFate, ...]:
        first_rank = sum(other.size for other in self.nodes[: node.number])
        plan = plan_of(node.size, attempt=node.attempt, first_rank=first_rank)
        return fates_of(node.state, plan, {}, {}, 0.0)

    def _understood(self, node: Node, message: FromCoordinator) -> None:
        # As Peers does.
        match message:
            case Verdict():
                node.connected = node.number == 0
            case NextAttempt(world):
                node.told_attempt = world.attempt
        event = event_of(message, self.now, on_node_zero=node.number == 0)
        if event is not None:
            self.tell(node, event)

    def _happens(self, event: CoordinatorEvent) -> None:
        phase, attempt = self.coordinator.phase, self.coordinator.attempt.number
        replies = decide_for_all(self.coordinator, event)
        assert self.coordinator.phase in {phase, *PHASES_AFTER[phase]}
        assert self.coordinator.attempt.number - attempt in {0, 1}
        for reply in replies:
            match reply:
                case Send(numbers, message) if not isinstance(message, WorldFormed):
                    for number in numbers:
                        if self.nodes[number].connected:
                            self.nodes[number].down.append(message)
                case Disconnect(numbers):
                    for number in numbers:
                        assert number != 0, "hangs up on itself"
                        self.nodes[number].connected = False
                        self.nodes[number].up.clear()
                case PreparePort():
                    self._happens(PortReady(29500))
                case _:
                    continue

    # What must hold.

    def check(self) -> None:
        """Check what holds at any time."""
        ends = {node.number: node.outcome for node in self.nodes if node.outcome is not None}
        # A node that the others have given up is told so, and hears no more of them.
        verdicts = {
            repr(outcome.reason)
            for number, outcome in ends.items()
            if self.nodes[number].state.verdict is not None and number not in self.coordinator.lost
        }
        assert len(verdicts) <= 1, "two causes"
        if any(outcome.exit_code == 0 for outcome in ends.values()):
            self._check_success()
        assert max(node.attempt for node in self.nodes) <= self.limit

    def _check_success(self) -> None:
        attempts = {node.attempt for node in self.nodes}
        codes = [code for node in self.nodes for code in node.codes.values()]
        assert len(attempts) == 1, "success of different attempts"
        assert set(codes) == {0}, "a success that is none"
        assert len(codes) == sum(node.size for node in self.nodes), "a success of a part"

    def go_on(self) -> None:
        """Let happen what is due on each node: words arrive, what was asked for is done."""
        for node in self.nodes:
            self._go_on(node)

    def come_to_an_end(self) -> None:
        """Let everything happen that is due, and nothing else, until all agents are over."""
        for _ in range(400):
            for node in self.nodes:
                if node.fate is Fate.FROZEN:
                    self.is_continued(node)
                for local_rank in sorted(node.alive) if node.acts else ():
                    self.worker_ends(node, local_rank, 0)
            self.go_on()
            if all(node.fate in {Fate.KILLED, Fate.OVER} for node in self.nodes):
                return
        raise AssertionError(f"no end: {[(node.fate, node.state.phase) for node in self.nodes]}")

    def _go_on(self, node: Node) -> None:
        for local_rank in sorted(node.silent) if node.acts else ():
            self.output_ends(node, local_rank)
        if node.sweeping and node.acts:
            self.is_swept(node)
        if node.deadline and node.acts:
            self.time_passes(node)
        if self.nodes[0].acts and self.coordinator.phase is not Phase.OVER:
            self.is_heard(node)
        if node.acts:
            self.receives(node)
