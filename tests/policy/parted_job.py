"""A job whose agents are frozen, killed, paused and cut off from each other, without sockets.

The coordinators are real: their states, their watch of silent members, their leases. So are an
agent's heartbeats, its lease and its search for a successor. The model is what lies between them: the
agent's loop, the fork server that holds the lease, connections that keep their order and deliver what
a cut held back, and the kernel's reports of ends and resets. Each agent has a clock of its own.
"""

import random
from collections import deque
from collections.abc import Collection
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any

from msgspec.structs import replace

from tests.network.nodes import TERMS, fate, hello, with_job
from tests.policy.door import (
    NEVER,
    OWN,
    Coordinator,
    HeartbeatRhythm,
    HeartbeatTimer,
    MemberLease,
    Quorum,
    Reforming,
    Running,
    Search,
    SilenceWatch,
    World,
    job_events,
    messages,
    outcome,
)

TICK = 0.25
RHYTHM = HeartbeatRhythm(1.0, 6.0)
"""The shortest timeout that there is: six intervals."""

GRACE = 12.0
"""The longest that workers take to end when they are stopped."""

END, RESET = "end", "reset"
"""What a kernel reports of a connection."""


@dataclass(frozen=True)
class Faults:
    """How often something goes wrong, in one tick."""

    kills: float = 0.004
    freezes: float = 0.006
    thaws: float = 0.03
    cuts: float = 0.010
    heals: float = 0.02
    resets: float = 0.006
    failures: float = 0.004
    pauses: float = 0.002


USUAL = Faults()
RESETS_AND_PAUSES = Faults(
    kills=0.003, cuts=0.015, resets=0.03, failures=0.006, pauses=0.008, heals=0.02
)
WITHOUT_FAULTS = Faults(*[0.0] * 8)


@dataclass
class Rules:
    """What ``majority.py`` demands; a test takes one out."""

    before: bool = True
    """More than half of the agents of the attempt before are needed, too."""
    confirmed: bool = True
    """An attempt ends only when all that are here know of it."""
    reset_is_no_end: bool = True
    kills_before_claim: bool = True
    own_lease: bool = True
    members_lease: bool = True
    from_sending: bool = True
    one_lease: bool = True
    lease_of_both: bool = True
    """A lease needs more than half of the attempt before, too, while some may not know the new one."""
    waits_out: bool = True
    answers_after_pause: bool = True
    continues_with_lease: bool = True


class Link:
    """A connection of one agent to one coordinator."""

    def __init__(self, number: int, member: "Agent", coordinator: "Agent") -> None:
        self.number, self.member, self.coordinator = number, member, coordinator
        self.up: deque[tuple[float, Any]] = deque()
        self.down: deque[tuple[float, Any]] = deque()
        self.is_open = True
        """At the coordinator's side."""

    def sends(self, agent: "Agent", message: object) -> None:
        job = agent.job
        is_down = agent is self.coordinator
        seconds = job.dice.uniform(0.0, TICK if is_down else job.latency)
        (self.down if is_down else self.up).append((job.now + seconds, message))

    def received(self, agent: "Agent") -> Any:
        """Return the next thing that has come; None: nothing has."""
        job = agent.job
        queue = self.up if agent is self.coordinator else self.down
        joined = self.member is self.coordinator or job.are_linked(self.member, self.coordinator)
        if not queue or queue[0][0] > job.now or not joined:
            return None
        return queue.popleft()[1]


@dataclass
class Leading:
    """What a coordinator's process holds."""

    policy: Coordinator
    watch: SilenceWatch
    links: dict[int, Link] = field(default_factory=dict)
    callers: set[int] = field(default_factory=set)
    lease_ends: float = NEVER


class Agent:
    """One agent with its workers."""

    def __init__(self, job: "PartedJob", number: int) -> None:
        self.job, self.number = job, number
        self.fate = "lives"
        """Lives, frozen, paused, killed or over."""
        self.is_dark = False
        """Its host is lost, too: no kernel reports anything."""
        self.call_again = 0.0
        self.trains: tuple[int, int] | None = None
        """The attempt whose workers run, and whose coordinator began it."""
        self.are_stopped = False
        """A user has paused them, and no lease has come since."""
        self.ends_at = NEVER
        """When they will have ended, since they were stopped."""
        self.lease_until: float | None = None
        """The fork server's: None is no lease."""
        self.attempt = 0
        self.world: World | None = None
        self.has_reported = False
        self.known: messages.Succession | None = None
        self.since = 0
        self.lease = MemberLease()
        self.held: messages.NextAttempt | messages.WorldFormed | None = None
        self.link: Link | None = None
        self.search: Search | None = None
        self.lost: outcome.NodeLost | None = None
        self.heard_at = self.now
        self.called_at = self.now
        self.timer = HeartbeatTimer(RHYTHM, self.now)
        self.coordinator: Leading | None = None

    @property
    def now(self) -> float:
        """Return the time by the clock of this agent's machine."""
        return self.job.now + 1000.0 * (self.number + 1)

    @property
    def rules(self) -> Rules:
        return self.job.rules

    @property
    def hello(self) -> messages.Hello:
        return replace(self.job.hellos[self.number], rank=None)

    @property
    def runs(self) -> bool:
        return self.fate == "lives"

    # Workers.

    def workers_pass(self) -> None:
        """Let the fork server do what it does, whether the agent is frozen or not."""
        is_over = self.lease_until is not None and self.job.now >= self.lease_until
        demanded = self.rules.own_lease if self.coordinator else self.rules.members_lease
        if self.trains is not None and ((is_over and demanded) or self.job.now >= self.ends_at):
            self.trains = None

    def renews(self, seconds: float | None) -> None:
        self.lease_until = None if seconds is None else self.job.now + seconds
        self.are_stopped = False

    def begins(self, world: World) -> None:
        begun_by = self.number if self.link is None else self.link.coordinator.number
        self.world, self.attempt, self.trains = world, world.attempt, (world.attempt, begun_by)
        self.ends_at, self.has_reported = NEVER, False
        # A fork server whose lease is over kills what it has just started.
        self.workers_pass()
        self.job.check()

    # The agent's turn.

    def turn(self) -> None:
        if self.coordinator is not None:
            self.coordinates(self.coordinator)
        elif self.search is not None and self.link is None:
            self.seeks()
        elif self.link is not None:
            self.follows(self.link)
        self.reports()

    def reports(self) -> None:
        if self.trains is None and not self.has_reported and self.world is not None:
            self.has_reported = True
            # Those whom nobody has stopped have failed: the fork server has killed them.
            failed = [] if self.ends_at != NEVER else [self.failure()]
            self.tells(messages.Done(self.attempt, tuple(failed), None))

    def failure(self) -> messages.AgedFate:
        rank = self.world.first_rank if self.world else 0
        return messages.AgedFate(fate(rank, ending=outcome.Killed(9)), 0.0)

    def tells(self, message: Any) -> None:
        if self.coordinator is not None:
            event = job_events.MessageReceived(OWN, message, self.now)
            self.happens(self.coordinator, event)
        elif self.link is not None:
            self.link.sends(self, message)

    def follows(self, link: Link) -> None:
        while self.runs and self.link is link and (message := link.received(self)) is not None:
            if message in (END, RESET):
                self.loses(ended=message == END or not self.rules.reset_is_no_end)
                return
            if self.search is None and self.rules.members_lease:
                self.timer.heard_at = self.now
            else:
                self.timer.received(self.now)
            self.receives(message)
        if self.link is not link or not self.runs:
            return
        if self.timer.is_heartbeat_due(self.now):
            self.beats(link)
        if self.timer.is_lost(self.now):
            self.loses(ended=False)

    def beats(self, link: Link) -> None:
        link.sends(self, messages.Heartbeat(self.now, self.lease.seen))

    def receives(self, message: Any) -> None:
        match message:
            case messages.HeartbeatAnswer():
                to = message.to if self.rules.from_sending else self.now
                left = message.lease if self.rules.one_lease else RHYTHM.timeout
                self.lease.answered(replace(message, to=to, lease=left), self.now)
                if self.lease.ends > self.now:
                    self.job.shortest = min(
                        self.job.shortest, (self.lease_until or NEVER) - self.job.now
                    )
                    self.renews(self.lease.ends - self.now)
                    self.timer.leased(self.now, self.lease.ends)
                self.starts_held()
            case messages.Succession():
                if self.known is None:
                    self.since = message.attempt
                self.known = message
                self.tells(messages.SuccessionKnown(message.attempt))
            case messages.NextAttempt() | messages.WorldFormed():
                self.search = None
                self.held = message
                if isinstance(message, messages.WorldFormed) and message.world.attempt == 0:
                    self.lease.ends = max(self.lease.ends, self.called_at + RHYTHM.timeout)
                    self.timer.leased(self.now, self.lease.ends)
                    self.renews(self.lease.ends - self.now)
                if self.coordinator is None and self.lease.ends <= self.now and self.link:
                    self.beats(self.link)
                self.starts_held()
            case messages.Stop(attempt, at_once=at_once) if attempt == self.attempt:
                grace = 0.0 if at_once else self.job.dice.uniform(0.0, self.job.grace)
                self.ends_at = min(self.ends_at, self.job.now + grace)
            case messages.Verdict() | messages.Refused():
                self.is_over()
            case messages.Paused(paused):
                if paused:
                    self.timer.pause()
                    self.renews(None)
                else:
                    self.timer.resume(self.now)

    def starts_held(self) -> None:
        needed = self.coordinator is None and self.rules.members_lease
        if self.held is not None and self.trains is None:
            if needed and self.lease.ends <= self.now:
                return
            message, self.held = self.held, None
            self.begins(message.world)

    def is_over(self) -> None:
        """End: the fork server ends the workers, the kernel closes all connections."""
        self.fate, self.trains, self.coordinator = "over", None, None
        self.job.closes_all(self)

    # The loss of a coordinator.

    def loses(self, *, ended: bool) -> None:
        link, self.link, self.held = self.link, None, None
        self.heard_at = self.timer.heard_at
        if self.search is not None:
            if not ended:
                self.is_over()
            else:
                self.search.has_ended()
            return
        may_follow = not self.lease.was_paused or not self.rules.answers_after_pause
        if self.claim() is None or link is None or not may_follow:
            self.is_over()
            return
        link.sends(self, messages.LeftCoordinator())
        if self.rules.kills_before_claim:
            self.trains, self.has_reported = None, True
        known = self.known
        assert known is not None
        self.lost = outcome.NodeLost(known.node_rank, known.host)
        ended_ranks = {known.node_rank} if ended else set()
        self.search = Search(
            self.hello.identity, known.successors, self.now, RHYTHM.timeout, ended_ranks
        )

    def claim(self) -> messages.Claim | None:
        known, world = self.known, self.world
        if known is None or not known.successors or (world and world.attempt > known.attempt):
            return None
        rank = world.node_rank if world is not None and world.attempt == known.attempt else None
        age = self.now - self.heard_at
        return messages.Claim(
            known.attempt, known.coordinator, rank, self.since, world is not None, age
        )

    def seeks(self) -> None:
        search = self.search
        assert search is not None
        search.time_passed(self.now)
        if search.gathers:
            self.gathers(search)
        elif search.successor is None:
            self.is_over()
        else:
            self.calls(search, search.successor)

    def gathers(self, search: Search) -> None:
        known = self.known
        assert known is not None
        assert self.lost is not None
        policy = Coordinator.succeeding(
            replace(self.job.terms, nodes=len(self.job.agents)),
            replace(self.hello, claim=self.claim()),
            known,
            self.lost,
            ended=search.ended,
            at=self.now,
            until=search.ends,
        )
        if not self.rules.waits_out:
            policy.majority.lost_leases_end = 0.0
        self.coordinator = Leading(policy, SilenceWatch(self.job.patience, self.now))

    def calls(self, search: Search, successor: messages.Successor) -> None:
        other = self.job.agent_of(successor.identity)
        if not self.job.are_linked(self, other):
            return
        if other.fate in {"killed", "over"}:
            if not other.is_dark:
                search.has_ended()
        elif other.runs and other.coordinator is not None and self.job.now >= self.call_again:
            self.call_again = self.job.now + TICK
            self.link = self.job.connects(self, other)
            self.timer, self.lease = HeartbeatTimer(RHYTHM, self.now), MemberLease()
            self.link.sends(self, replace(self.hello, claim=self.claim()))

    # The coordinator, as ``coordinator_server`` runs it.

    def coordinates(self, own: Leading) -> None:
        for number, link in tuple(own.links.items()):
            while link.is_open and (message := link.received(self)) is not None:
                self.takes(own, number, message)
                if self.coordinator is not own:
                    return
        for number in own.watch.lost(self.now):
            self.happens(own, job_events.MemberSilent(number, self.now))
        if self.coordinator is own and self.now >= own.policy.due:
            self.happens(own, job_events.TimePassed(self.now))

    def takes(self, own: Leading, number: int, message: Any) -> None:
        majority, now = own.policy.majority, self.now
        if message in (END, RESET):
            self.drops(own, number, was_reset=message == RESET)
            return
        if number not in own.callers:
            own.watch.received(number, now)
        match message:
            case messages.Hello():
                own.callers.discard(number)
                own.watch.received(number, now)
                majority.confirmed(number, now)
                majority.give(number, now, own.lease_ends)
                address = f"10.0.0.{own.links[number].member.number}"
                event = job_events.HelloReceived(number, address, message, now)
                self.happens(own, event)
            case messages.Heartbeat(at, seen):
                majority.confirmed(number, min(seen, now))
                self.renews_own(own)
                is_lost = own.policy.is_lost(number)
                left = 0.0 if is_lost else majority.give(number, now, own.lease_ends)
                own.links[number].sends(self, messages.HeartbeatAnswer(now, at, left))
            case messages.Paused(paused):
                if paused:
                    own.watch.forget(number)
                majority.confirmed(number, now)
                self.happens(own, job_events.MessageReceived(number, message, now))
            case _:
                self.happens(own, job_events.MessageReceived(number, message, now))

    def drops(self, own: Leading, number: int, *, was_reset: bool, by_us: bool = False) -> None:
        link = own.links[number]
        link.is_open = False
        own.watch.forget(number)
        if not was_reset:
            link.sends(self, END)
        lives = by_us or (was_reset and self.rules.reset_is_no_end)
        gone = job_events.MemberGone(number, "", self.now, has_ended=not lives)
        self.happens(own, gone)
        if self.coordinator is own:
            self.renews_own(own)

    def renews_own(self, own: Leading) -> None:
        majority = own.policy.majority
        if not self.rules.lease_of_both:
            majority = copy(majority)
            majority.unaware = set()
        own.lease_ends = majority.lease_ends
        if own.lease_ends > self.now:
            left = None if own.lease_ends == NEVER else own.lease_ends - self.now
            if self.lease_until is not None and self.trains is not None:
                self.job.shortest = min(self.job.shortest, self.lease_until - self.job.now)
            self.renews(left)

    def happens(self, own: Leading, event: job_events.CoordinatorEvent) -> None:
        before, majority = own.policy.state, own.policy.majority
        actions = own.policy.happens(event)
        if isinstance(own.policy.state, Running) and own.policy.state is not before:
            self.job.attempts += isinstance(before, Reforming)
            self.renews_own(own)
        if not self.rules.waits_out:
            majority.lost_leases_end = 0.0
        if not self.rules.before:
            majority.of_attempt_before = Quorum()
        if not self.rules.confirmed:
            majority.unaware = set()
        for action in actions:
            self.performs(own, action)
            if self.coordinator is not own:
                return

    def performs(self, own: Leading, action: job_events.Action) -> None:
        match action:
            case job_events.Send(numbers, message):
                for number in numbers:
                    if number == OWN:
                        self.receives(message)
                    elif number in own.links and own.links[number].is_open:
                        own.links[number].sends(self, message)
            case job_events.Disconnect(numbers):
                for number in numbers:
                    if number in own.links and own.links[number].is_open:
                        self.drops(own, number, was_reset=False, by_us=True)
            case job_events.PreparePort():
                self.happens(own, job_events.PortReady(29500, self.now))


class PartedJob:
    """A job of two to seven nodes, and what happens to it; the same for the same seed."""

    def __init__(
        self,
        seed: int,
        rules: Rules | None = None,
        faults: Faults | None = None,
        latency: float = TICK,
        nodes: int = 0,
    ) -> None:
        """Begin; ``nodes``: an elastic job of so many. 0: any, perhaps with spares."""
        self.dice = random.Random(seed)
        self.rules = rules or Rules()
        self.faults = faults or self.dice.choice([USUAL, RESETS_AND_PAUSES])
        self.latency = latency
        self.now = 100.0
        self.attempts = 0
        """Attempts that have followed another."""
        self.shortest = NEVER
        """The least that a lease had to run when it was renewed, in seconds."""
        self.rate = self.dice.choice([0.5, 1, 2])
        self.grace = self.dice.choice([0.5, GRACE])
        spares = 0
        if not nodes:
            nodes = self.dice.randint(2, 7)
            spares = self.dice.choice([0, 0, self.dice.randint(0, nodes // 2)])
        elastic = {} if spares else {"fewest_nodes": 1, "nnodes": nodes + 1}
        self.terms = with_job(
            TERMS,
            nodes,
            rhythm=RHYTHM,
            spares=spares,
            max_restarts=100,
            keeps_joining_port=True,
            **elastic,
        )
        self.patience = self.terms.patience
        self.hellos = {
            number: hello(
                number, nodes, rank=number, standby=messages.Standby(1000 + number, 2000 + number)
            )
            for number in range(nodes)
        }
        self.cut: set[frozenset[int]] = set()
        self.newest = 0
        self.agents = [Agent(self, number) for number in range(nodes)]
        self.links: list[Link] = []
        first = self.agents[0]
        policy = Coordinator(self.terms, self.hellos[0], 29500, first.now, has_token=True)
        first.coordinator = Leading(policy, SilenceWatch(self.patience, first.now))
        for agent in self.agents[1:]:
            agent.link = self.connects(agent, first)
            agent.link.sends(agent, self.hellos[agent.number])

    def agent_of(self, identity: str) -> Agent:
        return self.agents[int(identity.removeprefix("agent "))]

    def are_linked(self, one: Agent, other: Agent) -> bool:
        return frozenset((one.number, other.number)) not in self.cut

    def connects(self, member: Agent, coordinator: Agent) -> Link:
        own = coordinator.coordinator
        assert own is not None
        self.newest += 1
        link = Link(self.newest, member, coordinator)
        own.links[link.number] = link
        own.callers.add(link.number)
        event = job_events.CallerConnected(coordinator.now)
        coordinator.happens(own, event)
        self.links.append(link)
        return link

    def calms(self) -> None:
        """Let all reach each other and continue; from now on nothing goes wrong."""
        self.faults = WITHOUT_FAULTS
        self.cut.clear()
        for agent in self.agents:
            if agent.fate == "frozen":
                agent.fate = "lives"
            elif agent.fate == "paused":
                self._pauses(agent)

    def left(self) -> set[int]:
        """Return the nodes that have not ended, which are all in one attempt, or wait for a place."""
        living = [agent for agent in self.agents if agent.fate == "lives"]
        leaders = [agent for agent in living if agent.coordinator is not None]
        followed = [agent.link.coordinator for agent in living if agent.link is not None]
        assert len(leaders) == bool(living), "all follow one coordinator"
        assert {*leaders, *followed} == set(leaders), "all follow one coordinator"
        return {agent.number for agent in living}

    def trained(self) -> set[int]:
        return {agent.number for agent in self.agents if agent.trains}

    def closes_all(self, agent: Agent) -> None:
        """Let the kernel of its host close all connections of an agent that has ended."""
        for link in self.links:
            if link.is_open and agent in (link.member, link.coordinator):
                link.sends(agent, END)
                if agent is link.coordinator:
                    link.is_open = False

    def runs(self, seconds: float) -> None:
        """Let so much time pass, or until all have ended."""
        until = self.now + seconds
        while self.now < until and any(it.fate not in {"killed", "over"} for it in self.agents):
            self.now += TICK
            self.fails()
            for agent in self.agents:
                agent.workers_pass()
            for agent in self.dice.sample(self.agents, len(self.agents)):
                if agent.runs:
                    agent.turn()
            self.check()

    def check(self) -> None:
        """No two attempts train at once."""
        trained = {it.trains for it in self.agents if it.trains and not it.are_stopped}
        assert len(trained) <= 1, f"{sorted(trained)} train at once at {self.now:g}"

    def fails(self) -> None:
        """Let the outside world do something, or nothing."""
        agent = self.dice.choice(self.agents)
        roll = self.dice.random() / self.rate
        for name, chance in asdict(self.faults).items():
            if roll < chance:
                getattr(self, f"_{name}")(agent)
                return
            roll -= chance

    def _kills(self, agent: Agent) -> None:
        if agent.fate in {"killed", "over"}:
            return
        agent.fate, agent.trains = "killed", None
        agent.coordinator = None
        roll = self.dice.random()
        if roll < 0.2:
            agent.is_dark = True
        elif roll < 0.4:
            # What it has not read makes its kernel reset its connections.
            self.resets_all(agent)
        else:
            self.closes_all(agent)

    def resets_all(self, agent: Agent) -> None:
        for link in self.links:
            if link.is_open and agent in (link.member, link.coordinator):
                link.sends(agent, RESET)

    def _freezes(self, agent: Agent) -> None:
        if agent.fate == "lives":
            agent.fate = "frozen"

    def _thaws(self, agent: Agent) -> None:
        for each in self.agents:
            if each.fate == "frozen" and self.dice.random() < 0.5:
                each.fate = "lives"
            elif each.fate == "paused" and self.dice.random() < 0.5:
                self._pauses(each)

    def splits(self, *parts: Collection[int]) -> None:
        """Cut the nodes of each part off from those of the others."""
        pairs = {
            frozenset((it.number, other.number)) for it in self.agents for other in self.agents
        }
        self.cut |= {pair for pair in pairs if not any(pair <= set(part) for part in parts)}

    def kills(self, number: int) -> None:
        """Kill an agent; its host's kernel reports it."""
        agent = self.agents[number]
        agent.fate, agent.trains, agent.coordinator = "killed", None, None
        self.closes_all(agent)

    def _cuts(self, agent: Agent) -> None:
        side = {it.number for it in self.agents if self.dice.random() < 0.5}
        self.splits(side, {it.number for it in self.agents} - side)

    def _heals(self, agent: Agent) -> None:
        self.cut.clear()

    def _resets(self, agent: Agent) -> None:
        """Let something between two nodes reset their connection: both learn of it at once."""
        link = agent.link
        if link is not None and link.is_open:
            link.up.append((self.now, RESET))
            link.down.appendleft((self.now, RESET))

    def _failures(self, agent: Agent) -> None:
        if agent.runs and agent.trains is not None and agent.ends_at == NEVER:
            agent.ends_at = self.now
            failed = agent.failure()
            agent.tells(messages.FirstFailure(agent.attempt, failed.fate, 0.0))

    def _pauses(self, agent: Agent) -> None:
        """Let a user pause a member, or continue it."""
        if agent.coordinator is not None or agent.link is None:
            return
        if agent.runs and agent.search is None:
            agent.tells(messages.Paused(paused=True))
            agent.fate = "paused"
            agent.renews(None)
            agent.are_stopped = True
        elif agent.fate == "paused":
            agent.fate = "lives"
            agent.are_stopped = self.rules.continues_with_lease
            agent.lease.was_paused = True
            agent.tells(messages.Paused(paused=False))
