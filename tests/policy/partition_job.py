"""A job whose nodes are stopped, killed and cut off from each other, without processes and sockets.

All that decides is the product's own: on each node the membership with its heartbeats and its lease,
the attempt and the loop; on node 0 the server, the coordinator and its grants. The model is what lies
below: the fork servers, the workers, the kernels with their connections, and the clocks of the hosts.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from signal import SIGTSTP
from typing import Any

import pytest
from clusterrun.network import membership, server
from clusterrun.network.channel import ChannelEnd
from clusterrun.network.joining_node import JoiningNode
from clusterrun.network.server import CoordinatorServer
from clusterrun.policy import events, messages, outcome
from clusterrun.policy.coordinator import Coordinator, Finished, Restarting, Running, State
from clusterrun.policy.settings import HeartbeatRhythm, RendezvousSettings
from clusterrun.signals import SignalReceived

from tests.network.nodes import TERMS, hello, with_job
from tests.policy.partition_nodes import FORK_SERVER_ANSWERS, Agent, Broken, Host, Stop
from tests.policy.partition_wires import OPENED, End, ModelDialer, ModelPort, Wire

RHYTHM = HeartbeatRhythm(1.0, 6.0)
"""The shortest timeout that there is: six intervals."""

T, I = RHYTHM.timeout, RHYTHM.interval  # noqa: E741 - as the rule names them

BOUND = 150.0
"""Seconds within which all that was disturbed has ended, or goes on: the longest pauses between restarts,
two silences, and what a node has to report its end."""

FAILURE = "ValueError: the loss is NaN"
CONSEQUENCE = "DistNetworkError: Connection reset by peer"
"""The last lines of a worker that fails, and of one whose peer has gone."""

ELASTIC = {"fewest_nodes": 1}
"""Options of a job that goes on with the nodes that are left."""


def replace_sockets(patch: pytest.MonkeyPatch) -> None:
    """Let memberships connect by what is above, and nobody wait."""
    patch.setattr(membership, "Dialer", ModelDialer)
    patch.setattr(membership, "open_ports", _open_ports)
    patch.setattr(membership, "SECONDS_FOR_VERDICT", 0.0)
    patch.setattr(membership, "SECONDS_TO_FINISH", 0.0)
    patch.setattr(server, "Channel", lambda _decoder, end, _handshake: end)
    patch.setattr(server, "require_descriptors", lambda *_: None)
    patch.setattr(CoordinatorServer, "check_for_duplicate", lambda _server: None)


def _open_ports(_node: JoiningNode) -> tuple[ModelPort, None]:
    port = ModelPort()
    OPENED.append(port)
    return port, None


@dataclass
class PartitionJob:
    """A job of two to six nodes, and what callback to it: the same for the same seed."""

    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the job; none: drawn, and the number of its nodes, too."""
    grace: float = 0.0
    """The longest that a worker takes to end when it is stopped; 0: drawn."""
    delay: float = 0.0
    """The longest that a message takes; 0: drawn."""
    is_steady: bool = False
    """No message takes long, and none has to be sent again."""

    def __post_init__(self) -> None:
        self.dice = dice = random.Random(self.seed)
        self.now = 100.0
        self.log: list[str] = []
        """What was done to it."""
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self.numbers = count(10)
        self._is_calm = False
        self.nodes = dice.randint(2, 6)
        self.grace = self.grace or dice.choice([0.3, 0.3, 4.0, 12.0])
        self.delay = self.delay or dice.choice([0.002, 0.02, 0.1, 0.3 - 0.2 * self.is_steady])
        self._loss = 0.0 if self.is_steady else dice.choice([0.0, 0.0, 0.05, 0.2])
        self.settings = self._settings(self.options or self._drawn_options())
        self.agents = [Agent(self, number) for number in range(self.nodes)]
        self.wires: list[Wire] = []
        self.agents[0].begins()
        for agent in self.agents[1:]:
            self.later(dice.uniform(0.0, 0.3), agent.begins)

    def _drawn_options(self) -> dict[str, Any]:
        dice = self.dice
        spares = dice.randint(0, (self.nodes - 1) // 2)
        patience = dice.choice([0.0, 20.0])
        if spares or dice.random() < 0.3:
            return {"spares": spares, "rejoin_timeout": patience or 20.0 * (not spares)}
        return {"fewest_nodes": dice.randint(1, self.nodes - 1), "rejoin_timeout": patience}

    def _settings(self, options: Mapping[str, Any]) -> RendezvousSettings:
        return with_job(
            TERMS,
            self.nodes,
            rhythm=RHYTHM,
            keeps_rendezvous_port=True,
            max_restarts=100,
            no_fail_fast=True,
            shutdown_timeout=12.0,
            rdzv_timeout=60.0,
            run_id="chosen",
            **{"nnodes": self.nodes - options.get("spares", 0), **options},
        )

    def hello(self, number: int) -> messages.Hello:
        """Return what the agent of this node sends first."""
        return hello(number, self.nodes, rank=number)

    # Time.

    def at(self, when: float, callback: Callable[[], object]) -> None:
        heappush(self._events, (when, next(self.numbers), callback))

    def later(self, seconds: float, callback: Callable[[], object]) -> None:
        self.at(self.now + seconds, callback)

    def runs(self, seconds: float) -> None:
        """Let so much time pass."""
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, callback = heappop(self._events)
            callback()
        self.now = until

    def transit(self) -> float:
        """Return how long a message takes."""
        seconds = self.dice.uniform(0.0005, self.delay)
        return seconds + (self.dice.uniform(0.2, 0.6) if self.dice.random() < self._loss else 0.0)

    # What must never happen.

    def check(self) -> None:
        """Workers of two attempts never run at once."""
        attempts = {
            it.fork_server.worker.attempt: it.number
            for it in self.agents
            if it.fork_server.worker is not None and not it.fork_server.is_stopped_with_worker
        }
        if len(attempts) > 1:
            raise Broken(f"attempts run at once, here by a node of each: {attempts}")

    def settles(self) -> None:
        """Let time pass until all that was disturbed has ended, or goes on."""
        until = self.now + BOUND
        while True:
            self.runs(10.0)
            try:
                self.check_end()
            except Broken:
                if self.now >= until:
                    raise
            else:
                return

    def check_end(self) -> None:
        """All that was disturbed has ended, or goes on."""
        node_zero = self.agents[0]
        state = self.state
        members = [it for it in self.agents[1:] if not it.is_gone]
        for each in self.agents:
            if each.is_gone and each.fork_server.worker is not None:
                raise Broken(f"a worker is left on node {each.number}")
        if node_zero.is_gone:
            if members:
                raise Broken(f"node 0 has ended, and {self.describe(members)} goes on")
            return
        if isinstance(state, Finished | Restarting):
            raise Broken(f"the job stands still in {type(state).__name__}")
        if isinstance(state, Running):
            participants = {it.hello.host for it in self.coordinator.members.participants}
            ranks = [it for it in (node_zero, *members) if it.host.name in participants]
            behind = [it for it in ranks if it.trains != state.attempt]
            waits = [
                it for it in members if it.host.name not in participants and it.attempt is not None
            ]
            if len(participants) != len(ranks) or behind or waits:
                raise Broken(f"attempt {state.attempt} stands still: {self.describe(behind)}")

    def describe(self, agents: Iterable[Agent]) -> str:
        return ", ".join(f"node {it.number} ({it.notices[-1:]})" for it in agents)

    # What is known.

    @property
    def coordinator(self) -> Coordinator:
        runs = self.agents[0].loop.server
        assert runs is not None
        return runs.coordinator

    @property
    def state(self) -> State:
        return self.coordinator.state

    @property
    def attempts(self) -> int:
        """How many have begun after the first one."""
        return self.coordinator.attempt

    @property
    def left(self) -> list[int]:
        """The nodes whose agents run."""
        return [it.number for it in self.agents if not it.is_gone]

    @property
    def reasons(self) -> set[type[outcome.Reason]]:
        """Why attempts have ended, as far as an agent was told."""
        return {type(reason) for it in self.agents for reason in it.reasons}

    # Connections.

    def connects(self, agent: Agent) -> End | None:
        """Connect an agent to node 0, if that answers."""
        node_zero = self.agents[0]
        host = agent.host
        is_reachable = host.is_up and node_zero.host.is_up
        if not is_reachable or host.up_cuts or host.down_cuts:
            return None
        if not node_zero.runs or not node_zero.port.is_open:
            return None
        wire = Wire(self, agent, node_zero)
        self.wires.append(wire)
        node_zero.port.callers.append(wire.zero)
        self.later(self.transit(), node_zero.wake)
        return wire.member

    def updates_wires(self) -> None:
        for wire in self.wires:
            wire.update()

    def wire_of(self, agent: Agent) -> Wire | None:
        """Return the newest connection of a member."""
        ends = [wire for wire in self.wires if wire.member in agent.ends.values()]
        return ends[-1] if ends else None

    # Faults.

    def peer_has_gone(self, attempt: int) -> None:
        """Let workers fail that wait for one that has ended in a collective."""
        for each in self.agents:
            worker = each.fork_server.worker
            if worker is not None and worker.attempt == attempt and self.dice.random() < 0.7:
                fails = partial(
                    each.fork_server.ends_worker, outcome.Exited(1), CONSEQUENCE, worker.number
                )
                self.later(self.dice.uniform(0.01, 2.0), partial(self._if_runs, each, fails))

    def _if_runs(self, agent: Agent, callback: Callable[[], object]) -> None:
        # A worker that is stopped with its host fails later, or never.
        if not agent.fork_server.is_stopped_with_worker:
            callback()

    def _log(self, text: str) -> None:
        self.log.append(f"{self.now - 100:.2f} {text}")

    def _stops(self, agent: Agent, stop: Stop, *, fork_server: bool, itself: bool) -> None:
        if fork_server:
            agent.fork_server.stops.add(stop)
        if itself and not agent.is_gone:
            agent.stops.add(stop)
            if self.dice.random() < 0.3:
                # In the middle of a turn.
                agent.loop.stopped_at = agent.host.monotonic()

    def _continues(self, agent: Agent, stop: Stop) -> None:
        agent.fork_server.stops.discard(stop)
        agent.stops.discard(stop)
        # A fork server that continues kills a worker whose lease has expired before that does anything.
        agent.fork_server.acts()
        if not agent.fork_server.is_stopped_with_worker:
            self.check()
        agent.wake()

    def stops_agent(self, agent: Agent, seconds: float) -> None:
        """Stop an agent alone; not while its fork server is stopped for long."""
        if agent.fork_server.is_stopped_long:
            return
        self._log(f"agent {agent.number} is stopped for {seconds:.2f}")
        stop = Stop()
        self._stops(agent, stop, fork_server=False, itself=True)
        self.later(seconds, partial(self._continues, agent, stop))

    def stops_fork_server(
        self, agent: Agent, seconds: float, *, beyond_lease: bool = False
    ) -> None:
        """Stop a fork server alone; unless ``beyond_lease``, not when its lease ends.

        After ``FORK_SERVER_ANSWERS`` its agent kills it, which must run then.
        """
        fork_server = agent.fork_server
        stop = Stop(is_long=seconds >= FORK_SERVER_ANSWERS)
        is_in_lease = fork_server.lease_left > min(seconds, FORK_SERVER_ANSWERS) or beyond_lease
        may_stop = is_in_lease and (agent.runs or not stop.is_long)
        if agent.is_gone or fork_server.stops or fork_server.is_dead or not may_stop:
            return
        self._log(f"fork server {agent.number} is stopped for {seconds:.2f}")
        self._stops(agent, stop, fork_server=True, itself=False)
        agent.misses_fork_server()
        self.later(seconds, partial(self._continues, agent, stop))

    def stops_host(self, agent: Agent, seconds: float) -> None:
        """Let a whole machine sleep; not while its fork server is stopped for long."""
        if agent.fork_server.is_stopped_long:
            return
        self._log(f"host {agent.number} sleeps for {seconds:.2f}")
        agent.host.sleeps()
        self.updates_wires()
        stop = Stop(with_worker=True)
        self._stops(agent, stop, fork_server=True, itself=True)

        def wakes() -> None:
            agent.host.wakes()
            self.updates_wires()
            self._continues(agent, stop)

        self.later(seconds, wakes)

    def stops_all(self, seconds: float) -> None:
        """Stop all processes of all nodes, as a scheduler does, and continue them."""
        if any(it.fork_server.is_stopped_long for it in self.agents):
            return
        self._log(f"all are stopped for {seconds:.2f}")
        stop = Stop(with_worker=True)
        for agent in self.agents:
            self._stops(agent, stop, fork_server=True, itself=True)
        for agent in self.agents:
            self.later(seconds + self.dice.uniform(0.0, 0.2), partial(self._continues, agent, stop))

    def pauses(self, agent: Agent, seconds: float) -> None:
        """Let a user pause a node."""
        may_pause = agent.runs and agent.attempt is not None and not agent.fork_server.stops
        if not may_pause:
            return
        self._log(f"node {agent.number} is paused for {seconds:.2f}")
        agent.loop.add([SignalReceived(SIGTSTP, agent.host.monotonic())])
        agent.wake()
        self.later(seconds, agent.continues)

    def cuts(self, agents: Iterable[Agent], seconds: float, *, up: bool, down: bool) -> None:
        """Cut members off from node 0: what they send is lost, or what it sends, or both."""
        cut = [it.host for it in agents]
        ways = " and ".join(["up"] * up + ["down"] * down)
        self._log(f"{', '.join(it.name for it in cut)} are cut off {ways} for {seconds:.2f}")
        self._changes_cuts(cut, up, down)
        self.later(seconds, partial(self._changes_cuts, cut, -up, -down))

    def _changes_cuts(self, hosts: Iterable[Host], up: int, down: int) -> None:
        if self._is_calm:
            return
        for host in hosts:
            host.up_cuts += up
            host.down_cuts += down
        self.updates_wires()

    def resets(self, agent: Agent, *, member: bool, zero: bool) -> None:
        """Let something between two nodes reset their connection, at one end or both."""
        wire = self.wire_of(agent)
        if wire is None:
            return
        self._log(f"the connection of {agent.number} is reset: {member=} {zero=}")
        if zero:
            wire.zero.ends(ChannelEnd.RESET)
        if member:
            wire.member.ends(ChannelEnd.RESET)

    def kills(self, agent: Agent) -> None:
        """Kill an agent; not while its fork server is stopped for long."""
        if agent.is_gone or agent.fork_server.is_stopped_long:
            return
        self._log(f"agent {agent.number} is killed")
        agent.is_killed()

    def kills_host(self, agent: Agent) -> None:
        """Let a machine lose its power: no kernel reports anything."""
        self._log(f"host {agent.number} loses its power")
        agent.host.is_dark = True
        self.updates_wires()
        agent.is_gone = True
        agent.fork_server.dies()

    def fails(self, agent: Agent) -> None:
        """Let a worker fail."""
        if not agent.fork_server.is_stopped_with_worker:
            self._log(f"the worker of {agent.number} fails")
            agent.fork_server.ends_worker(outcome.Exited(1), FAILURE)

    def loses_helper(self, agent: Agent, name: str) -> None:
        """Kill the relay or the fork server of a node."""
        if agent.is_gone:
            return
        self._log(f"the {name} of {agent.number} is killed")
        if name == "fork server":
            agent.fork_server.dies()
        at = agent.host.monotonic()
        agent.loop.add([events.HelperLost(name, "was killed by SIGKILL", 9, at)])
        agent.wake()

    def calms(self) -> None:
        """Continue all, and let all reach each other; from now on nothing goes wrong."""
        self._log("nothing goes wrong any more")
        self._is_calm = True
        for agent in self.agents:
            agent.host.up_cuts = agent.host.down_cuts = 0
            agent.host.wakes()
        self.updates_wires()
        for agent in self.agents:
            agent.continues()
            for stop in {*agent.stops, *agent.fork_server.stops}:
                self._continues(agent, stop)

    # Histories.

    def disturb(self, seconds: float) -> None:
        """Draw what goes wrong in this time."""
        dice = self.dice
        for _ in range(dice.choice([1, 2, 3, 4, 6, 9])):
            self.later(dice.uniform(0.2, seconds), self._something)

    def _something(self) -> None:
        if self._is_calm:
            return
        dice = self.dice
        agent, lasts = dice.choice(self.agents), self._duration()
        member = dice.choice(self.agents[1:])
        some = [it for it in self.agents[1:] if dice.random() < 0.5] or [member]
        faults: list[Callable[[], object]] = [
            lambda: self.stops_agent(agent, lasts),
            lambda: self.stops_fork_server(agent, dice.uniform(0.1, 4.9)),
            lambda: self.stops_fork_server(member, dice.uniform(5.0, 30.0)),
            lambda: self.stops_host(agent, lasts),
            lambda: self.stops_all(lasts),
            lambda: self.pauses(agent, lasts),
            lambda: self.cuts(some, lasts, up=True, down=True),
            lambda: self.cuts([member], lasts, up=dice.random() < 0.5, down=True),
            lambda: self.cuts([member], lasts, up=True, down=False),
            lambda: self.resets(member, member=True, zero=False),
            lambda: self.resets(member, member=False, zero=True),
            lambda: self.resets(member, member=True, zero=True),
            lambda: self.kills(agent),
            lambda: self.kills_host(agent),
            lambda: self.fails(agent),
            lambda: self.loses_helper(agent, dice.choice(["relay", "fork server"])),
        ]
        [callback] = dice.choices(faults, [6, 3, 1, 3, 2, 3, 4, 2, 2, 1, 2, 1, 2, 1, 3, 1])
        callback()

    def _duration(self) -> float:
        dice = self.dice
        return dice.choice(
            [dice.uniform(0.2, T), dice.uniform(T - 1, T + 5), dice.uniform(T, 3 * T)]
        )
