"""What holds in any order: time alone brings each agent's end, and what ends the job starts no rank."""

import signal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.histories.told_job import Job
from tests.rounds import in_all_rounds

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
OTHERS = (signal.SIGUSR1, signal.SIGQUIT, signal.SIGTSTP, signal.SIGCONT)
LOSSES = {"relay": Job.loses_relay, "fork server": Job.loses_fork_server}

chosen = st.integers(0, 3)
"""A rank or a node, which is counted through."""


class EndsInAnyOrder(RuleBasedStateMachine):
    """A job on one node or two, to which anything happens that can."""

    @initialize(
        nodes=st.sampled_from([1, 2]),
        workers=st.integers(1, 2),
        restarts=st.sampled_from([2, 0]),
        terminal=st.booleans(),
    )
    def begin(self, nodes: int, workers: int, restarts: int, *, terminal: bool) -> None:
        """Ranks run; one alone may have the terminal."""
        terminal = terminal and nodes == workers == 1
        self.job = Job(nodes, workers, restarts=restarts, no_fail_fast=True, terminal=terminal)
        self.nodes, self.lost = range(nodes), dict[tuple[int, str], bool]()
        self.lives, self.must_not_start = set(self.nodes), set[int]()
        self.ended: list[str] = []

    def rank(self, which: int) -> list[int]:
        """Return one of the ranks that run; [] if none does."""
        ranks = [rank for node in self.lives for rank in self.job.running(node)]
        return [ranks[which % len(ranks)]] if ranks else []

    @rule(which=chosen, code=st.sampled_from([0, 0, 1, 3]))
    def a_rank_exits(self, which: int, code: int) -> None:
        """With success as a rule."""
        self.job.exits(*self.rank(which), code=code)

    @rule(which=chosen, number=st.sampled_from([*ENDING, signal.SIGKILL, signal.SIGSEGV]))
    def a_rank_is_killed(self, which: int, number: int) -> None:
        """By us or by others."""
        self.job.dies(*self.rank(which), by=number)

    @rule(which=chosen)
    def a_rank_hangs_at_its_exit(self, which: int) -> None:
        """Its script has failed."""
        self.job.hangs_at_exit(*self.rank(which))

    @rule(which=chosen, number=st.sampled_from([*ENDING, *OTHERS]))
    def an_agent_is_signalled(self, which: int, number: int) -> None:
        """Any signal may come at any time."""
        node = which % len(self.nodes)
        self.job.signalled(number, node)
        self.must_not_start |= {node} if number in ENDING else set()

    @rule(which=chosen, at_once=st.booleans())
    def a_command_ends_the_job(self, which: int, *, at_once: bool) -> None:
        """On one of its nodes."""
        node = which % len(self.nodes)
        self.job.asked_to_stop("clusterrun stop", node, at_once=at_once)
        self.must_not_start.add(node)

    @rule(which=chosen, what=st.sampled_from(list(LOSSES)))
    def a_helper_is_lost(self, which: int, what: str) -> None:
        """Each at most once."""
        node = which % len(self.nodes)
        if not self.lost.setdefault((node, what), False):
            self.lost[node, what] = True
            LOSSES[what](self.job, node)
            self.must_not_start.add(node)

    @rule(which=chosen)
    def a_reader_goes(self, which: int) -> None:
        """It ends a job that runs."""
        self.job.loses_reader(which % len(self.nodes))

    @rule(lost=chosen)
    def node_0_is_lost(self, lost: int) -> None:
        """Rarely; its agent and its ranks are gone."""
        if lost == 0 and self.lives == {0, 1}:
            self.job.loses_node(0)
            self.lives.discard(0)
            self.must_not_start.add(1)

    @rule(which=chosen, times=st.integers(1, 4))
    def an_agent_goes_on(self, which: int, times: int) -> None:
        """Messages, last lines and the end of leftovers come one by one."""
        for _ in range(times):
            self.job.goes_on(which % len(self.nodes))

    @rule(seconds=st.sampled_from([0.1, 2.0, 8.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        """What is due is done."""
        self.job.passes(seconds)

    @invariant()
    def no_rank_starts_after_the_end(self) -> None:
        """A node that was signalled, or lacks a helper or node 0, starts none."""
        if hasattr(self, "job"):
            lines = self.job.saw()
            starts = [f"node {node} starts " for node in self.must_not_start]
            assert not [line for line in lines if line.startswith(tuple(starts))]
            self.ended += [line for line in lines if " ends with " in line]

    def teardown(self) -> None:
        """Once they are to end, no rank, process or output can keep agents from their ends."""
        if not hasattr(self, "job"):
            return
        for node in self.lives:
            self.job.signalled(signal.SIGTERM, node)
        for _ in range(6):
            self.job.passes(30).hears()
        self.no_rank_starts_after_the_end()
        assert sorted(line[:6] for line in self.ended if int(line[5]) in self.lives) == [
            f"node {node}" for node in sorted(self.lives)
        ]


TestEndsInAnyOrder = EndsInAnyOrder.TestCase
TestEndsInAnyOrder.settings = settings(
    stateful_step_count=25, max_examples=in_all_rounds(120), deadline=None
)
