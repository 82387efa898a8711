"""Invariants of a job on one or more nodes: one cause, one attempt, one end."""

import signal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.door import (
    JobPhase,
    OnHang,
    Phase,
    RestartRules,
)
from tests.rounds import in_all_rounds
from tests.simulated_job import Fate, Node, SimulatedJob

CODES = [1, 0, 0, 3, -7, -9, -15]


class History(RuleBasedStateMachine):
    """A job; at any time an event may happen on any of its nodes."""

    job: SimulatedJob

    @initialize(
        sizes=st.lists(st.integers(1, 2), min_size=1, max_size=3),
        restarts=st.sampled_from([2, 1, 0]),
        on_hang=st.sampled_from(OnHang),
    )
    def begin(self, sizes: list[int], restarts: int, on_hang: OnHang) -> None:
        """Begin when all nodes have joined; exit code 3 allows no restart."""
        rules = RestartRules(restarts, final_codes=(3,), ends_on_repeat=False)
        self.job = SimulatedJob(sizes, rules, on_hang=on_hang)

    def node(self, data: st.DataObject) -> Node:
        """Choose a node."""
        return data.draw(st.sampled_from(self.job.nodes))

    def strikes(self, data: st.DataObject, rarely: int) -> bool:
        """Choose whether a rare event happens; jobs with many faults end too early."""
        return data.draw(st.integers(1, rarely)) == rarely

    @rule(data=st.data(), code=st.sampled_from(CODES))
    def a_worker_ends(self, data: st.DataObject, code: int) -> None:
        """A worker exits, or is killed by a signal."""
        node = self.node(data)
        if node.alive and node.fate is Fate.LIVES:
            self.job.worker_ends(node, data.draw(st.sampled_from(sorted(node.alive))), code)

    @rule(data=st.data())
    def a_word_arrives(self, data: st.DataObject) -> None:
        """The coordinator receives a message."""
        if self.job.nodes[0].acts:
            self.job.is_heard(self.node(data))

    @rule(data=st.data())
    def an_order_arrives(self, data: st.DataObject) -> None:
        """A node receives a message of the coordinator."""
        node = self.node(data)
        if node.acts:
            self.job.receives(node)

    @rule(data=st.data())
    def an_agent_goes_on(self, data: st.DataObject) -> None:
        """Output or cleanup that an agent waits for ends, or its deadline passes."""
        node = self.node(data)
        if not node.acts:
            return
        if node.silent:
            self.job.output_ends(node, min(node.silent))
        elif node.sweeping:
            self.job.is_swept(node)
        elif node.deadline:
            self.job.time_passes(node)

    @rule(times=st.integers(1, 4))
    def a_while_passes(self, times: int) -> None:
        """All nodes do what is due, without a fault."""
        for _ in range(times):
            self.job.go_on()

    @rule(data=st.data(), number=st.sampled_from([signal.SIGTERM, signal.SIGINT]))
    def an_agent_is_signalled(self, data: st.DataObject, number: int) -> None:
        """A scheduler or a person signals an agent."""
        if self.strikes(data, 8):
            self.job.is_signalled(self.node(data), number)

    @rule(data=st.data())
    def an_agent_is_killed(self, data: st.DataObject) -> None:
        """An agent is killed, and its workers with it."""
        node = self.node(data)
        if node.fate is not Fate.OVER and self.strikes(data, 8):
            self.job.is_killed(node)

    @rule(data=st.data())
    def an_agent_is_frozen_or_continued(self, data: st.DataObject) -> None:
        """An agent stops or continues; its workers go on."""
        node = self.node(data)
        if node.fate is Fate.FROZEN:
            self.job.is_continued(node)
        elif node.acts and self.strikes(data, 5):
            self.job.is_frozen(node)

    @rule(data=st.data())
    def a_node_is_cut_off(self, data: st.DataObject) -> None:
        """The coordinator or the node notices that the other one is silent."""
        node = self.node(data)
        if node.number == 0 or not self.job.nodes[0].acts or not self.strikes(data, 5):
            return
        if self.job.coordinator.phase is not JobPhase.OVER and node.connected:
            self.job.is_missed(node)
        elif node.connected and node.acts:
            self.job.misses_coordinator(node)

    @rule(data=st.data())
    def all_nodes_stand_still(self, data: st.DataObject) -> None:
        """No worker prints or exits for long."""
        if self.strikes(data, 4):
            for node in self.job.nodes:
                self.job.stands_still(node)

    @rule(data=st.data())
    def a_fork_server_is_lost(self, data: st.DataObject) -> None:
        """A fork server is killed, and all workers with it."""
        node = self.node(data)
        if node.acts and node.state.lost_helper is None and self.strikes(data, 12):
            self.job.loses_fork_server(node)

    @invariant()
    def promises_hold(self) -> None:
        """There is one cause, no false success and no attempt too many."""
        if hasattr(self, "job"):
            self.job.check()

    def teardown(self) -> None:
        """Every job ends on every node."""
        if not hasattr(self, "job"):
            return
        self.job.come_to_an_end()
        self.job.check()
        for node in self.job.nodes:
            assert not node.alive, "workers without an agent"
            assert node.fate is Fate.KILLED or node.state.phase is Phase.OVER


TestHistory = History.TestCase
TestHistory.settings = settings(
    stateful_step_count=50, max_examples=in_all_rounds(150), deadline=None
)
