"""--nnodes MIN:MAX: the number of nodes follows losses and newcomers, as the coordinator sees it."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.coordination.door import (
    NEVER,
    ElasticJoin,
    Interrupted,
    JobPhase,
    KeepWaiting,
    Killed,
    LastCall,
    NextAttempt,
    NodeLost,
    Notice,
    ReformRules,
    Replacement,
    RestartRules,
    Stop,
    WorldFormed,
    due,
    reform_rules_of,
)
from tests.plans import job as described
from tests.rendezvous.nodes import fate, opened_job
from tests.rendezvous.replay import Replay

STOPPED = Killed(15)


def job_of(joined: int, fewest: int, most: int, *, restarts: int = 0, **rules: Any) -> Replay:
    """Return a job of MIN:MAX nodes that has begun with those that have ``joined``."""
    job = Replay(
        opened_job(
            most,
            restarts=RestartRules(restarts),
            last_call=LastCall(fewest, 30.0),
            keeps_joining_port=True,
            reforming=ReformRules(fewest=fewest, most=most, **rules),
        )
    )
    for number in range(1, joined):
        job.joins(number)
    job.waits(31.0)
    assert job.state.phase is JobPhase.RUNNING
    return job


def joins(job: Replay, number: int, **values: Any) -> None:
    """Let a node join the running job."""
    job.joins(number, must=job.state.own_hello.must, **values)


def all_stop(job: Replay, *numbers: int) -> None:
    """Let the workers of these nodes end, as ordered."""
    for number in numbers:
        rank = job.state.ranks[number]
        job.is_done(number, [(fate(rank, ending=STOPPED, stopped_by_us=True), 0.0)])


def newest(job: Replay) -> dict[int, tuple[int, int, int]]:
    """Return node rank, number of nodes and attempt of each member, by the last message."""
    worlds = {
        number: message.world
        for number, message in job.sent
        if isinstance(message, NextAttempt | WorldFormed)
    }
    return {number: (it.node_rank, it.nodes, it.attempt) for number, it in worlds.items()}


def progress(job: Replay) -> Any:
    """Return what node 0 got with its last order to restart."""
    return [it for it in job.sent_to(0) if isinstance(it, NextAttempt)][-1].progress


def test_ranks_are_counted_through_again() -> None:
    """The others go on without the lost node, and without a gap."""
    job = job_of(3, 1, 3)
    job.goes(1)
    all_stop(job, 0, 2)

    assert newest(job) == {0: (0, 2, 1), 1: (1, 3, 0), 2: (1, 2, 1)}
    assert progress(job).replacements == (Replacement(NodeLost(1, "n1"), ""),)
    assert (progress(job).losses, progress(job).nodes) == (1, 2)


def test_too_few_nodes_are_left() -> None:
    """The job ends, and says how many it needs."""
    job = job_of(3, 3, 4)
    job.goes(1)
    all_stop(job, 0, 2)

    assert set(job.verdicts.values()) == {NodeLost(1, "n1")}
    assert set(job.objections) == {"2 nodes left, and the minimum is 3"}


def test_too_few_nodes_wait_for_another_one() -> None:
    """With --rejoin-timeout."""
    job = job_of(2, 2, 4, rejoin_timeout=60.0, multiple=2)
    job.goes(1)
    all_stop(job, 0)
    before = job.state.phase
    job.waits(61.0)

    assert before is JobPhase.RESTARTING
    assert job.objections == [
        "1 node left, and the minimum is 2, a multiple of 2 within 60 s (--rejoin-timeout)"
    ]


def test_newcomers_wait_for_the_next_attempt() -> None:
    """Then they have the last ranks."""
    job = job_of(2, 1, 4, restarts=1)
    joins(job, 2)
    before = job.sent_to(2)
    failed = fate(1, 7)
    job.fails(1, failed)
    all_stop(job, 0)
    job.is_done(1, [(failed, 0.0)])

    assert before == [KeepWaiting("n0")]
    assert newest(job) == {0: (0, 3, 1), 1: (1, 3, 1), 2: (2, 3, 1)}
    assert (progress(job).restarts, progress(job).losses) == (1, 0)


def test_a_multiple_of_nodes_works() -> None:
    """From the beginning: the one too many waits, and takes the place of a lost one."""
    job = job_of(5, 2, 6, multiple=2)
    before = newest(job)
    job.goes(1)
    all_stop(job, 0, 2, 3)

    assert before.keys() == {0, 1, 2, 3}
    assert KeepWaiting("n0") in job.sent_to(4)
    assert {it: newest(job)[it] for it in (0, 2, 3, 4)} == {
        0: (0, 4, 1),
        2: (1, 4, 1),
        3: (2, 4, 1),
        4: (3, 4, 1),
    }


class TestLeftOut:
    """A node that had a place, and has none in a smaller multiple."""

    @pytest.fixture
    def job(self) -> Replay:
        """Return a job of four nodes that has lost one, of which two work now."""
        job = job_of(4, 2, 4, multiple=2)
        job.goes(1)
        all_stop(job, 0, 2, 3)
        assert newest(job)[2] == (1, 2, 1)
        assert job.state.waiting == [3]
        return job

    def test_it_waits_as_it_is(self, job: Replay) -> None:
        """Its agent has reported, and gets its next order later."""
        text = "this node waits for a place: the world has 2 nodes (--elastic-multiple 2)"

        assert job.sent_to(3)[-1] == Notice(text)

    def test_it_goes_on_with_the_next_attempt(self, job: Replay) -> None:
        """As a member that knows the attempts before."""
        joins(job, 5)
        job.goes(2)
        all_stop(job, 0)

        last = job.sent_to(3)[-1]
        assert isinstance(last, NextAttempt)
        assert (last.world.node_rank, last.world.attempt) == (1, 2)
        assert job.state.waiting == [5]

    def test_its_user_ends_it(self, job: Replay) -> None:
        """The job goes on without it."""
        job.is_ended_externally(3, Interrupted(15))

        assert job.verdicts == {3: Interrupted(15)}
        assert job.disconnected == [3]
        assert job.state.phase is JobPhase.RUNNING


class TestJoinNow:
    """--elastic-join now: all workers restart for a newcomer."""

    @pytest.fixture
    def job(self) -> Replay:
        """Return a job of two nodes that has room for two more."""
        return job_of(2, 1, 4, grows_after=10.0)

    def test_all_restart_some_time_later(self, job: Replay) -> None:
        """Others may join until then; it is no restart, and no loss."""
        joins(job, 2)
        job.waits(8.0)
        joins(job, 3)
        before = dict(job.stops)
        job.waits(2.5)
        all_stop(job, 0, 1)

        assert before == {}
        assert job.stops == dict.fromkeys((0, 1), "n2, n3 joined")
        assert newest(job) == {0: (0, 4, 1), 1: (1, 4, 1), 2: (2, 4, 1), 3: (3, 4, 1)}
        assert (progress(job).restarts, progress(job).losses) == (0, 0)
        assert due(job.state) == NEVER

    def test_ranks_that_fail_when_stopped_are_no_cause(self, job: Replay) -> None:
        """They were stopped for the newcomer."""
        joins(job, 2)
        job.waits(11.0)
        angry = fate(0, 3, stopped_by_us=True, tail="Traceback\nValueError: it\n")
        job.is_done(0, [(angry, 0.0)])
        all_stop(job, 1)

        assert newest(job)[2] == (2, 3, 1)

    def test_ranks_that_have_just_exited_with_0(self, job: Replay) -> None:
        """They exit once more, in a world with the newcomer: what was ordered is done."""
        joins(job, 2)
        job.waits(11.0)
        for number in (0, 1):
            job.is_done(number, [(fate(number), 0.0)])

        assert newest(job)[2] == (2, 3, 1)
        assert job.verdicts == {}

    def test_not_at_the_end(self, job: Replay) -> None:
        """A node has exited with 0: the others follow."""
        joins(job, 2)
        job.is_done(1, [(fate(1), 0.0)])
        job.waits(11.0)

        assert job.stops == {}

    def test_not_for_a_node_that_has_left(self, job: Replay) -> None:
        """Nothing is gained."""
        joins(job, 2)
        job.goes(2)
        job.waits(11.0)

        assert job.stops == {}

    def test_a_node_is_lost_while_all_stop(self, job: Replay) -> None:
        """Then that is the reason, and newcomers are let in all the same."""
        joins(job, 2)
        job.waits(11.0)
        job.goes(1)
        all_stop(job, 0)

        assert newest(job)[2] == (1, 2, 1)
        assert progress(job).losses == 1

    def test_a_signal_while_all_stop(self, job: Replay) -> None:
        """It ends the job."""
        joins(job, 2)
        job.waits(11.0)
        job.is_ended_externally(0, Interrupted(15))
        all_stop(job, 0, 1)

        assert set(job.verdicts.values()) == {Interrupted(15)}


def test_a_lost_node_ends_a_job_that_was_to_grow() -> None:
    """It was lost after its report: too few are left, and the loss is why the job ends."""
    job = job_of(3, 3, 4, grows_after=0.0)
    joins(job, 3, workers=1)
    job.waits(1.0)
    all_stop(job, 1)
    job.goes(1)
    job.goes(3)
    all_stop(job, 0, 2)

    assert job.verdicts[0] == NodeLost(1, "n1")
    assert any(isinstance(message, Stop) for _, message in job.sent)


def test_the_options() -> None:
    """MIN and MAX, and what follows from them."""
    values = {"nnodes": 4, "fewest_nodes": 2, "elastic_join": ElasticJoin.NOW}

    rules = reform_rules_of(described(**values, elastic_multiple=2))

    assert rules == ReformRules(fewest=2, most=4, multiple=2, grows_after=30.0, fails_over=True)
    assert replace(rules, grows_after=None) == reform_rules_of(
        described(nnodes=4, fewest_nodes=2, elastic_multiple=2)
    )
