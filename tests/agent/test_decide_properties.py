"""What holds whatever happens: an attempt always ends, once, and only forward."""

import signal
from collections.abc import Callable
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.agent.door import (
    FORWARDED_SIGNALS,
    OUR_OWN,
    AllStacks,
    Attempt,
    CleanUp,
    CollectOutput,
    Event,
    Finish,
    Interrupted,
    LocalRank,
    NextAttempt,
    NodeLost,
    Phase,
    Reason,
    Restart,
    SendStacks,
    SetDeadline,
    SignalWorkers,
    StackGroup,
    Stop,
    Succeeded,
    Verdict,
    events,
)
from tests.agent.histories import workers
from tests.decided import decide
from tests.plans import world
from tests.rounds import in_all_rounds

PHASES = list(Phase)
MAX_WORKERS = 3
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

attempts = st.builds(
    workers,
    st.integers(1, MAX_WORKERS),
    restarts=st.integers(0, 1),
    shared=st.booleans(),
    foreground=st.booleans(),
    signal_group=st.booleans(),
)
ranks = st.integers(0, MAX_WORKERS - 1).map(LocalRank)
times = st.floats(0, 100)
deadly = st.sampled_from([signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSEGV])
received = st.sampled_from([*OUR_OWN, *FORWARDED_SIGNALS])
helpers = st.sampled_from(["fork server", "relay"])
names = st.text(max_size=3)
verdicts = st.sampled_from([Succeeded(), Interrupted(signal.SIGTERM), NodeLost(1, "node1")])

stacks = st.lists(
    st.builds(StackGroup, st.lists(ranks, min_size=1).map(tuple), names, st.booleans())
).map(tuple)

orders = st.one_of(
    st.builds(Stop, st.integers(0, 1), names),
    st.builds(Verdict, verdicts, names),
    st.builds(NextAttempt, st.just(world(2, attempt=1)), verdicts),
    st.builds(SendStacks, st.integers(0, 1), st.integers(0, 9)),
    st.builds(AllStacks, stacks, st.lists(names).map(tuple)),
)

anything = st.one_of(
    st.builds(events.WorkerStarted, ranks, st.integers(1, 9), names, times),
    st.builds(events.WorkerNotStarted, ranks, names, names, times),
    st.builds(events.WorkerExited, ranks, st.integers(0, 255), times),
    st.builds(events.WorkerKilled, ranks, deadly, times),
    st.builds(events.WorkerStopped, ranks, st.just(signal.SIGTSTP), times),
    st.builds(events.SignalReceived, received, times),
    st.builds(events.SignalNotHandled, received, st.lists(ranks).map(tuple), times),
    st.builds(events.DeadlinePassed, times),
    st.builds(events.CleanedUp, st.lists(names).map(tuple), times),
    st.builds(events.OutputEnded, ranks, names, names, times),
    st.builds(events.OutputClosed, times),
    st.builds(events.CoordinatorSent, orders, times),
    st.builds(events.CoordinatorLost, names, names, times),
    st.builds(events.HelperLost, helpers, names, st.sampled_from([0, 9]), times),
    st.builds(events.WorkersIdle, times, times),
    st.builds(events.WorkersActive, times),
    st.builds(events.StacksCollected, st.integers(0, 9), stacks, st.booleans(), times),
)


@given(attempts, st.lists(anything, max_size=30))
def test_nothing_is_too_strange(state: Attempt, history: list[Event]) -> None:
    """Even what can't happen raises nothing, goes forward only, and ends at most once."""
    conclusions = 0

    for event in history:
        before = state
        state, actions = decide(state, event)

        conclusions += sum(isinstance(action, Restart | Finish) for action in actions)
        assert PHASES.index(state.phase) >= PHASES.index(before.phase)
    assert conclusions == (state.phase is Phase.OVER)


class AnyAttempt(RuleBasedStateMachine):
    """A node as the policy sees it: workers do anything, and all others what is ordered."""

    @initialize(state=attempts)
    def begin(self, state: Attempt) -> None:
        """Ask for the workers."""
        self.state = state
        self.now = 0.0
        self.alive = set(state.alive)
        self.started: set[LocalRank] = set()
        self.signalled: set[LocalRank] = set()
        self.collecting: set[LocalRank] = set()
        self.sweeping = self.waiting = self.deaf = self.alone = self.interrupted = False
        self.helpers = {"fork server", "relay"}
        self.conclusions: list[Restart | Finish] = []

    @property
    def over(self) -> bool:
        """Whether the policy has come to its end."""
        return self.state.phase is Phase.OVER

    @property
    def may_go_on(self) -> bool:
        """Whether no end was requested, and all helper processes run."""
        return not self.interrupted and not self.alone and len(self.helpers) == 2

    def happens(self, event: Event) -> None:
        """Let the policy know, and do as it says."""
        before = self.state
        self.state, actions = decide(before, event)
        self.now += 1.0
        for action in actions:
            match action:
                case SignalWorkers(local_ranks):
                    assert local_ranks <= self.alive, "signals the dead"
                    assert local_ranks, "signals no worker"
                    self.signalled |= local_ranks
                case CollectOutput(local_rank):
                    assert local_rank not in self.alive, "collects from the living"
                    self.collecting.add(local_rank)
                case CleanUp():
                    self.sweeping = True
                case SetDeadline(seconds):
                    assert seconds > 0
                    self.waiting = True
                case Restart() | Finish():
                    self.conclusions.append(action)
                    assert isinstance(action, Finish) or self.may_go_on, "restarts nevertheless"
        assert PHASES.index(self.state.phase) >= PHASES.index(before.phase), "goes back"

    def ends(self, local_rank: LocalRank, event: Callable[[float], Event]) -> None:
        """Let a worker end, and see whether the policy knows by whose doing."""
        self.alive.discard(local_rank)
        by_us = local_rank in self.signalled
        self.happens(event(self.now))
        assert self.over or self.state.ended[local_rank].stopped_by_us == by_us

    @precondition(lambda self: self.alive - self.started)
    @rule(data=st.data(), well=st.booleans())
    def a_worker_starts(self, data: st.DataObject, *, well: bool) -> None:
        """Or fails to."""
        local_rank = data.draw(st.sampled_from(sorted(self.alive - self.started)))
        self.started.add(local_rank)
        if well:
            self.happens(events.WorkerStarted(local_rank, 100, "", self.now))
        else:
            self.ends(local_rank, partial(events.WorkerNotStarted, local_rank, "session", "no"))

    @precondition(lambda self: self.alive & self.started)
    @rule(data=st.data(), code=st.sampled_from([0, 0, 1]))
    def a_worker_exits(self, data: st.DataObject, code: int) -> None:
        """With success as a rule."""
        local_rank = data.draw(st.sampled_from(sorted(self.alive & self.started)))
        self.ends(local_rank, partial(events.WorkerExited, local_rank, code))

    @precondition(lambda self: self.alive & self.started)
    @rule(data=st.data(), number=deadly)
    def a_worker_is_killed(self, data: st.DataObject, number: int) -> None:
        """By us or by others."""
        local_rank = data.draw(st.sampled_from(sorted(self.alive & self.started)))
        self.interrupted |= (
            number == signal.SIGINT
            and self.state.rules.foreground
            and self.state.phase is Phase.RUNNING
        )
        self.ends(local_rank, partial(events.WorkerKilled, local_rank, number))

    @rule(number=received)
    def the_agent_is_signalled(self, number: int) -> None:
        """Any signal may come at any time."""
        self.interrupted |= number in ENDING
        self.happens(events.SignalReceived(number, self.now))

    @precondition(lambda self: self.waiting)
    @rule()
    def time_passes(self) -> None:
        """The deadline is over, and there is none until the policy sets one."""
        self.waiting = False
        self.happens(events.DeadlinePassed(self.now))

    @precondition(lambda self: self.sweeping)
    @rule(survivors=st.lists(names, max_size=1).map(tuple))
    def all_is_swept(self, survivors: tuple[str, ...]) -> None:
        """The answer to a sweep."""
        self.sweeping = False
        self.happens(events.CleanedUp(survivors, self.now))

    @precondition(lambda self: self.collecting)
    @rule(data=st.data())
    def output_ends(self, data: st.DataObject) -> None:
        """The answer to a collection."""
        local_rank = data.draw(st.sampled_from(sorted(self.collecting)))
        self.collecting.discard(local_rank)
        self.happens(events.OutputEnded(local_rank, "tail", "", self.now))

    @precondition(lambda self: not self.deaf)
    @rule()
    def the_reader_goes(self) -> None:
        """Once."""
        self.deaf = True
        self.happens(events.OutputClosed(self.now))

    @precondition(lambda self: "relay" in self.helpers)
    @rule()
    def the_relay_is_lost(self) -> None:
        """Once."""
        self.helpers.discard("relay")
        self.happens(events.HelperLost("relay", "exited with code 1", 0, self.now))

    @precondition(lambda self: "fork server" in self.helpers)
    @rule()
    def the_fork_server_is_lost(self) -> None:
        """And all workers with it."""
        self.helpers.discard("fork server")
        self.alive.clear()
        self.happens(events.HelperLost("fork server", "was killed by SIGKILL", 9, self.now))

    @precondition(lambda self: self.state.nodes > 1)
    @rule()
    def another_node_ends_the_job(self) -> None:
        """It may say so any time."""
        self.happens(
            events.CoordinatorSent(Stop(self.state.attempt, "rank 9 on node9 failed"), self.now)
        )

    @precondition(lambda self: self.state.phase is Phase.WAITING)
    @rule(reason=verdicts)
    def the_verdict_is_reached(self, reason: Reason) -> None:
        """All nodes are done."""
        self.happens(events.CoordinatorSent(Verdict(reason, ""), self.now))

    @precondition(lambda self: self.state.nodes > 1 and not self.alone)
    @rule()
    def the_coordinator_is_lost(self) -> None:
        """Once."""
        self.alone = True
        self.happens(events.CoordinatorLost("node0", "is gone", self.now))

    @invariant()
    def somebody_wakes_us(self) -> None:
        """Once it is going to end, time alone brings the end, or the other nodes do."""
        woken_by_others = {Phase.RUNNING, Phase.WAITING, Phase.OVER}
        assert self.waiting or self.state.phase in woken_by_others

    @invariant()
    def it_ends_once(self) -> None:
        """With a restart or for good, never both."""
        assert len(self.conclusions) == self.over

    def teardown(self) -> None:
        """Whatever has happened, time brings an end."""
        if self.state.phase is Phase.RUNNING:
            self.the_agent_is_signalled(signal.SIGTERM)
        while self.waiting and not self.over:
            self.time_passes()
        if self.state.phase is Phase.WAITING:
            self.the_verdict_is_reached(Succeeded())
        self.it_ends_once()
        assert self.over


TestAttempt = AnyAttempt.TestCase
TestAttempt.settings = settings(
    stateful_step_count=25, max_examples=in_all_rounds(120), deadline=None
)
