"""Fakes of what a supervisor works with: a clock, workers, signals, peers and attempts."""

import socket
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress

from tests.plans import job, plan_of, world
from tests.run.clock import FakeClock
from tests.run.door import (
    NEVER,
    AgentMessage,
    Attempt,
    Done,
    End,
    EndedExternally,
    Event,
    Evidence,
    FirstFailure,
    LocalRank,
    LookEvent,
    LookOrdered,
    Loop,
    NextAttempt,
    NodePlan,
    Outcome,
    Rank,
    Reason,
    StacksToPrint,
    Stop,
    Succeeded,
    WorkersAction,
    World,
    actions,
)
from tests.run.happenings import printed, sent, swept, verdict

Call = tuple[object, ...]


class FakeLoop(Loop[Event]):
    """A loop in which nothing is waited for: time passes as the sources say."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock.monotonic)
        self._fake_clock = clock
        self._sources: list[FakeSource] = []

    def fake(self, rank: Rank = Rank.KNOWN) -> "FakeSource":
        """Return a source that a test fills."""
        source = FakeSource()
        self._sources.append(source)
        self.watch(source.fileno(), source.events, rank)
        return source

    def turn(self, until: float = NEVER) -> None:
        """Let the time of waiting pass, and serve what has been reported."""
        for source in self._sources:
            self._fake_clock.now += source.take_delay()
        super().turn(until)

    def close(self) -> None:
        for source in self._sources:
            self.forget(source.fileno())
            source.close()
        super().close()


class FakeSource:
    """An event source that a test fills."""

    def __init__(self) -> None:
        self._delay = 0.0
        self._reading_end, self._writing_end = socket.socketpair()
        self._reading_end.settimeout(0)
        self._events: deque[Event] = deque()

    def report(self, *reported: Event | float) -> None:
        """Report these events, all at once; a number is the seconds until then."""
        self._events += [event for event in reported if not isinstance(event, float)]
        self._delay += sum(seconds for seconds in reported if isinstance(seconds, float))
        self._writing_end.send(b"x")

    def fileno(self) -> int:
        """Return the end to wait on."""
        return self._reading_end.fileno()

    def take_delay(self) -> float:
        """Return the seconds until the events are reported, once."""
        delay, self._delay = self._delay, 0.0
        return delay

    def events(self, now: float) -> Iterable[Event]:
        """Return the reported events."""
        with suppress(BlockingIOError):
            self._reading_end.recv(4096)
        reported = list(self._events)
        self._events.clear()
        return reported

    def close(self) -> None:
        self._reading_end.close()
        self._writing_end.close()


class FakeWorkers:
    """Workers that record calls, and answer as set.

    ``answers`` has, by the name of a method, the answer to its first call, its second, and so
    on: events, and numbers for the seconds until they are reported. Without an answer, output
    ends and cleanups succeed.
    """

    def __init__(self, loop: FakeLoop, **answers: list[list[Event | float]]) -> None:
        """Take the answers."""
        self.calls: list[Call] = []
        self.server, self.relay = loop.fake(), loop.fake()
        self._answers = {name: deque(events) for name, events in answers.items()}

    def start(self, plan: NodePlan) -> None:
        self._called("start", plan.world.attempt)

    def start_held(self) -> None:
        self._called("start_held")

    def perform(self, action: WorkersAction) -> None:
        """Record it by the name of its type, with its fields."""
        match action:
            case actions.SignalWorkers(ranks, number, group):
                self._called("signal", sorted(ranks), number, "group" if group else "worker")
            case actions.ForwardSignal(number):
                self._called("forward", number)
            case actions.CollectOutput(local_rank):
                # The relay answers later, as the fork server does.
                self._called("collect", local_rank, usually=printed(local_rank))
            case actions.CleanUp():
                self._called("sweep", usually=swept())
            case actions.WatchActivity():
                self._called("watch_activity")
            case actions.ExpectNoStacks(ranks):
                self._called("lack_stacks", tuple(ranks))
            case actions.PrintStacks(text):
                self._called("show_stacks", text)
            case actions.HideInterrupts():
                self._called("interrupted")
            case actions.PrintNotice(text):
                self._called("say", f"clusterrun: {text}")
            case actions.Resume():
                self._called("resume")
            case actions.HoldRanks():
                self._called("hold_ranks")
            case actions.ReleaseRanks(mark):
                self._called("release_ranks", mark)
            case actions.LetRanksLeave():
                self._called("let_ranks_leave")

    def reap(self) -> None:
        self._called("reap")

    def pause(self) -> None:
        self._called("pause")

    def logs(self, plan: NodePlan) -> Mapping[LocalRank, str]:
        return {worker.local_rank: f"rank-{worker.rank}.err" for worker in plan.workers}

    def say(self, text: str) -> None:
        """Record a notice of the one node."""
        self._called("say", text)

    def called(self, name: str) -> list[Call]:
        return [call for call in self.calls if call[0] == name]

    def _called(self, name: str, *arguments: object, usually: Event | None = None) -> None:
        self.calls.append((name, *arguments))
        answers = self._answers.get(name)
        reported = answers.popleft() if answers else [] if usually is None else [usually]
        if reported:
            self.server.report(*reported)


class FakePeers:
    """Other nodes, which record messages, and answer as set."""

    def __init__(self, loop: FakeLoop) -> None:
        self.calls: list[Call] = []
        self.coordinator = loop.fake()
        self.verdict: Reason = Succeeded()
        self.again = 0
        """How many attempts are followed by another."""
        self.stop_again = False
        """Whether that other one is stopped at once."""
        self.over_again = False
        """Whether the job ends before this node has begun that other one."""

    def send(self, message: AgentMessage) -> tuple[()]:
        """Note the message; reach the verdict once all workers have ended."""
        match message:
            case FirstFailure(_, fate, age):
                self.calls.append(("first_failure", fate.rank, fate.ending, age))
            case EndedExternally(_, external_cause):
                self.calls.append(("ended_externally", external_cause))
            case Done(_, fates, external_cause):
                ages = [(aged.fate.rank, aged.age) for aged in fates]
                self.calls.append(("done", ages, external_cause))
                self._answer()
        return ()

    def _answer(self) -> None:
        if self.again == 0:
            self.coordinator.report(verdict(self.verdict))
            return
        self.again -= 1
        again = sent(NextAttempt(world(2, attempt=1), self.verdict))
        stop = [sent(Stop(1, "node9 fails"))] if self.stop_again else []
        over = [verdict(self.verdict)] if self.over_again else []
        self.coordinator.report(again, *stop, *over)


class FakeAttempts:
    """Attempts of two workers each."""

    def __init__(self, oom_kills: str = "") -> None:
        """Take what the OOM killer's counters say."""
        self.oom_kills = oom_kills
        self.asked_for_evidence = 0
        self.failures: list[Outcome] = []

    def begin(self, world: World) -> Attempt:
        return Attempt(job(), plan_of(2, attempt=world.attempt), foreground=False)

    def note(self, attempt: Attempt, at: float) -> None:
        """Keep no record."""

    def evidence(self) -> Evidence:
        self.asked_for_evidence += 1
        return Evidence(self.oom_kills)

    def failed(self, outcome: Outcome) -> None:
        self.failures.append(outcome)


class FakeLooks:
    """Answers no look, and keeps what belongs to one."""

    def __init__(self) -> None:
        self.taken: list[LookEvent] = []

    def take(self, event: LookEvent) -> list[Event]:
        """Pass on what is to be printed."""
        self.taken.append(event)
        match event:
            case LookOrdered(End() as order, at):
                return [StacksToPrint(order, at)]
            case _:
                return []

    def collect_stacks(self, now: float) -> tuple[()]:
        """Have no worker print its stack."""
        return ()
