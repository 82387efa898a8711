"""Jobs in which anything happens to any node at any time; a counter-example is a history to paste."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.histories.job_history import GRACE, Job
from tests.histories.worlds import numbers
from tests.rounds import in_all_rounds

SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGUSR1, SIGTERM, SIGCONT, SIGTSTP = 1, 2, 3, 9, 10, 15, 18, 20
MAX_NODES = 9
STARTS = re.compile(r"node (\d+) starts ranks? (\S+), attempt (\d+)")
SENDS = re.compile(r"node (\d+) sends (SIG\w+) to ranks? (\S+)")
ENDS = re.compile(
    r"node (\d+) (?:ends with (\d+): (.*)|ends without|gives up|joins again|is disconnected)"
)

CHOICE = st.integers(0, 59)
"""Chooses one of those nodes or ranks to which something may happen."""

ENDINGS = (
    *({"code": 1}, {"code": 0}, {"code": 0}, {"code": 3}),
    *({"by": 2}, {"by": 7}, {"by": 9}, {"by": 15}),
)

ENDS_THE_JOB: Sequence[tuple[str, dict[str, Any]]] = (
    *(("signalled", {"number": number}) for number in (SIGTERM, SIGTERM, SIGINT, SIGINT, SIGHUP)),
    *(("asked_to_stop", {"at_once": at_once}) for at_once in (False, True)),
)
ENDS_NOTHING = (SIGUSR1, SIGQUIT, SIGTSTP, SIGCONT)

STEPS = ("delivers_from", "delivers_to", "steps", "steps", "settles", "settles", "time_passes")

FAULTS = (
    *("is_to_end", "is_to_end", "gets_another_signal", "hangs_at_exit", "output_is_closed"),
    *("is_killed", "freezes", "is_cut_off", "continues", "continues", "joins", "joins"),
    *("loses_fork_server", "loses_fork_server", "loses_relay", "no_rank_moves"),
    *("lease_expires", "lease_expires"),
    *("leaves_processes", "leaves_processes", "leaves_processes", "leftovers_end"),
    *(("nothing",) * 16),
)


class Agent:
    """What a stranger knows of a node, by what happened and followed there."""

    def __init__(self, *, works: bool) -> None:
        self.attempt = 0 if works else -1
        self.alive: set[int] = set()
        self.stopped_at: float | None = None
        self.is_over = self.is_frozen = self.is_silent = self.is_killed = False
        self.has_signal = self.has_no_fork_server = self.has_no_relay = False
        self.leaves = False
        """It has lost a helper, and the others may continue without it."""
        self.is_late = False
        """Node 0 has declared it lost because its workers did not end in time."""

    @property
    def is_lost(self) -> bool:
        return self.is_silent or self.is_killed or self.leaves or self.is_late

    @property
    def acts(self) -> bool:
        return not (self.is_over or self.is_frozen or self.is_killed)


class AnyOrder(RuleBasedStateMachine):
    """A job of any kind, and what must hold of it, whatever happens."""

    def _begin(
        self,
        *,
        nodes: int,
        spares: int = 0,
        workers: int = 1,
        can_kill: bool = True,
        **options: Any,
    ) -> None:
        self.can_kill = can_kill
        """SIGKILL ends ranks; else they are in state D, and neither end nor let their output end."""
        given = {
            "nodes": nodes,
            "workers": workers,
            "spares": spares,
            "final_codes": (3,),
            "no_fail_fast": True,
            **options,
        }
        self.job = Job(**given)
        self.history = [
            f"job = Job({', '.join(f'{name}={value!r}' for name, value in given.items())})"
        ]
        self.workers, self.restarts = workers, options["restarts"]
        self.lives_on = bool(spares or options.get("rejoin") or options.get("least"))
        self.agents = [Agent(works=number < nodes) for number in range(nodes + spares)]
        for number in range(nodes):
            ranks = range(number * workers, (number + 1) * workers)
            self.agents[number].alive = set(ranks)
        self.codes: dict[tuple[int, int], int] = {}
        self.worlds = [set(range(nodes * workers))]
        self.changes = 0
        """How many nodes were lost or have joined."""
        self.reasons: set[str] = set()
        self.last_attempt: int | None = None
        """No later one may begin, because of a signal."""

    def handle(self, what: str, *args: Any, **options: Any) -> None:
        """Have something happen, and check what follows."""
        shown = [*map(repr, args), *(f"{name}={value!r}" for name, value in options.items())]
        self.history.append(f"job.{what}({', '.join(shown)})")
        getattr(self.job, what)(*args, **options)
        self._look(by_signal=what in {"signalled", "asked_to_stop"})

    def _look(self, *, by_signal: bool) -> None:
        for node in self.job.declared_lost:
            if not self.agents[node].is_lost:
                self._is_lost(node)
                self.agents[node].is_late = True
        lines = self.job.new_lines()
        self.history += [f"    # {line}" for line in lines]
        for line in lines:
            if found := STARTS.match(line):
                self._starts(self.agents[int(found[1])], int(found[1]), found[2], int(found[3]))
            elif found := SENDS.match(line):
                self._stops(self.agents[int(found[1])], found[2], numbers(found[3]))
            elif found := ENDS.match(line):
                # After a second signal an agent does not wait for the others.
                self._ends(self.agents[int(found[1])], found[2], "" if by_signal else found[3])
        for agent in self.agents:
            since = None if agent.stopped_at is None else self.job.now - agent.stopped_at
            if agent.acts and agent.alive and since is not None and self.can_kill:
                assert since <= GRACE + 5, "ranks outlive a stop"

    # What must hold.

    def _starts(self, agent: Agent, number: int, shown: str, attempt: int) -> None:
        assert not agent.is_over
        assert attempt > agent.attempt, "an attempt twice"
        assert not agent.has_no_fork_server, "a start without a fork server"
        assert not agent.has_no_relay, "a start without a relay"
        assert not agent.has_signal, "a start after an ending signal"
        assert self.last_attempt is None or attempt <= self.last_attempt, (
            "an attempt after an ending signal"
        )
        for other in self.agents:
            may_run = other.is_lost or not self.can_kill
            assert other.attempt >= attempt or not other.alive or may_run, (
                f"node {number} begins before others have stopped"
            )
        if attempt == len(self.worlds):
            self.worlds.append(set())
        assert attempt == len(self.worlds) - 1, "an attempt is left out"
        assert attempt <= self.restarts + (self.changes if self.lives_on else 0), "one too many"
        ranks = numbers(shown)
        assert not ranks & self.worlds[attempt], "a rank twice"
        self.worlds[attempt] |= ranks
        agent.attempt, agent.alive, agent.stopped_at = attempt, ranks, None

    def _stops(self, agent: Agent, name: str, ranks: set[int]) -> None:
        if agent.stopped_at is None:
            agent.stopped_at = self.job.now
        if name == "SIGKILL" and self.can_kill:
            for rank in ranks & agent.alive:
                self._is_ended(agent, rank, "dies", by=SIGKILL)

    def _is_ended(self, agent: Agent, rank: int, how: str, **options: int) -> None:
        agent.alive.discard(rank)
        self.codes[agent.attempt, rank] = options.get("code", -options.get("by", 0))
        self.handle(how, rank, **options)

    def _ends(self, agent: Agent, code: str | None, reason: str | None) -> None:
        assert not agent.is_over, "two ends"
        agent.is_over = True
        if code is None or not reason or agent.is_lost or self.agents[0].is_killed:
            return
        self.reasons.add(reason)
        assert len(self.reasons) == 1, "two causes"
        if code == "0":
            world = {rank for (attempt, rank) in self.codes if attempt == agent.attempt}
            codes = [self.codes[agent.attempt, rank] for rank in world]
            assert set(codes) == {0}, "success, though a rank failed"
            assert world == set(range(len(world))), "success, though ranks are missing"
            assert len(world) == self.job.ranks_of_world(), "success, though nodes are missing"

    # What happens.

    def _one(self, choice: int, those: Sequence[int]) -> int | None:
        return those[choice % len(those)] if those else None

    def _acting(self, choice: int) -> int | None:
        return self._one(choice, [each for each, agent in enumerate(self.agents) if agent.acts])

    @rule(what=st.sampled_from([*STEPS]), choice=CHOICE)
    def the_job_goes_on(self, what: str, choice: int) -> None:
        node = self._acting(choice)
        if what == "settles":
            self.handle("settles")
            self._hears_again(node)
        elif what == "time_passes":
            self.handle("time_passes", min(100.0, self.job.next_due() + 0.001))
        elif node is not None:
            self.handle(what, node)

    @rule(what=st.sampled_from([*FAULTS]), choice=CHOICE)
    def something_happens(self, what: str, choice: int) -> None:
        getattr(self, what)(choice)

    @rule(how=st.sampled_from(ENDINGS), choice=CHOICE)
    def a_rank_ends(self, how: dict[str, int], choice: int) -> None:
        agents = [agent for agent in self.agents if agent.acts]
        # Of two ranks with one number, the newer one.
        by_rank = {
            rank: agent
            for agent in sorted(agents, key=lambda agent: agent.attempt)
            for rank in agent.alive
        }
        rank = self._one(choice, sorted(by_rank))
        if rank is not None:
            self._is_ended(by_rank[rank], rank, "dies" if "by" in how else "exits", **how)

    def is_to_end(self, choice: int) -> None:
        what, how = ENDS_THE_JOB[choice % len(ENDS_THE_JOB)]
        node = self._acting(choice)
        if node is None:
            return
        self.handle(what, node=node, **how)
        agent = self.agents[node]
        if agent.attempt < 0 or agent.is_lost or not self.agents[0].acts:
            return
        agent.has_signal = True
        # An attempt may begin before node 0 hears of the signal, and no other.
        last = self.job.further_attempts + 1
        if choice % 2:
            for _ in range(4):
                self.handle("delivers_from", node)
            last = self.job.further_attempts
        self.last_attempt = last if self.last_attempt is None else min(last, self.last_attempt)

    def gets_another_signal(self, choice: int) -> None:
        node = self._acting(choice)
        if node is not None:
            self.handle("signalled", ENDS_NOTHING[choice % len(ENDS_NOTHING)], node=node)

    def hangs_at_exit(self, choice: int) -> None:
        agents = [agent for agent in self.agents if agent.acts]
        rank = self._one(choice, sorted(rank for agent in agents for rank in agent.alive))
        if rank is not None:
            self.handle("hangs_at_exit", rank)

    def is_killed(self, choice: int) -> None:
        node = self._acting(choice)
        if node is not None:
            self._is_lost(node)
            self.agents[node].is_killed = True
            self.agents[node].alive.clear()
            self.handle("loses_node", node)

    def freezes(self, choice: int) -> None:
        self._is_missed(choice, "goes_silent")

    def is_cut_off(self, choice: int) -> None:
        self._is_missed(choice, "is_cut_off")

    def _is_missed(self, choice: int, what: str) -> None:
        node = self._acting(choice)
        if node and self.agents[0].acts and not self.agents[node].is_lost:
            self._is_lost(node)
            self.agents[node].is_silent = True
            self.agents[node].is_frozen = what == "goes_silent"
            self.handle(what, node)

    def continues(self, choice: int) -> None:
        frozen = [each for each, agent in enumerate(self.agents) if agent.is_frozen]
        node = self._one(choice, frozen)
        if node is not None:
            self._thaws(node)

    def _thaws(self, node: int) -> None:
        agent = self.agents[node]
        agent.is_frozen = False
        # Its time goes on from here.
        agent.stopped_at = None if agent.stopped_at is None else self.job.now
        self.handle("continues", node)

    def loses_fork_server(self, choice: int) -> None:
        has_place = [each for each, agent in enumerate(self.agents) if agent.attempt >= 0]
        nodes = [each for each in has_place if self.agents[each].acts]
        # Without ranks, it is missed only by the next attempt.
        ended = [each for each in nodes if not self.agents[each].alive]
        node = self._one(choice, ended if choice % 2 else nodes)
        agent = None if node is None else self.agents[node]
        if agent is None or agent.has_no_fork_server:
            return
        agent.has_no_fork_server = True
        self._leaves(agent, node)
        self.codes.update({(agent.attempt, rank): -SIGKILL for rank in agent.alive})
        agent.alive.clear()
        self.handle("loses_fork_server", node)

    def loses_relay(self, choice: int) -> None:
        node = self._acting(choice)
        if node is None or self.agents[node].has_no_relay:
            return
        # A node that waits for a place ends by itself, and ``Job`` does not model its wait.
        if self.agents[node].attempt >= 0:
            self.agents[node].has_no_relay = True
            self._leaves(self.agents[node], node)
            self.handle("loses_relay", node)

    def _leaves(self, agent: Agent, node: int | None) -> None:
        """Take note that a node can start no rank any more: the others may go on without it."""
        if self.lives_on and node:
            self._is_lost(node)
            agent.leaves = True

    def lease_expires(self, choice: int) -> None:
        """Have a fork server end the ranks of a node, which is back in time."""
        node = self._acting(choice)
        if not node or not self.lives_on or self.agents[node].has_no_fork_server:
            return
        agent = self.agents[node]
        if agent.alive and not agent.is_lost:
            self.changes += 1
            self.codes.update({(agent.attempt, rank): -SIGKILL for rank in agent.alive})
            agent.alive.clear()
            self.handle("lease_expires", node)

    def output_is_closed(self, choice: int) -> None:
        node = self._acting(choice)
        if node is not None:
            self.handle("output_is_closed", node)

    def joins(self, _: int) -> None:
        if self.agents[0].acts and self.lives_on and len(self.agents) < MAX_NODES:
            self.changes += 1
            self.agents.append(Agent(works=False))
            self.handle("joins", self.workers)

    def _hears_again(self, node: int | None) -> None:
        if node is not None and self.agents[node].attempt > 0:
            before = len(self.history)
            self.handle("gets_old_orders", node)
            assert len(self.history) == before + 1, "an order for another attempt is obeyed"

    def leaves_processes(self, choice: int) -> None:
        """Have a rank start a process that outlives it."""
        node = self._acting(choice)
        if node is not None:
            self.handle("leaves_processes", "sh", node=node)

    def leftovers_end(self, choice: int) -> None:
        node = self._acting(choice)
        if node is not None:
            self.handle("leftovers_end", node)

    def no_rank_moves(self, _: int) -> None:
        for node, agent in enumerate(self.agents):
            if agent.acts and agent.attempt >= 0:
                # For a moment: nothing is due meanwhile.
                self.handle("is_idle", node, seconds=0.001)

    def nothing(self, _: int) -> None:
        """Too many faults end a job early."""

    def _is_lost(self, node: int) -> None:
        self.changes += 1
        if self.agents[node].has_signal:
            # Its word may be lost with it.
            self.last_attempt = None

    def teardown(self) -> None:
        """Every job ends on every node."""
        if not hasattr(self, "job"):
            return
        try:
            if self.can_kill:
                self._come_to_an_end()
            else:
                self._end_by_time_alone()
        finally:
            note("\n".join(self.history))

    def _end_by_time_alone(self) -> None:
        """Once they are to end, no rank, process or output can keep agents from their ends."""
        for node, agent in enumerate(self.agents):
            if agent.is_frozen:
                self._thaws(node)
            if agent.acts:
                self.handle("signalled", SIGTERM, node=node)
        for _ in range(6):
            self.handle("time_passes", 30.0)
            self.handle("delivers_all")
        assert all(agent.is_over or agent.is_killed for agent in self.agents), "no end"

    def _come_to_an_end(self) -> None:
        for _ in range(60):
            for node, agent in enumerate(self.agents):
                if agent.is_frozen:
                    self._thaws(node)
            self.handle("settles")
            for agent in self.agents:
                for rank in sorted(agent.alive) if agent.acts else ():
                    self._is_ended(agent, rank, "exits", code=0)
            self.handle("settles")
            if all(agent.is_over or agent.is_killed for agent in self.agents):
                return
            self.handle("time_passes", min(100.0, self.job.next_due() + 0.001))
        raise AssertionError("no end")


class Plain(AnyOrder):
    """A world of a fixed size."""

    @initialize(
        nodes=st.integers(1, 3),
        workers=st.integers(1, 2),
        restarts=st.sampled_from([1, 2, 0]),
        on_hang=st.sampled_from(["report", "restart", "stop"]),
        terminal=st.booleans(),
        can_kill=st.booleans(),
    )
    def begin(self, **drawn: Any) -> None:
        drawn["terminal"] &= drawn["nodes"] == drawn["workers"] == 1
        self._begin(**drawn)


class Reformed(AnyOrder):
    """A world that outlives its nodes: by spares, by newcomers, or with fewer."""

    @initialize(
        nodes=st.integers(1, 4),
        spares=st.integers(1, 2),
        restarts=st.integers(0, 2),
        kind=st.sampled_from(["spares", "rejoin", "elastic"]),
        rejoin=st.sampled_from([0.0, 60.0]),
    )
    def begin(
        self,
        *,
        nodes: int,
        spares: int,
        restarts: int,
        kind: str,
        rejoin: float,
    ) -> None:
        match kind:
            case "spares":
                self._begin(nodes=nodes, spares=spares, restarts=restarts, rejoin=rejoin)
            case "rejoin":
                self._begin(nodes=nodes, restarts=restarts, rejoin=60.0)
            case _:
                self._begin(
                    nodes=max(2, nodes),
                    least=1,
                    restarts=restarts,
                    rejoin=rejoin,
                )


def _runs(machine: type[AnyOrder], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            stateful_step_count=50, max_examples=in_all_rounds(examples), deadline=None
        ),
    )


@pytest.mark.parametrize("machine", [Plain, Reformed])
def test_invariants_hold(machine: type[AnyOrder]) -> None:
    """There is one cause and one end, no attempt too many, and no rank outlives a stop."""
    _runs(machine, 40)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [Plain, Reformed])
def test_invariants_hold_in_many_jobs(machine: type[AnyOrder]) -> None:
    """Some faults show only after several accidents, in thousands of jobs."""
    _runs(machine, 4000)
