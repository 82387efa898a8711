"""A told job that may go on without its node 0: who loses whom, and who follows whom then.

Links between nodes can be cut. What nodes say then waits, they lose each other after the time that
docs/lost_nodes.md gives, and those that can be reached find a successor of node 0. Workers that are
killed end at once. Leases are the subject of ``succession/parted_job.py``.
"""

import signal
from collections.abc import Iterable, Mapping
from typing import Any, Self

from msgspec.structs import replace

from tests.histories import told_job
from tests.histories.door import (
    Attempt,
    Coordinator,
    LocalRank,
    actions,
    events,
    job_events,
    messages,
    outcomes,
    succession,
)
from tests.histories.told_job import Node
from tests.network.nodes import hello

TICK = 0.25
SILENCE = 15.0
"""Seconds after which an agent has lost a silent coordinator: --heartbeat-timeout."""

PATIENCE = 17.0
"""Seconds after which a coordinator has lost a silent agent: two heartbeats more."""


class Leading:
    """The coordinator on a node, and its members by connection."""

    def __init__(self, state: Coordinator, leader: int) -> None:
        self.state, self.leader = state, leader
        self.members = {0: leader}
        self.heard_at: dict[int, float] = {}
        self.leaving: list[int] = []
        """Connections of members that have turned away, and whose last message is on its way."""


class Agent:
    """What an agent knows of its coordinator and of those that may succeed it."""

    def __init__(self, follows: Leading | None, connection: int, heard_at: float) -> None:
        self.follows, self.connection, self.heard_at = follows, connection, heard_at
        """Whom it follows; None: it has lost its coordinator, and seeks another."""
        self.known: messages.Succession | None = None
        self.since = 0
        self.is_done = False
        self.lost: outcomes.NodeLost | None = None
        """The coordinator without which it is since then."""
        self.lost_at, self.has_ended = 0.0, False
        self.search: succession.Search | None = None


class Job(told_job.Job):
    """A job whose nodes may lose sight of each other."""

    def __init__(self, *, addresses: Mapping[int, str] | None = None, **values: Any) -> None:
        """Start a job as ``told_job.Job`` does; ``addresses``: at which node 0 sees its nodes."""
        self._addresses = addresses or {}
        self._coordinators: list[Leading] = []
        self._agents: dict[int, Agent] = {}
        self._cut: set[frozenset[int]] = set()
        self._dying: list[tuple[Node, LocalRank]] = []
        super().__init__(**values)
        self._terms = self._coordinator.terms

    # What happens to nodes.

    def loses_node(self, node: int) -> Self:
        """Kill an agent, and with it all ranks there; its kernel reports that to all that it reaches."""
        lost, agent = self._nodes[node], self._agents[node]
        lost.is_over = True
        lost.alive.clear()
        if agent.follows is not None and agent.follows.leader != node:
            self._leaves_by_kernel(agent)
        return self

    def cuts(self, *part: int, off: Iterable[int] = ()) -> Self:
        """Cut these nodes off from all others, or from those in ``off``."""
        others = set(off) or {node.number for node in self._nodes} - set(part)
        self._cut |= {frozenset((one, other)) for one in part for other in others}
        return self

    def heals(self) -> Self:
        """Let all nodes reach each other again."""
        self._cut.clear()
        return self

    def stops(self, node: int) -> Self:
        """Let the ranks of a node end as ordered; ranks elsewhere may have the same numbers."""
        stopped = self._nodes[node]
        while stopped.alive:
            killed = events.WorkerEnded(
                stopped.alive.pop(), outcomes.Killed(signal.SIGTERM), self.now
            )
            self._happens(stopped, killed)
        return self

    def gets(self, node: int) -> Self:
        """Deliver one message to a node, and nothing else."""
        self._receives(self._nodes[node], self._nodes[node].down.popleft())
        return self

    def confirms(self, node: int, attempt: int) -> Self:
        """Have node 0 learn so late that an agent has known of an attempt."""
        known = messages.SuccessionKnown(attempt)
        self._decided(job_events.MessageReceived(node, known, self.now))
        return self

    def claims(self, node: int, of: int, **values: Any) -> Self:
        """Have an agent claim another place of a successor than it has; print its answer."""
        coordinator = self._agents[of].follows
        assert coordinator is not None
        claim = replace(self._claim(node), **values)
        self._connects(node, coordinator, claim)
        return self

    # What follows.

    def passes(self, seconds: float) -> Self:
        """Let time pass, and all that follows without luck."""
        until = self.now + seconds
        while self.now < until:
            self.now += TICK
            for node in self._nodes:
                self._listens(node)
                if node.deadline is not None and node.deadline <= self.now:
                    node.deadline = None
                    self._happens(node, events.DeadlinePassed(self.now))
            for each in self._coordinators:
                self._looks_after(each)
            self.settles()
        return self

    # Who reaches whom.

    def _reach(self, one: int, other: int) -> bool:
        return frozenset((one, other)) not in self._cut and not (
            self._nodes[one].is_frozen or self._nodes[other].is_frozen
        )

    def _listens(self, node: Node) -> None:
        """Notice a coordinator that is silent for too long."""
        agent = self._agents[node.number]
        if agent.follows is None or node.is_over or node.is_frozen:
            return
        if self._reach(node.number, agent.follows.leader):
            agent.heard_at = self.now
        elif self.now - agent.heard_at >= SILENCE:
            self._loses(node, "has been silent for 15 s", has_ended=False)

    def _looks_after(self, coordinator: Leading) -> None:
        """Notice members that are silent for too long, and what is due."""
        leader = self._nodes[coordinator.leader]
        if leader.is_over or leader.is_frozen:
            return
        for connection in tuple(coordinator.leaving):
            if self._reach(coordinator.members[connection], coordinator.leader):
                coordinator.leaving.remove(connection)
                left = messages.LeftCoordinator()
                self._decided(job_events.MessageReceived(connection, left, self.now), coordinator)
        for connection, number in tuple(coordinator.members.items()):
            heard_at = coordinator.heard_at.setdefault(connection, self.now)
            if self._follows(number, coordinator, connection) and (
                self._reach(number, coordinator.leader)
            ):
                coordinator.heard_at[connection] = self.now
            elif self.now - heard_at >= PATIENCE:
                coordinator.heard_at[connection] = float("inf")
                silent = job_events.MemberSilent(connection, self.now)
                self._decided(silent, coordinator)
        if coordinator.state.due <= self.now:
            self._decided(job_events.TimePassed(self.now), coordinator)

    def _follows(self, number: int, coordinator: Leading, connection: int) -> bool:
        agent = self._agents[number]
        return agent.follows is coordinator and agent.connection == connection

    # Messages, and the loss of a coordinator.

    def _decided(self, event: job_events.CoordinatorEvent, at: Leading | None = None) -> None:
        if not self._coordinators:
            self._coordinators.append(Leading(self._coordinator, 0))
            self._agents[0] = Agent(self._coordinators[0], 0, self.now)
        coordinator = at or self._coordinators[0]
        if isinstance(event, job_events.HelloReceived):
            number = int(event.hello.host.removeprefix("n"))
            coordinator.members[event.connection] = number
            offer = replace(event.hello, standby=messages.Standby(1000 + number, 2000 + number))
            event = replace(event, hello=offer, address=self._address(number))
            if event.hello.claim is None:
                self._agents[number] = Agent(coordinator, event.connection, self.now)
        for reply in coordinator.state.happens(event):
            self._replies(coordinator, reply)

    def _replies(self, coordinator: Leading, reply: job_events.Action) -> None:
        match reply:
            case job_events.Send(numbers, message):
                for number in numbers:
                    node = coordinator.members[number]
                    if self._follows(node, coordinator, number):
                        self._nodes[node].down.append(message)
            case job_events.Disconnect(numbers):
                for number in numbers:
                    node = coordinator.members[number]
                    if self._follows(node, coordinator, number):
                        self._nodes[node].is_dropped = True
            case job_events.PrintOnNodeZero(text):
                self._see(self._nodes[coordinator.leader], f"prints: {text}")
            case job_events.PreparePort():
                port = job_events.PortReady(self.port, self.now)
                self._decided(port, coordinator)

    def _address(self, number: int) -> str:
        return self._addresses.get(number, f"10.0.0.{number}")

    def _perform(self, node: Node, state: Attempt, action: actions.Action) -> None:
        super()._perform(node, state, action)
        match action:
            case actions.SignalWorkers(local_ranks, signal.SIGKILL):
                self._dying += [(node, local) for local in sorted(local_ranks)]
            case actions.Finish():
                self._leaves_by_kernel(self._agents[node.number])

    def _goes_on(self, node: Node) -> bool:
        if self._dying:
            killed, local = self._dying.pop(0)
            killed.alive.discard(local)
            self._happens(
                killed, events.WorkerEnded(local, outcomes.Killed(signal.SIGKILL), self.now)
            )
            return True
        return super()._goes_on(node)

    def _is_told(self, node: Node) -> bool:
        agent = self._agents[node.number]
        if node.is_over and agent.follows is None:
            return False
        if agent.follows is None:
            return self._seeks(node, agent)
        leader = self._nodes[agent.follows.leader]
        if not self._reach(node.number, leader.number):
            return False
        if node.up and not leader.is_over:
            message = node.up.popleft()
            agent.is_done |= isinstance(message, messages.Done)
            received = job_events.MessageReceived(agent.connection, message, self.now)
            self._decided(received, agent.follows)
        elif node.is_over:
            return False
        elif node.down:
            self._receives(node, node.down.popleft())
        elif leader.is_over or node.is_dropped:
            self._loses(node, "is gone", has_ended=True)
        else:
            return False
        return True

    def _receives(self, node: Node, message: messages.FromCoordinator) -> None:
        agent = self._agents[node.number]
        match message:
            case messages.Succession(attempt):
                if agent.known is None:
                    agent.since = attempt
                agent.known = message
            case messages.NextAttempt() | messages.WorldFormed():
                agent.is_done = False
                waits = node.state is None
                assert isinstance(message, messages.WorldFormed) == waits, "knows other attempts"
        if isinstance(message, messages.Succession | messages.NextAttempt):
            agent.lost = agent.search = None
        if isinstance(message, messages.Refused) and agent.lost:
            self._ends(node, message.text)
            return
        super()._receives(node, message)

    def _loses(self, node: Node, how: str, *, has_ended: bool) -> None:
        """Have a node lose its coordinator, as the network's side of an agent does."""
        agent = self._agents[node.number]
        left, agent.follows = agent.follows, None
        assert left is not None
        node.down.clear()
        if agent.search is not None:
            if not has_ended:
                self._ends(node)
            else:
                agent.search.has_ended()
            return
        known, world = agent.known, node.world
        lost = outcomes.NodeLost(known.node_rank if known else 0, f"n{left.leader}", how)
        is_older = known and world and world.attempt > known.attempt
        if known is None or not known.successors or is_older:
            agent.lost = lost
            self._ends(node, "")
            return
        if not has_ended:
            left.leaving.append(agent.connection)
        agent.lost, agent.lost_at, agent.has_ended = lost, self.now, has_ended
        sought = events.CoordinatorSought(lost, self.now)
        self._happens(node, sought)
        if agent.is_done or node.state is None:
            self._searches(node, agent)

    def _searches(self, node: Node, agent: Agent) -> None:
        """Begin to search, now that no worker is left."""
        known, lost = agent.known, agent.lost
        assert known is not None
        assert lost is not None
        ended = {lost.node_rank} if agent.has_ended else set()
        agent.search = succession.Search(
            f"agent {node.number}", known.successors, agent.lost_at, SILENCE, ended
        )

    def _seeks(self, node: Node, agent: Agent) -> bool:
        """Do one thing to find a successor; return whether there was one."""
        if agent.search is None:
            return bool(node.up) and self._stops_before(node, agent, node.up.popleft())
        node.up.clear()
        search, before = agent.search, agent.search.first
        search.time_passed(self.now)
        if search.gathers:
            self._gathers(node, agent, search)
            return True
        if search.successor is None:
            self._ends(node)
            return True
        other = int(search.successor.identity.removeprefix("agent "))
        return self._calls(node, agent, other) or search.first != before

    def _stops_before(self, node: Node, agent: Agent, message: messages.AgentMessage) -> bool:
        """Take what would have been reported while workers end."""
        if isinstance(message, messages.Done) and message.external_cause is None:
            self._searches(node, agent)
        elif isinstance(message, messages.Done | messages.EndedExternally):
            self._ends(node)
        return True

    def _calls(self, node: Node, agent: Agent, other: int) -> bool:
        assert agent.search is not None
        if not self._reach(node.number, other):
            return False
        if self._nodes[other].is_over:
            agent.search.has_ended()
            return True
        led = [each for each in self._coordinators if each.leader == other]
        if not led:
            return False
        self._see(node, f"turns to node {other}")
        self._connects(node.number, led[-1], self._claim(node.number))
        return True

    def _claim(self, number: int) -> messages.Claim:
        agent = self._agents[number]
        known, world = agent.known, self._nodes[number].world
        assert known is not None
        has_place = world is not None and world.attempt == known.attempt
        return messages.Claim(
            known.attempt,
            known.coordinator,
            world.node_rank if world is not None and has_place else None,
            agent.since,
            world is not None,
            self.now - agent.heard_at,
        )

    def _connects(self, number: int, coordinator: Leading, claim: messages.Claim) -> None:
        connection = max(coordinator.members) + 1
        agent = self._agents[number]
        agent.follows, agent.connection = coordinator, connection
        self._nodes[number].is_dropped = False
        said = replace(hello(number, workers=self._nodes[number].size), claim=claim)
        self._decided(job_events.CallerConnected(self.now), coordinator)
        received = job_events.HelloReceived(connection, "", said, self.now)
        self._decided(received, coordinator)

    def _gathers(self, node: Node, agent: Agent, sought: succession.Search) -> None:
        assert agent.known is not None
        assert agent.lost is not None
        self._see(node, "gathers the others")
        said = hello(node.number, workers=node.size)
        state = Coordinator.succeeding(
            self._terms,
            replace(said, claim=self._claim(node.number), standby=messages.Standby(0, 0)),
            agent.known,
            agent.lost,
            ended=sought.ended,
            at=self.now,
            until=sought.ends,
        )
        agent.follows, agent.connection = Leading(state, node.number), 0
        self._coordinators.append(agent.follows)

    def _ends(self, node: Node, why: str = succession.NO_SUCCESSOR) -> None:
        """End a node that has no coordinator any more, and finds no successor of it."""
        agent = self._agents[node.number]
        lost = agent.lost
        assert lost is not None
        agent.follows = None
        if node.state is None:
            super()._receives(node, messages.Verdict(lost, why))
            return
        gone = events.CoordinatorLost(lost, self.now, why)
        self._happens(node, gone)

    def _leaves_by_kernel(self, agent: Agent) -> None:
        """Close the connection of an agent that has ended."""
        coordinator, agent.follows = agent.follows, None
        if coordinator is None:
            return
        number = coordinator.members[agent.connection]
        leader = self._nodes[coordinator.leader]
        if leader.is_over or not self._reach(number, leader.number):
            return
        gone = job_events.MemberGone(agent.connection, "", self.now)
        self._decided(gone, coordinator)
