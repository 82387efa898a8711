"""A whole job without processes, sockets and clocks: the policies of all its nodes, and messages.

Each agent is its ``decide``, and so is the coordinator. Messages between them stay in queues until
a test delivers them, one by one, in any order that TCP allows. The test also lets workers end,
agents die and time pass, and checks what follows.
"""

from collections import deque
from collections.abc import Iterable
from copy import deepcopy
from enum import Enum

from msgspec.structs import replace

from tests.agent.node_plans import plan_of
from tests.door import (
    NEVER,
    PHASES_AFTER,
    AttemptState,
    CoordinatorEvent,
    Disconnect,
    Event,
    GlobalRank,
    JobPhase,
    LocalRank,
    OnHang,
    Outcome,
    PreparePort,
    ReformRules,
    RestartRules,
    Rules,
    Send,
    actions,
    conclude,
    coordinator_events,
    decide,
    decide_for_all,
    due,
    events,
    fates_of,
    messages,
)
from tests.door import (
    Fate as WorkerFate,
)
from tests.rendezvous.nodes import hello, opened_job

GRACE = 25.0


class Fate(Enum):
    """The state of a node's agent."""

    LIVES = "lives"
    FROZEN = "frozen"
    KILLED = "killed"
    OVER = "over"


class Node:
    """One node: its agent, its workers, and messages that were sent and not delivered."""

    def __init__(self, number: int, nodes: int, workers: int, first_rank: int | None) -> None:
        """Start its workers, or let it wait for a place if it has no ``first_rank``."""
        self.number = number
        self.size = workers
        self.fate = Fate.LIVES
        self.connected = True
        self.dropped = False
        """The coordinator has closed its connection."""
        self.waits = first_rank is None
        self.outcome: Outcome | None = None
        self.up: deque[messages.AgentMessage] = deque()
        self.down: deque[messages.FromCoordinator] = deque()
        self.tried: list[int] = []
        """The attempts for which this node has started workers."""
        self.told_attempt = 0
        self.told_first_rank = first_rank or 0
        self._nodes = nodes
        self.lives_on = False
        self.begin(0)
        if self.waits:
            self.attempt = -1
            self.tried.clear()
            self.alive.clear()

    def begin(self, attempt: int) -> None:
        """Start all workers of an attempt."""
        self.attempt = attempt
        self.first_rank = self.told_first_rank
        self.tried.append(attempt)
        self.alive = set(map(LocalRank, range(self.size)))
        self.codes: dict[LocalRank, int] = {}
        self.deadline = self.sweeping = False
        self.silent: set[LocalRank] = set()
        self.state = AttemptState(
            Rules(GRACE, foreground=False, kills_if_cut_off=self.lives_on),
            attempt,
            self._nodes,
            GlobalRank(0),
            False,
            frozenset(self.alive),
        )

    @property
    def acts(self) -> bool:
        """Whether its agent is running."""
        return self.fate is Fate.LIVES

    @property
    def ranks(self) -> set[int]:
        """The ranks of its living workers."""
        return {self.first_rank + local_rank for local_rank in self.alive}


class SimulatedJob:
    """All nodes of a job, from the moment at which all have joined."""

    def __init__(
        self,
        sizes: Iterable[int],
        restarts: RestartRules,
        reforming: ReformRules | None = None,
        on_hang: OnHang = OnHang.REPORT,
    ) -> None:
        """Let nodes with these numbers of workers join, spares last, and start all workers."""
        sizes, reforming = tuple(sizes), reforming or ReformRules()
        self.now = 100.0
        self.limit = restarts.limit
        self.lives_on = reforming.lives_on
        count = len(sizes)
        self.coordinator = opened_job(
            count, restarts=restarts, workers=sizes[0], reforming=reforming
        )
        self.coordinator.terms = replace(self.coordinator.terms, on_hang=on_hang)
        self.nodes: list[Node] = []
        # A job on one node waits for no other.
        self._happens(coordinator_events.TimePassed(0.0))
        for number in range(1, count):
            said = hello(number, count, rank=number, workers=sizes[number])
            self._happens(coordinator_events.CallerConnected(self.now))
            self._happens(coordinator_events.HelloReceived(number, "", said, self.now))
        firsts = self.coordinator.first_ranks
        self.nodes = [
            Node(number, count, size, firsts.get(number)) for number, size in enumerate(sizes)
        ]
        for node in self.nodes:
            node.lives_on = self.lives_on
            if not node.waits:
                node.begin(0)
                self._start_workers(node)

    def _start_workers(self, node: Node) -> None:
        for local_rank in range(node.size):
            self.tell(node, events.WorkerStarted(LocalRank(local_rank), 100, "", self.now))

    # What may happen.

    def joins(self, size: int) -> None:
        """A node joins while the job runs."""
        number = len(self.nodes)
        node = Node(number, len(self.coordinator.ranks), size, None)
        node.lives_on = self.lives_on
        self.nodes.append(node)
        said = hello(number, workers=size, must=self.coordinator.own_hello.must)
        self._happens(coordinator_events.CallerConnected(self.now))
        self._happens(coordinator_events.HelloReceived(number, "", said, self.now))

    def worker_ends(self, node: Node, local_rank: LocalRank, code: int) -> None:
        """A worker exits with ``code``, or is killed by a signal if that is negative."""
        node.alive.discard(local_rank)
        node.codes[local_rank] = code
        if code < 0:
            self.tell(node, events.WorkerKilled(local_rank, -code, self.now))
        else:
            self.tell(node, events.WorkerExited(local_rank, code, self.now))

    def time_passes(self, node: Node) -> None:
        """The deadline of an agent is over."""
        node.deadline = False
        self.tell(node, events.DeadlinePassed(self.now))

    def is_swept(self, node: Node) -> None:
        """The node's cleanup has ended: no process of the attempt is left."""
        node.sweeping = False
        node.alive.clear()
        self.tell(node, events.CleanedUp((), self.now))

    def output_ends(self, node: Node, local_rank: LocalRank) -> None:
        """The last lines of a worker are known."""
        node.silent.discard(local_rank)
        self.tell(node, events.OutputEnded(local_rank, "ValueError: it", "", self.now))

    def is_signalled(self, node: Node, number: int) -> None:
        """An agent receives a signal that ends it."""
        self.tell(node, events.SignalReceived(number, self.now))

    def stands_still(self, node: Node) -> None:
        """No worker of a node has printed or exited for long."""
        self.tell(node, events.WorkersIdle(60.0, self.now))

    def loses_fork_server(self, node: Node) -> None:
        """A fork server dies, and all workers with it."""
        for local_rank in node.alive:
            node.codes[local_rank] = -9
        node.alive.clear()
        self.tell(node, events.HelperLost("fork server", "was killed by SIGKILL", 9, self.now))

    def is_killed(self, node: Node) -> None:
        """An agent dies, and all workers with it; its messages still arrive."""
        node.fate = Fate.KILLED
        node.alive.clear()

    def is_frozen(self, node: Node) -> None:
        """An agent is stopped; its workers are not."""
        node.fate = Fate.FROZEN

    def is_continued(self, node: Node) -> None:
        """An agent continues; it then receives the messages that have arrived."""
        node.fate = Fate.LIVES

    def is_missed(self, node: Node) -> None:
        """The coordinator has received nothing from a node for too long."""
        self._happens(coordinator_events.MemberSilent(node.number, self.now))

    def misses_coordinator(self, node: Node) -> None:
        """A node has received nothing from the coordinator for too long, and disconnects."""
        node.connected = False
        node.down.clear()
        self.tell(node, events.CoordinatorLost("n0", "has been silent for 15 s", self.now))

    def is_heard(self, node: Node) -> None:
        """The coordinator receives the next message of a node, or the end of its connection."""
        if node.up:
            message = node.up.popleft()
            assert not isinstance(message, messages.JobMessage)
            is_late = message.attempt < self.coordinator.attempt.number
            if isinstance(message, messages.EndedExternally):
                # Between two attempts a signal ends the job, and one of a node without a place
                # ends that node, whichever attempt its agent is in.
                works = node.number in self.coordinator.ranks
                is_late = is_late and works and self.coordinator.phase is JobPhase.RUNNING
            before = deepcopy(self.coordinator) if is_late else None
            self._happens(coordinator_events.MessageReceived(node.number, message, self.now))
            if before is not None:
                # Leases are compared by identity, and follow from heartbeats only.
                assert self.coordinator == replace(before, lease=self.coordinator.lease), (
                    "a message of an earlier attempt changed the state"
                )
        elif node.fate in {Fate.KILLED, Fate.OVER} or not (node.connected or self.lives_on):
            self._happens(coordinator_events.MemberGone(node.number, "", self.now))
        elif node.dropped:
            gone = coordinator_events.MemberGone(node.number, "", self.now, dropped=True)
            self._happens(gone)

    def receives(self, node: Node) -> None:
        """A node receives the next message of the coordinator, or the end of its connection."""
        if node.down:
            self._understood(node, node.down.popleft())
        elif not node.connected or self.nodes[0].fate in {Fate.KILLED, Fate.OVER}:
            node.connected = False
            if node.waits:
                node.fate = Fate.OVER
            self.tell(node, events.CoordinatorLost("n0", "is gone", self.now))

    # What follows from it.

    def tell(self, node: Node, event: Event) -> None:
        """Give an event to an agent, and perform its actions."""
        self.now += 0.01
        if not node.acts or node.waits:
            return
        node.state, decided = decide(node.state, event)
        for action in decided:
            match action:
                case actions.SignalWorkers(local_ranks):
                    assert local_ranks <= node.alive, "signals a worker that has ended"
                case actions.SetDeadline():
                    node.deadline = True
                case actions.CollectOutput(local_rank):
                    node.silent.add(local_rank)
                case actions.CleanUp():
                    node.sweeping = True
                case actions.CollectStacks(number):
                    self.tell(node, events.StacksCollected(number, (), shown=False, at=self.now))
                case actions.SendToCoordinator(message):
                    self._send(node, message)
                case actions.ReportFailure(local_rank):
                    fates = self._fates(node)
                    fate = next(fate for fate in fates if fate.local_rank == local_rank)
                    self._send(node, messages.FirstFailure(node.state.attempt, fate, 0.0))
                case actions.ReportEnd():
                    fates, cause = self._fates(node), node.state.external_cause
                    self._send(node, messages.done(node.state.attempt, fates, self.now, cause))
                case actions.Restart():
                    self._begin_again(node)
                case actions.Finish():
                    node.outcome = conclude(node.state, node.attempt, self._fates(node))
                    node.fate = Fate.OVER

    def _send(self, node: Node, message: messages.AgentMessage) -> None:
        if node.connected:
            node.up.append(message)

    def _begin_again(self, node: Node) -> None:
        if self.lives_on:
            assert node.told_attempt > node.attempt
        else:
            assert node.told_attempt == node.attempt + 1
        self._begin(node, node.told_attempt)

    def _begin(self, node: Node, attempt: int) -> None:
        for other in self.nodes:
            # The workers of an agent that was lost while it was frozen run on until it continues.
            is_excused = self.lives_on and other.number not in self.coordinator.members.hellos
            assert other.attempt >= attempt or not other.alive or is_excused, (
                f"node {node.number} begins before node {other.number} has stopped"
            )
        node.begin(attempt)
        self._start_workers(node)

    def _fates(self, node: Node) -> tuple[WorkerFate, ...]:
        plan = plan_of(node.size, attempt=node.attempt, first_rank=node.first_rank)
        fates = fates_of(node.state, plan, {}, {}, 0.0)
        return tuple(replace(fate, host=f"n{node.number}") for fate in fates)

    def _understood(self, node: Node, message: messages.FromCoordinator) -> None:
        # As Peers does.
        match message:
            case messages.Verdict():
                node.connected = node.number == 0
                if node.waits:
                    node.fate = Fate.OVER
            case messages.NextAttempt(world):
                node.told_attempt, node.told_first_rank = world.attempt, world.first_rank
            case messages.WorldFormed(world):
                node.waits = False
                node.told_attempt, node.told_first_rank = world.attempt, world.first_rank
                self._begin(node, world.attempt)
        if isinstance(message, messages.Order):
            self.tell(node, events.CoordinatorSent(message, self.now))

    def _happens(self, event: CoordinatorEvent) -> None:
        phase, attempt = self.coordinator.phase, self.coordinator.attempt.number
        replies = decide_for_all(self.coordinator, event)
        assert self.coordinator.phase in {phase, *PHASES_AFTER[phase]}
        assert self.coordinator.attempt.number - attempt in {0, 1}
        for reply in replies:
            match reply:
                case Send(numbers, message) if self.nodes:
                    for number in numbers:
                        if self.nodes[number].connected:
                            self.nodes[number].down.append(message)
                case Disconnect(numbers):
                    for number in numbers:
                        assert number != 0, "disconnects itself"
                        self.nodes[number].connected = False
                        self.nodes[number].dropped = True
                        self.nodes[number].up.clear()
                case PreparePort():
                    self._happens(coordinator_events.PortReady(29500, self.now))
                case _:
                    continue

    # What must hold.

    def check(self) -> None:
        """Check the invariants."""
        ends = {node.number: node.outcome for node in self.nodes if node.outcome is not None}
        # A lost node ends for a reason of its own, and receives no more messages.
        verdicts = {
            repr(outcome.reason)
            for number, outcome in ends.items()
            if self.nodes[number].state.verdict is not None
            and number not in self.coordinator.lost_before_report
            and number in self.coordinator.members.hellos
        }
        assert len(verdicts) <= 1, "two causes"
        if any(outcome.exit_code == 0 for outcome in ends.values()):
            self._check_success()
        assert self.coordinator.restarts <= self.limit
        newest = max(node.attempt for node in self.nodes)
        if not self.lives_on:
            assert newest <= self.limit
        self._check_ranks(newest)

    def _check_ranks(self, newest: int) -> None:
        """Check that no rank of the newest world exists twice, and none is too high."""
        world = [node for node in self.nodes if node.attempt == newest]
        ranks = [rank for node in world for rank in node.ranks]
        assert len(ranks) == len(set(ranks)), "a rank twice"
        assert max(ranks, default=0) < self.world_size, "a rank too high"

    @property
    def world_size(self) -> int:
        """The number of workers in the world of the coordinator."""
        return sum(self.nodes[number].size for number in self.coordinator.ranks)

    def _check_success(self) -> None:
        newest = max(node.attempt for node in self.nodes)
        world = [node for node in self.nodes if node.attempt == newest]
        codes = [code for node in world for code in node.codes.values()]
        if not self.lives_on:
            assert all(node.attempt == newest for node in self.nodes), (
                "success of different attempts"
            )
        assert set(codes) == {0}, "success, though a worker failed"
        assert len(codes) == self.world_size, "success, though workers are missing"

    def go_on(self) -> None:
        """Let each node do what is due: receive a message, end its output and its cleanup."""
        grows_at = self.coordinator.grows_at
        if self.nodes[0].acts and grows_at != NEVER:
            self.now = max(self.now, grows_at)
            self._happens(coordinator_events.TimePassed(self.now))
        for node in self.nodes:
            self._go_on(node)

    def come_to_an_end(self) -> None:
        """Let all nodes do what is due, until all agents have ended."""
        for _ in range(400):
            if self.nodes[0].acts and self.coordinator.phase is JobPhase.RESTARTING:
                self.now = max(self.now, due(self.coordinator))
                self._happens(coordinator_events.TimePassed(self.now))
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
        if self.nodes[0].acts and self.coordinator.phase is not JobPhase.OVER:
            self.is_heard(node)
        if node.acts:
            self.receives(node)
