"""Invariants of a job that outlives its nodes: never two worlds at once, never a rank twice, one end."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.door import (
    JobPhase,
    Phase,
    ReformRules,
    RestartRules,
)
from tests.rounds import in_all_rounds
from tests.simulated_job import Fate, SimulatedJob
from tests.test_job_histories import History

MOST_NODES = 9
"""Those that have ended included."""


class ReformedHistory(History):
    """A job that outlives its nodes; they are lost, and others join, at any time."""

    def begin(self) -> None:
        """Do not begin as a job without spares does."""

    @precondition(lambda self: len(self.job.nodes) < MOST_NODES)
    @rule()
    def a_node_joins(self) -> None:
        """A node comes back, or another one joins."""
        phase = self.job.coordinator.phase
        if self.job.nodes[0].acts and phase is not JobPhase.OVER:
            self.job.joins(2)

    @rule(data=st.data())
    def a_node_is_cut_off(self, data: st.DataObject) -> None:
        """The node kills its workers before the coordinator finds that it is silent."""
        node = self.node(data)
        if node.number == 0 or not self.job.nodes[0].acts or not self.strikes(data, 3):
            return
        if node.acts and node.connected:
            node.up.clear()
            self.job.misses_coordinator(node)
            if node.waits:
                node.fate = Fate.OVER
            node.alive.clear()
        if self.job.coordinator.phase is not JobPhase.OVER:
            self.job.is_missed(node)

    def teardown(self) -> None:
        """Every agent ends."""
        if not hasattr(self, "job"):
            return
        self.job.come_to_an_end()
        self.job.check()
        for node in self.job.nodes:
            assert not node.alive, "workers without an agent"
            assert node.fate is Fate.KILLED or node.waits or node.state.phase is Phase.OVER


class SparesHistory(ReformedHistory):
    """Spares take the places of lost nodes."""

    @initialize(
        working=st.integers(1, 3),
        spares=st.integers(1, 3),
        restarts=st.sampled_from([2, 1, 0]),
        most_losses=st.sampled_from([None, 2]),
        rejoin_timeout=st.sampled_from([0.0, 60.0]),
        exclude_after=st.sampled_from([0, 1, 2]),
    )
    def begin_with_spares(
        self,
        *,
        working: int,
        spares: int,
        restarts: int,
        most_losses: int | None,
        rejoin_timeout: float,
        exclude_after: int,
    ) -> None:
        """Begin when all nodes have joined."""
        rules = RestartRules(restarts, final_codes=(3,), ends_on_repeat=False)
        reforming = ReformRules(spares, most_losses, rejoin_timeout, exclude_after=exclude_after)
        self.job = SimulatedJob([2] * (working + spares), rules, reforming)


class ElasticHistory(ReformedHistory):
    """The number of nodes follows losses and newcomers."""

    @initialize(
        joined=st.integers(1, 4),
        fewest=st.integers(1, 2),
        multiple=st.integers(1, 2),
        restarts=st.sampled_from([2, 1, 0]),
        rejoin_timeout=st.sampled_from([0.0, 60.0]),
        grows_after=st.sampled_from([None, 5.0]),
        exclude_after=st.sampled_from([0, 1, 2]),
    )
    def begin_elastic(
        self,
        *,
        joined: int,
        fewest: int,
        multiple: int,
        restarts: int,
        rejoin_timeout: float,
        grows_after: float | None,
        exclude_after: int,
    ) -> None:
        """Begin with a number of nodes that may change."""
        rules = RestartRules(restarts, final_codes=(3,), ends_on_repeat=False)
        reforming = ReformRules(
            rejoin_timeout=rejoin_timeout,
            fewest=fewest,
            most=5,
            multiple=multiple,
            grows_after=grows_after,
            exclude_after=exclude_after,
        )
        self.job = SimulatedJob([2] * max(joined, fewest, multiple), rules, reforming)


TestSparesHistory = SparesHistory.TestCase
TestSparesHistory.settings = settings(
    stateful_step_count=60, max_examples=in_all_rounds(100), deadline=None
)
TestElasticHistory = ElasticHistory.TestCase
TestElasticHistory.settings = settings(
    stateful_step_count=60, max_examples=in_all_rounds(100), deadline=None
)
