"""A job that outlives its nodes, as the coordinator sees it: losses, places, counts, ends."""

from typing import Any

import pytest

from tests.coordination.door import (
    NEVER,
    Interrupted,
    JobPhase,
    KeepWaiting,
    Killed,
    MemberGone,
    MessageReceived,
    NextAttempt,
    NodeLost,
    Notice,
    Paused,
    RankAsks,
    ReformRules,
    Refusal,
    Replacement,
    RequestSuspension,
    RestartRules,
    Succeeded,
    SuspensionPossible,
    TimePassed,
    WorkerFailed,
    due,
    reform_rules_of,
)
from tests.plans import job as described
from tests.rendezvous.nodes import fate, opened_job
from tests.rendezvous.replay import Replay

SILENT = "has been silent for 17 s"
STOPPED = Killed(15)


def job_of(
    working: int,
    spares: int,
    *,
    restarts: int = 0,
    most_losses: int | None = None,
    rejoin_timeout: float = 0.0,
    exclude_after: int = 0,
    **values: Any,
) -> Replay:
    """Return a running job; its spares have the highest numbers."""
    rules = ReformRules(spares, most_losses, rejoin_timeout, exclude_after=exclude_after)
    nodes = working + spares
    job = Replay(
        opened_job(
            nodes,
            restarts=RestartRules(restarts),
            reforming=rules,
            keeps_joining_port=True,
            **values,
        )
    )
    for number in range(1, nodes):
        job.joins(number)
    assert job.state.phase is JobPhase.RUNNING
    return job


def all_stop(job: Replay, *numbers: int) -> None:
    """Let the workers of these nodes end, as ordered."""
    for number in numbers:
        rank = job.state.ranks[number]
        job.is_done(number, [(fate(rank, ending=STOPPED, stopped_by_us=True), 0.0)])


def again(job: Replay) -> dict[int, NextAttempt]:
    """Return the last order to restart that each connection received."""
    return {number: message for number, message in job.sent if isinstance(message, NextAttempt)}


def test_spares_wait() -> None:
    """The nodes that joined last have no place in the world."""
    job = job_of(2, 1)

    assert {number: world.node_rank for number, world in job.worlds.items()} == {0: 0, 1: 1}
    assert {world.size for world in job.worlds.values()} == {2}
    assert job.sent_to(2) == [KeepWaiting("n0")]
    assert not job.port_is_closed


def test_nodes_with_the_highest_ranks_are_spares() -> None:
    """If the scheduler gives ranks, in whatever order the nodes join."""
    job = Replay(opened_job(3, reforming=ReformRules(1), rank=0))
    job.joins(1, rank=2)
    job.joins(2, rank=1)

    assert {number: world.node_rank for number, world in job.worlds.items()} == {0: 0, 2: 1}
    assert job.sent_to(1) == [KeepWaiting("n0")]


def test_a_spare_takes_the_place_of_a_lost_node() -> None:
    """It gets the rank and the attempt; the others learn who has it. No restart is counted."""
    job = job_of(3, 2)
    job.goes(1)
    all_stop(job, 0, 2)

    worlds = {number: message.world for number, message in again(job).items()}
    worlds[3] = job.worlds[3]
    assert {number: world.node_rank for number, world in worlds.items()} == {0: 0, 3: 1, 2: 2}
    assert {(world.attempt, world.size, world.nodes) for world in worlds.values()} == {(1, 3, 3)}
    progress = again(job)[0].progress
    assert (progress.restarts, progress.losses) == (0, 1)
    assert progress.replacements == (Replacement(NodeLost(1, "n1"), "n3"),)
    assert again(job)[0].reason == NodeLost(1, "n1")
    assert job.state.waiting == [4]


def test_its_next_reports_are_those_of_its_new_ranks() -> None:
    """And a member that has been forgotten is disconnected."""
    job = job_of(2, 1)
    job.goes(1)
    all_stop(job, 0)

    job.is_done(2, [(fate(1), 0.0)])
    job.is_done(0, [(fate(0), 0.0)])

    assert job.verdicts == {0: Succeeded(), 2: Succeeded()}


def test_two_nodes_are_lost_at_once() -> None:
    """Both are replaced, and counted."""
    job = job_of(3, 2)
    job.goes(1)
    job.goes(2)
    all_stop(job, 0)

    assert again(job)[0].progress.losses == 2
    assert {number for number, world in job.worlds.items() if world.attempt == 1} == {3, 4}


BUS_ERROR = Killed(7)


def fails_on(job: Replay, number: int, *others: int, **how: Any) -> None:
    """Let an attempt end by the failure of a worker of this node."""
    host = job.state.members.hellos[number].host
    failed = fate(job.state.ranks[number], host=host, **how)
    job.fails(number, failed)
    all_stop(job, *others)
    job.is_done(number, [(failed, 0.0)])


def test_a_node_that_fails_twice_by_its_machine_is_left_out() -> None:
    """A spare takes its place; it waits itself, and gets no place while another node has one."""
    job = job_of(2, 1, restarts=9, exclude_after=2, rejoin_timeout=60.0)
    fails_on(job, 1, 0, ending=BUS_ERROR, tail="bus error")
    assert again(job)[0].progress.replacements == ()

    fails_on(job, 1, 0, ending=BUS_ERROR, tail="bus error")

    assert {number: job.state.ranks[number] for number in job.state.ranks} == {0: 0, 2: 1}
    left_out = NodeLost(1, "n1", "is left out after 2 failures by its machine (SIGBUS)")
    progress = again(job)[0].progress
    assert progress.replacements == (Replacement(left_out, "n2"),)
    assert (progress.restarts, progress.losses) == (2, 0)
    why = "this node is left out (--exclude-after), and waits until the job ends"
    assert job.sent_to(1)[-1] == Notice(why)
    assert job.state.waiting == [1]

    # Nobody else is there when the spare is lost: a bad node is better than none.
    job.goes(2)
    all_stop(job, 0)
    assert job.state.ranks == {0: 0, 1: 1}


@pytest.mark.parametrize(
    ("how", "is_bad"),
    [
        ({"code": 1}, False),
        ({"code": 1, "machine_fault": "GPU 3 is lost"}, True),
        ({"ending": Killed(9)}, False),
        ({"ending": Killed(9), "out_of_memory": "one", "machine_fault": "no memory left"}, True),
        ({"code": 1, "out_of_memory": "one", "machine_fault": "no memory left"}, False),
    ],
)
def test_what_points_to_a_bad_machine(how: dict[str, Any], *, is_bad: bool) -> None:
    """An exit code does not, nor does the OOM killer if it struck something else."""
    job = job_of(2, 1, restarts=9, exclude_after=1)

    fails_on(job, 1, 0, **how)

    assert (1 not in job.state.ranks) == is_bad


def joined(*faulty: int, nodes: int = 4, **rules: Any) -> Replay:
    """Return a job whose nodes have joined; those with these numbers have failed their check."""
    reforming = ReformRules(**rules)
    own = {"fault": "GPU 3 is lost"} if 0 in faulty else {}
    job = Replay(opened_job(nodes, reforming=reforming, keeps_joining_port=True, **own))
    for number in range(1, nodes):
        job.joins(number, fault="GPU 3 is lost" if number in faulty else "")
    return job


@pytest.mark.parametrize(
    "rules", [{"spares": 1}, {"fewest": 3, "most": 4}], ids=["spares", "elastic"]
)
def test_a_node_that_fails_its_check_does_not_work(rules: dict[str, Any]) -> None:
    """The others do, with the highest ranks moving up."""
    job = joined(1, **rules)

    assert job.state.ranks == {0: 0, 2: 1, 3: 2}
    assert job.sent_to(1) == [KeepWaiting("n0")]
    assert job.notices[-1].endswith("is left out, as it fails its check: GPU 3 is lost")


@pytest.mark.parametrize("faulty", [(0,), (1, 2)], ids=["node 0", "two"])
@pytest.mark.parametrize(
    "rules", [{"spares": 1}, {"fewest": 3, "most": 4}], ids=["spares", "elastic"]
)
def test_too_few_nodes_pass_their_check(faulty: tuple[int, ...], rules: dict[str, Any]) -> None:
    """The job does not begin; nor does it without node 0, which runs the coordinator."""
    job = joined(*faulty, **rules)

    assert job.state.phase is JobPhase.OVER
    text, _ = job.state.contradiction
    assert text.endswith("fails its check (--check-nodes): GPU 3 is lost")


def test_node_zero_is_not_left_out() -> None:
    """Its agent runs the coordinator."""
    job = job_of(2, 1, restarts=9, exclude_after=1)

    fails_on(job, 0, 1, ending=BUS_ERROR)

    assert job.state.ranks == {0: 0, 1: 1}


def test_a_node_is_lost_after_its_report() -> None:
    """The failure of a worker is the reason for the restart, and it is counted; so is the loss."""
    job = job_of(2, 1, restarts=1)
    failed = fate(0, 7)
    job.fails(0, failed)
    all_stop(job, 1)
    job.goes(1)
    job.is_done(0, [(failed, 0.0)])

    order = again(job)[0]
    assert order.reason == WorkerFailed(failed)
    assert (order.progress.restarts, order.progress.losses) == (1, 1)


def test_no_node_waits() -> None:
    """Then the job ends, and says so."""
    job = job_of(2, 1)
    job.goes(2)
    job.goes(1)
    all_stop(job, 0)

    assert job.verdicts == {0: NodeLost(1, "n1")}
    assert job.objections == ["no other node has taken the place of node 1 (n1)"]
    assert "n2 (pid 12), which waited for a place, has left" in job.notices


def test_too_many_nodes_are_lost() -> None:
    """--max-node-losses counts all attempts."""
    job = job_of(2, 3, most_losses=1)
    job.goes(1)
    all_stop(job, 0)
    job.goes(2)
    all_stop(job, 0)

    assert job.verdicts[0] == NodeLost(1, "n2")
    assert set(job.objections) == {"--max-node-losses allows 1"}
    assert job.verdicts.keys() == {0, 3, 4}


def test_silent_nodes_need_a_majority() -> None:
    """Half of the agents is not enough: the other half may be a part of the job that goes on."""
    job = job_of(2, 2)
    job.is_silent(1)
    job.is_silent(3)
    all_stop(job, 0)

    assert job.verdicts[0] == NodeLost(1, "n1", SILENT)
    [why] = set(job.objections)
    assert why.startswith("2 of 4 nodes are left, not more than half")
    assert job.verdicts.keys() >= {0, 1, 2}


@pytest.mark.parametrize("ends", [True, False])
def test_a_silent_node_that_ends_is_no_other_part(*, ends: bool) -> None:
    """Its kernel has closed the connection since: no majority is needed."""
    job = job_of(2, 1)
    job.goes(2)
    job.joins(3, must=job.state.own_hello.must)
    job.is_silent(1)
    if ends:
        job.goes(1)
    all_stop(job, 0)
    job.waits(2.0)

    assert (3 in job.worlds) is ends
    assert (0 in job.verdicts) is not ends


def test_a_connection_that_node_zero_closes_is_no_proof() -> None:
    """That agent may still run."""
    job = job_of(1, 1)
    job.happens(MemberGone(1, "", 0.0, dropped=True))

    assert job.state.departed == set()


def test_a_silent_node_receives_the_verdict() -> None:
    """It may have been frozen: it finds that the others have gone on."""
    job = job_of(2, 1)
    job.is_silent(1)
    all_stop(job, 0)
    job.waits(2.0)

    assert job.verdicts == {1: NodeLost(1, "n1", SILENT)}
    assert job.objections == ["the other nodes have gone on without this one"]
    assert job.disconnected == [1]
    assert again(job).keys() == {0}


@pytest.mark.parametrize("first", [1, 2])
def test_node_zero_is_cut_off(first: int) -> None:
    """It finds the others silent one after the other, and begins no attempt in between."""
    job = job_of(2, 1)
    job.is_silent(first)
    if first == 1:
        all_stop(job, 0)
    job.waits(0.9)
    before = dict(job.verdicts)
    job.is_silent(3 - first)
    if first == 2:
        all_stop(job, 0)

    assert before == {}
    assert again(job) == {}
    assert job.verdicts[0] == NodeLost(1, "n1", SILENT)
    assert job.objections[-1].startswith("1 of 3 nodes are left")


def test_a_spare_is_silent() -> None:
    """It is forgotten."""
    job = job_of(2, 1)
    job.is_silent(2)

    assert job.disconnected == [2]
    assert job.state.waiting == []
    assert f"n2 (pid 12), which waited for a place, {SILENT}" in job.notices


def test_a_node_joins_a_running_job() -> None:
    """It waits, with whatever rank: ranks are those of the beginning."""
    job = job_of(2, 1)
    job.goes(1)
    all_stop(job, 0)

    job.joins(3, rank=1, host="n1", must=job.state.own_hello.must)

    assert job.sent_to(3) == [KeepWaiting("n0")]
    assert job.state.waiting == [3]
    assert "n1 (pid 13) has joined and waits to take the place of a lost node" in job.notices


def test_a_node_with_other_options_cannot_join() -> None:
    """The job goes on, even if the newcomer has its token."""
    job = job_of(2, 1, has_token=True)
    job.joins(3, must={"nnodes": "7"})

    assert job.refusals[3].refusal is Refusal.GIVE_UP
    assert job.state.phase is JobPhase.RUNNING


def test_a_second_node_zero_cannot_wait() -> None:
    """It would be node 0 of another job with the same options."""
    job = job_of(2, 1)
    job.joins(3, rank=0, must=job.state.own_hello.must)

    text = "n3 (pid 13) has node rank 0, but n0:29500 is an address of n0 (pid 10)"
    assert job.refusals[3].text == text
    assert 3 not in job.state.waiting


def test_more_nodes_than_places_cannot_wait() -> None:
    """Each node may come back once."""
    job = job_of(1, 1)
    must = job.state.own_hello.must
    job.joins(2, must=must)
    job.joins(3, must=must)

    assert job.state.waiting == [1, 2]
    assert job.refusals[3].text == "enough nodes wait for a place in the job at n0:29500: n1, n2"


class TestRejoining:
    """--rejoin-timeout: the next attempt waits for another node."""

    @pytest.fixture
    def job(self) -> Replay:
        """Return a job that has lost a node, and waits."""
        job = job_of(2, 0, rejoin_timeout=60.0)
        job.goes(1)
        all_stop(job, 0)
        assert job.state.phase is JobPhase.RESTARTING
        return job

    def test_the_node_comes_back(self, job: Replay) -> None:
        """The next attempt begins at once."""
        job.waits(30.0)
        job.joins(2, host="n1", must=job.state.own_hello.must)

        assert job.worlds[2].attempt == 1
        assert job.state.phase is JobPhase.RUNNING
        assert due(job.state) == NEVER

    def test_no_node_comes(self, job: Replay) -> None:
        """The job ends when the time is over."""
        job.waits(59.0)
        job.happens(TimePassed(job.now))
        before = dict(job.verdicts)
        job.waits(2.0)

        assert before == {}
        assert job.verdicts == {0: NodeLost(1, "n1")}
        assert job.objections == [
            "no other node has taken the place of node 1 (n1) within 60 s (--rejoin-timeout)"
        ]

    def test_it_waits_again_after_the_next_loss(self, job: Replay) -> None:
        """The time counts anew for each attempt."""
        job.waits(50.0)
        job.joins(2, must=job.state.own_hello.must)
        job.goes(2)
        all_stop(job, 0)
        job.waits(50.0)

        assert job.state.phase is JobPhase.RESTARTING
        assert job.state.losses == 1

    def test_a_signal_ends_it(self, job: Replay) -> None:
        """The agents wait for an answer, and report the signal."""
        job.is_ended_externally(0, Interrupted(15))

        assert job.verdicts == {0: Interrupted(15)}

    def test_other_messages_end_nothing(self, job: Replay) -> None:
        """A pause is passed on, and late reports of stacks and marks are dropped."""
        job.happens(MessageReceived(0, RankAsks(0), 1.0))
        job.is_paused(0)

        assert job.state.phase is JobPhase.RESTARTING
        assert job.state.paused == {0}


def three_of_which_one_is_lost() -> Replay:
    """Return a job of three nodes that waits for another one."""
    job = job_of(3, 0, rejoin_timeout=60.0)
    job.goes(1)
    all_stop(job, 0, 2)
    return job


def test_another_node_is_lost_meanwhile() -> None:
    """Both places are to be taken."""
    job = three_of_which_one_is_lost()
    job.goes(2)
    must = job.state.own_hello.must
    job.joins(3, must=must)
    before = job.state.phase
    job.joins(4, must=must)

    assert before is JobPhase.RESTARTING
    assert {number: world.node_rank for number, world in job.worlds.items() if world.attempt} == {
        3: 1,
        4: 2,
    }


def test_another_node_is_silent_meanwhile() -> None:
    """One of three is left, which is no majority."""
    job = three_of_which_one_is_lost()
    job.is_silent(2)
    job.is_silent(2)

    assert job.verdicts == {0: NodeLost(1, "n1"), 2: NodeLost(1, "n1")}
    assert job.state.phase is JobPhase.OVER


def test_the_host_of_another_node_dies_meanwhile() -> None:
    """Its kernel no longer answers: one of three is left, which is no majority."""
    job = three_of_which_one_is_lost()
    job.happens(MemberGone(2, "", 0.0, unreachable=True))

    assert job.state.phase is JobPhase.OVER
    assert job.state.departed == {1}


def test_a_lost_node_is_reported_lost_again() -> None:
    """Its loss is known already."""
    job = job_of(3, 0, rejoin_timeout=60.0)
    job.is_silent(1)
    all_stop(job, 0, 2)
    job.is_silent(1)
    job.goes(1)

    assert job.state.phase is JobPhase.RESTARTING
    assert job.state.departed == {1}
    assert len(job.state.lost) == 1


def test_a_spare_that_does_not_fit_is_lost_meanwhile() -> None:
    """The places are still empty."""
    job = three_of_which_one_is_lost()
    job.joins(3, workers=2, must=job.state.own_hello.must)
    job.goes(3)

    assert job.state.phase is JobPhase.RESTARTING
    assert job.state.waiting == []


def test_a_refused_node_may_leave_meanwhile() -> None:
    """It has no place, and waits for none."""
    job = three_of_which_one_is_lost()
    job.joins(3, must={"nnodes": "7"})
    job.happens(MemberGone(3, "", 0.0))

    assert job.state.phase is JobPhase.RESTARTING


def test_the_rules_come_from_the_options() -> None:
    """Of a job on one node none holds."""
    values = {"spares": 1, "max_node_losses": 3, "rejoin_timeout": 5.0}

    assert reform_rules_of(described(nnodes=2, **values)) == ReformRules(1, 3, 5.0, fails_over=True)
    assert reform_rules_of(described(rejoin_timeout=5.0)) == ReformRules()


def test_a_spare_learns_that_a_rank_can_be_suspended() -> None:
    """SIGTERM to its agent is a request, as to any other; also if it joins later."""
    job = job_of(2, 1)
    job.happens(MessageReceived(0, RankAsks(0), 1.0))
    job.joins(3, must=job.state.own_hello.must)

    for spare in (2, 3):
        assert job.sent_to(spare) == [KeepWaiting("n0"), SuspensionPossible()]


def test_a_spare_may_ask_for_a_suspension() -> None:
    """Whatever it sends of ranks has no meaning."""
    job = job_of(2, 1)
    job.happens(MessageReceived(2, RankAsks(0), 1.0))
    job.happens(MessageReceived(2, RequestSuspension("SIGUSR1"), 1.0))

    assert job.state.request is not None
    assert job.state.request.by == "SIGUSR1 on n2"
    assert not job.state.can_suspend
    assert job.verdicts == {}


def test_a_spare_knows_that_node_zero_is_paused() -> None:
    """Otherwise it would take its silence for a loss."""
    job = job_of(2, 1)
    job.is_paused(0)

    assert Paused(paused=True) in job.sent_to(2)
