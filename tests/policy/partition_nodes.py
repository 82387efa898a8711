"""Nodes without processes, as the product's classes see them: for ``partition_job``."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from clusterrun.bounds import LocalRank
from clusterrun.errors import LauncherError
from clusterrun.loop import NEVER, Loop, Timer
from clusterrun.network.joining_node import JoinContext, JoiningNode
from clusterrun.network.membership import Membership
from clusterrun.network.server import CoordinatorServer
from clusterrun.planning.plan import World
from clusterrun.policy import actions, events, messages, outcome
from clusterrun.policy.leases import FORK_SERVER_STOP_INTERVALS
from clusterrun.policy.node import Attempt
from clusterrun.policy.results import results_of
from clusterrun.policy.waiting import WaitingNode
from clusterrun.signals import SignalReceived
from msgspec.structs import replace

from tests.plans import plan_of
from tests.policy.partition_wires import LISTENER, OPENED, End, ModelPort

if TYPE_CHECKING:
    from tests.policy.partition_job import PartitionJob

FORK_SERVER_ANSWERS = 5.0
"""Seconds after which an agent kills a fork server that does not answer."""

MAX_STEPS = 200
"""Of one turn of a loop: with more, it spins."""

FORK_SERVER_KILL_INTERVALS = 4
"""The descriptor of each agent's connection to its fork server."""

RANK = LocalRank(0)
"""The one worker of each node."""


class Broken(AssertionError):
    """What must never happen has happened."""


class Host:
    """A machine: its clocks, and how far it reaches node 0's."""

    def __init__(self, job: "PartitionJob", number: int) -> None:
        self._job = job
        dice = job.dice
        self.name = f"n{number}"
        self.drift = 1.0 + dice.uniform(-1e-4, 1e-4)
        self._offset = dice.uniform(1.0, 1e5)
        self._slept = 0.0
        self._asleep_since: float | None = None
        self.is_dark = False
        """It has lost its power."""
        self.up_cuts = self.down_cuts = 0
        """Where what it sends to node 0 is lost, and what node 0 sends to it."""

    @property
    def is_up(self) -> bool:
        return not self.is_dark and self._asleep_since is None

    @property
    def has_slept(self) -> bool:
        return self._slept > 0.0

    def boot_time(self) -> float:
        """Return the time since its start, in which it slept included."""
        return self._offset + self._job.now * self.drift

    def monotonic(self) -> float:
        since = self._asleep_since
        asleep = 0.0 if since is None else self._job.now - since
        return 500.0 + (self._job.now - self._slept - asleep) * self.drift

    def sleeps(self) -> None:
        if self._asleep_since is None:
            self._asleep_since = self._job.now

    def wakes(self) -> None:
        if self._asleep_since is not None:
            self._slept += self._job.now - self._asleep_since
            self._asleep_since = None


class ReadinessProbe:
    """In place of epoll: what an agent can read now."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._watched = set[int]()

    def register(self, descriptor: int, _mask: int) -> None:
        self._watched.add(descriptor)

    def modify(self, descriptor: int, _mask: int) -> None:
        self._watched.add(descriptor)

    def unregister(self, descriptor: int) -> None:
        self._watched.discard(descriptor)

    def poll(self, _seconds: float | None, _most: int) -> list[tuple[int, int]]:
        self._agent.loop.reads_old_time = True
        return [(it, 1) for it in self._watched if self._agent.can_read(it)]

    @property
    def has_some(self) -> bool:
        return any(self._agent.can_read(it) for it in self._watched)


class ModelLoop(Loop[events.Event]):
    """The product's loop, which never waits."""

    def __init__(self, agent: "Agent") -> None:
        super().__init__(self._time)
        self._epoll.close()
        self._ready = ReadinessProbe(agent)
        self._epoll = cast("Any", self._ready)
        self.agent = agent
        self.server: CoordinatorServer | None = None
        self.stopped_at: float | None = None
        """The agent was stopped in the middle of a turn, whose time it had read before."""
        self.reads_old_time = False

    def _time(self) -> float:
        old, self.reads_old_time = self.reads_old_time, False
        if old and self.stopped_at is not None:
            at, self.stopped_at = self.stopped_at, None
            return at
        return self.agent.host.monotonic()

    def add_timer(self, timer: Timer[events.Event]) -> None:
        super().add_timer(timer)
        if isinstance(timer, CoordinatorServer):
            self.server = timer

    @property
    def due(self) -> float:
        moments = (moment for moment, _ in self._scheduled.values())
        return min([*moments, *(each.due for each in self._timers)], default=NEVER)

    def step(self) -> Iterator[events.Event]:
        """Serve what is ready and due now; yield what has happened."""
        if not self._events and not self._take_due(self.clock()):
            self.turn(self.clock())
        while self._events:
            yield self._events.popleft()

    @property
    def has_more(self) -> bool:
        return self._ready.has_some or self.due <= self.agent.host.monotonic()


@dataclass(eq=False)
class Stop:
    """A reason for which processes are stopped."""

    with_worker: bool = False
    """The workers of the node are, too."""
    is_long: bool = False
    """Longer than agents wait for their fork servers."""


PAUSE = Stop()
"""A user's, of an agent."""


@dataclass
class Worker:
    """The one of a node, until it ends."""

    attempt: int
    number: int
    is_stopping: bool = False


class ForkServer:
    """Starts and ends the worker of a node, and kills it when its lease is over."""

    def __init__(self, agent: "Agent") -> None:
        self._agent, self._job = agent, agent.job
        self.worker: Worker | None = None
        self.stops = set[Stop]()
        self.is_dead = False
        self._lease: float | None = None
        self._looks_at = NEVER
        self._inbox = deque[Callable[[], object]]()
        self._held: End | None = None

    def clock(self) -> float:
        return self._agent.host.boot_time()

    @property
    def is_stopped_with_worker(self) -> bool:
        return any(each.with_worker for each in self.stops)

    @property
    def is_stopped_long(self) -> bool:
        return any(each.is_long for each in self.stops)

    @property
    def is_over(self) -> bool:
        return self._lease is not None and self.clock() >= self._lease

    @property
    def lease_left(self) -> float:
        """Seconds; without a lease, NEVER."""
        return NEVER if self._lease is None else self._lease - self.clock()

    def asks(self, what: Callable[[], object]) -> None:
        """Have this done, once it is not stopped."""
        if not self.is_dead:
            self._inbox.append(what)
            self.acts()

    def acts(self) -> None:
        """Do what can be done, if it is not stopped."""
        while self._inbox and not self.stops and not self.is_dead:
            self._inbox.popleft()()
        self.check_lease()

    def renews(self, until: float | None) -> None:
        self._lease = until
        self._check_later()

    def holds(self, end: End) -> None:
        self._held, end.is_held = end, True

    def starts(self, attempt: int) -> None:
        if self.is_over:
            # As if it had been started, and killed.
            self._reports_end(outcome.Killed(9), by_lease=True)
            return
        self.worker = Worker(attempt, next(self._job.numbers))
        self._job.check()
        started = partial(events.WorkerStarted, RANK, 100, "")
        self._agent.receives_event(started)

    def signals(self, number: int) -> None:
        worker = self.worker
        if worker is None:
            return
        if number == 9:
            self.ends_worker(outcome.Killed(9))
        elif not worker.is_stopping:
            worker.is_stopping = True
            seconds = self._job.dice.uniform(0.0, self._job.grace)
            end = partial(self.ends_worker, outcome.Killed(15), "", worker.number)
            self._job.later(seconds, end)

    def cleans_up(self) -> None:
        self.ends_worker(outcome.Killed(9))
        self._agent.receives_event(partial(events.CleanedUp, ()))

    def check_lease(self) -> None:
        if self.worker is not None and self.is_over and not self.stops and not self.is_dead:
            self.ends_worker(outcome.Killed(9), by_lease=True)

    def _check_later(self) -> None:
        if self._lease is None:
            return
        left = (self._lease - self.clock()) / self._agent.host.drift + 1e-6
        at = self._job.now + max(0.0, left)
        if at < self._looks_at or self._looks_at < self._job.now:
            self._looks_at = at
            self._job.at(at, self._time_passed)

    def _time_passed(self) -> None:
        if self._job.now >= self._looks_at:
            self._looks_at = NEVER
            if not self.is_over:
                self._check_later()
        self.check_lease()
        if self.is_over and self.stops:
            patience = FORK_SERVER_STOP_INTERVALS * self._job.settings.rhythm.interval
            self._job.later(patience, self._is_past_lease)

    def _is_past_lease(self) -> None:
        """Have the agent, if it runs, end this process, which is stopped though the lease is over."""
        if self.is_over and self.stops and self.worker is not None and self._agent.runs:
            self._job.loses_helper(self._agent, "fork server")

    def ends_worker(
        self,
        exit_status: outcome.ExitStatus,
        tail: str = "",
        number: int | None = None,
        *,
        by_lease: bool = False,
    ) -> None:
        """Let the worker end, if it is still the one with this number."""
        worker = self.worker
        if worker is None or number not in {None, worker.number}:
            return
        self.worker = None
        self._agent.tail = tail
        if not worker.is_stopping:
            self._job.peer_has_gone(worker.attempt)
        if not self.is_dead:
            self._reports_end(exit_status, by_lease=by_lease)

    def _reports_end(self, exit_status: outcome.ExitStatus, *, by_lease: bool) -> None:
        ended = partial(events.WorkerEnded, RANK, exit_status, by_lease=by_lease)
        self.asks(partial(self._agent.receives_event, ended))

    def dies(self) -> None:
        """End the worker with this process: the connection that it holds ends last."""
        if not self.is_dead:
            self.is_dead = True
            self.ends_worker(outcome.Killed(9))
            if self._held is not None:
                self._held.leaves_fork_server()


class Agent:
    """The process of one node that takes part in the job."""

    def __init__(self, job: "PartitionJob", number: int) -> None:
        self.job, self.number = job, number
        self.host = Host(job, number)
        self.ends: dict[int, End] = {}
        self.port = ModelPort()
        self.fork_server = ForkServer(self)
        self.stops = set[Stop]()
        self.is_gone = False
        """It has ended, or was killed."""
        self.tail = ""
        self.reasons: list[outcome.Reason] = []
        """Why attempts have ended, as it was told."""
        self.notices: list[str] = []
        self.attempt: Attempt | None = None
        self.waiting = WaitingNode(None)
        self._mail = deque[Callable[..., events.Event]]()
        self._is_in_turn = self._is_paused = False
        self._wakes_at = NEVER
        self.loop = ModelLoop(self)
        self.loop.watch(FORK_SERVER_KILL_INTERVALS, self._read_fork_server)
        self.membership: Membership | None = None

    @property
    def runs(self) -> bool:
        return not (self.stops or self.is_gone)

    def begins(self) -> None:
        """Begin to join."""
        outside = JoinContext(
            notice=self.notices.append,
            renew_lease=self._renews_lease,
            hold_connection=self._holds,
            lease_clock=self.host.boot_time,
            interfaces=dict,
            resolves_for_others=lambda *_: True,
        )
        node = JoiningNode(self.job.settings, self.job.hello(self.number), b"secret", outside)
        self.membership = Membership(node, self.loop)
        if OPENED:
            self.port = OPENED.pop()
        self.wake()

    def can_read(self, descriptor: int) -> bool:
        if descriptor == LISTENER:
            return bool(self.port.callers)
        if descriptor == FORK_SERVER_KILL_INTERVALS:
            return bool(self._mail)
        end = self.ends.get(descriptor)
        return end is not None and end.is_readable

    # Its turns.

    def wake(self) -> None:
        """Let it do what can be done now, if it runs."""
        if not self.runs or self._is_in_turn:
            return
        self._is_in_turn = True
        try:
            self._turn()
        except LauncherError as error:
            self.notices.append(str(error))
            self.leaves()
        finally:
            self._is_in_turn = False
        self._wake_later()

    def _turn(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._sends(messages.Paused(paused=False))
        for _ in range(MAX_STEPS):
            for event in self.loop.step():
                self._handle_event(event)
                if not self.runs:
                    return
            if not self.loop.has_more:
                return
        raise Broken(f"the agent of node {self.number} spins")

    def _wake_later(self) -> None:
        due = self.loop.due
        if self.is_gone or due == NEVER:
            return
        seconds = (due - self.host.monotonic()) / self.host.drift + 1e-6
        at = self.job.now + max(0.0, seconds)
        if at < self._wakes_at or self._wakes_at < self.job.now:
            self._wakes_at = at
            self.job.at(at, self._time_passed)

    def _time_passed(self) -> None:
        if self.job.now >= self._wakes_at:
            self._wakes_at = NEVER
        self.wake()

    def _handle_event(self, event: events.Event) -> None:
        if self.attempt is None:
            self._handle_waiting_event(event)
            return
        match event:
            case events.CoordinatorSent(messages.Verdict(reason) | messages.NextAttempt(_, reason)):
                self.reasons.append(reason)
            case _:
                pass
        for action in self.attempt.handle(event):
            self._performs(action, self.attempt)

    def _handle_waiting_event(self, event: events.Event) -> None:
        waiting = self.waiting
        match waiting.handle(event):
            case actions.SendToCoordinator(message):
                self._sends(message)
            case _:
                pass
        match waiting.end:
            case None:
                pass
            case World() as world:
                self.loop.add_first(waiting.kept)
                self._begins_attempt(world)
            case _:
                self.leaves()

    def _begins_attempt(self, world: World) -> None:
        plan = replace(plan_of(1, first_rank=world.first_rank), world=world, host=self.host.name)
        self.attempt = Attempt(self.job.settings.job, plan, foreground=False)
        self.fork_server.asks(partial(self.fork_server.starts, world.attempt))

    def _performs(self, action: actions.Action, attempt: Attempt) -> None:
        ask, now = self.fork_server.asks, self.loop.clock()
        match action:
            case actions.SendToCoordinator(message):
                self._sends(message)
            case actions.ReportFailure(rank):
                [result] = [it for it in self._results(attempt) if it.local_rank == rank]
                at = self._with.node_zero_time(now - attempt.ended[rank].failed_at)
                self._sends(messages.FirstFailure(attempt.number, result, at))
            case actions.ReportEnd():
                results = (
                    messages.DatedResult(it, self._with.node_zero_time(now - it.clock))
                    for it in self._results(attempt)
                )
                cause, lease_expired = attempt.external_cause, attempt.lease_expired
                self._sends(messages.Done(attempt.number, tuple(results), cause, lease_expired))
            case actions.SetDeadline(seconds):
                self.loop.at(events.DeadlinePassed, now + seconds, events.DeadlinePassed)
            case actions.SignalWorkers(_, number):
                ask(partial(self.fork_server.signals, number))
            case actions.CleanUp():
                ask(self.fork_server.cleans_up)
            case actions.CollectOutput(rank):
                self.loop.add([events.OutputEnded(rank, self.tail, "", now)])
            case actions.AwaitLeftovers():
                self.loop.add([events.NoLeftovers(now)])
            case actions.PrintNotice(text):
                self.notices.append(text)
            case actions.Pause():
                self._sends(messages.Paused(paused=True))
                self.stops.add(PAUSE)
                self._is_paused = True
            case actions.Restart(world):
                self.loop.keep(partial(_concerns, world.attempt))
                self._begins_attempt(world)
            case actions.Rejoin():
                self.loop.keep(partial(_concerns, NEVER))
                self.attempt, self.waiting = None, WaitingNode(None)
                self._with.rejoin()
            case actions.Finish():
                self.leaves()
            case _:
                pass

    @property
    def _with(self) -> Membership:
        assert self.membership is not None
        return self.membership

    def _results(self, attempt: Attempt) -> tuple[outcome.WorkerResult, ...]:
        return results_of(attempt, {}, {}, 0.0)

    def _sends(self, message: messages.AgentMessage) -> None:
        self.loop.add_first(self._with.send(message))

    @property
    def trains(self) -> int | None:
        """The attempt whose worker runs."""
        worker = self.fork_server.worker
        return None if worker is None else worker.attempt

    def continues(self) -> None:
        """Go on after a pause."""
        self.stops.discard(PAUSE)
        self.wake()

    # Its fork server.

    def receives_event(self, event: Callable[..., events.Event]) -> None:
        """Have an event of the fork server's, which takes the time."""
        self._mail.append(event)
        self.wake()

    def _read_fork_server(self, now: float) -> Iterable[events.Event]:
        while self._mail:
            yield self._mail.popleft()(at=now)

    def _renews_lease(self, until: float | None) -> None:
        self.fork_server.asks(partial(self.fork_server.renews, until))

    def _holds(self, descriptor: int) -> None:
        self.fork_server.asks(partial(self.fork_server.holds, self.ends[descriptor]))

    def misses_fork_server(self) -> None:
        """Kill the fork server if it does not answer for too long."""
        at = self.host.monotonic() + FORK_SERVER_ANSWERS
        self.loop.at("fork server", at, self._fork_server_is_silent)
        self._wake_later()

    def _fork_server_is_silent(self, now: float) -> events.Event:
        if not self.fork_server.stops:
            # Nothing has happened.
            return events.ForkServerReady("", (), now)
        self.fork_server.dies()
        return events.HelperLost("fork server", "has not answered for 5 s", 9, now)

    # Its end.

    def leaves(self) -> None:
        """End in order: nothing runs here any more."""
        if not self.is_gone:
            self.fork_server.dies()
            self._with.leave()
            self._disconnected()

    def is_killed(self) -> None:
        self._disconnected()
        self.fork_server.asks(self.fork_server.dies)

    def _disconnected(self) -> None:
        self.is_gone = True
        self.port.close()
        for end in self.port.callers:
            end.leaves_agent()
        for end in tuple(self.ends.values()):
            end.leaves_agent()


def _concerns(attempt: float, event: events.Event) -> bool:
    """Return whether an event is of interest in the next attempt, too, as the agent's loop has it."""
    match event:
        case events.CoordinatorSent(messages.Stop(of_attempt)):
            return of_attempt == attempt
        case events.CoordinatorSent(messages.NextAttempt()):
            return False
        case _:
            return isinstance(
                event,
                events.CoordinatorSent
                | events.CoordinatorLost
                | events.HelperLost
                | SignalReceived,
            )
