"""Node 0 is lost, and the others go on: under whom, with how many, and when they end all the same."""

import signal

import pytest

from tests.histories.told_succession import Job

WENT_ON = "the other nodes have gone on without this one"

NO_MAJORITY = (
    "not more than half, and the others may still run: two parts of a job must not go on at once)"
)


def started(job: Job) -> list[str]:
    """Return which ranks have been started since the last call."""
    return [line for line in job.saw() if " starts " in line]


def ended(job: Job) -> list[str]:
    return [line for line in job.saw() if " ends " in line]


def test_another_node_goes_on_in_its_stead() -> None:
    """Workers are killed first; the next node gathers the others, and has rank 0 of their world."""
    job = Job(nodes=3, least=1)

    assert job.loses_node(0).settles().saw() == [
        "node 1 prints: node 0 (n0) is gone: killing 1 worker here, since the other nodes may go on",
        "node 1 sends SIGKILL to rank 1 and all they started",
        "node 1 kills what its ranks have left",
        "node 1 gathers the others",
        "node 2 prints: node 0 (n0) is gone: killing 1 worker here, since the other nodes may go on",
        "node 2 sends SIGKILL to rank 2 and all they started",
        "node 2 kills what its ranks have left",
        "node 2 turns to node 1",
        "node 1 starts rank 0, attempt 1",
        "node 2 starts rank 1, attempt 1",
    ]
    for node in (1, 2):
        assert job.meet_at(node) == "10.0.0.1:29500"
        assert job.restarted(node) == (
            "node 0 is gone; restarts: 0, lost nodes: 1, nodes: 2;"
            " node 0 (n0) is gone: nobody has its place"
        )
    assert ended(job.exits(0, 1).settles()) == [
        "node 1 ends with 0: all ranks have succeeded",
        "node 2 ends with 0: all ranks have succeeded",
    ]


def test_a_spare_takes_its_place() -> None:
    """The world keeps its size; ranks meet on the spare, at the port that it holds."""
    job = Job(nodes=2, spares=1)

    assert started(job.loses_node(0).settles()) == [
        "node 1 starts rank 1, attempt 1",
        "node 2 starts rank 0, attempt 1",
    ]
    assert [job.meet_at(node) for node in (1, 2)] == ["10.0.0.2:2002", "10.0.0.2:2002"]
    assert job.restarted(1) == (
        "node 0 is gone; restarts: 0, lost nodes: 1; node 0 (n0) is gone: n2 has its place"
    )


def test_the_last_node_needs_no_majority() -> None:
    """If the other one is known to have ended; one that is silent may go on itself."""
    killed, silent = Job(nodes=2, least=1), Job(nodes=2, least=1)

    assert started(killed.loses_node(0).passes(1)) == ["node 1 starts rank 0, attempt 1"]
    assert ended(silent.cuts(0).passes(29.5)) == []
    assert ended(silent.passes(1)) == [
        (
            "node 1 ends with 5: node 0 has been silent for 15 s"
            f" (no restart: 1 of 2 nodes are left, {NO_MAJORITY}"
        ),
    ]


def test_without_a_majority_all_end() -> None:
    """One that has come and left again counts no more."""
    half, left = Job(nodes=4, least=1), Job(nodes=4, least=1)
    half.cuts(0).cuts(3).passes(31)
    left.cuts(0).cuts(3).passes(16).loses_node(2).settles().heals().cuts(0).passes(15)

    for job, nodes in ((half, (1, 2)), (left, (1, 3))):
        ends = ended(job)
        for node in nodes:
            assert (
                f"node {node} ends with 5: node 0 has been silent for 15 s"
                f" (no restart: 2 of 4 nodes are left, {NO_MAJORITY}"
            ) in ends


def test_missing_nodes_may_come_as_long_as_leases_run() -> None:
    """--heartbeat-timeout after the last sign of node 0; then they are refused."""
    comes, is_late = Job(nodes=5, least=1), Job(nodes=5, least=1)
    for job in (comes, is_late):
        assert started(job.cuts(4).passes(1).loses_node(0).settles().passes(14)) == []

    assert started(comes.heals().settles()) == [
        "node 1 starts rank 0, attempt 1",
        "node 2 starts rank 1, attempt 1",
        "node 3 starts rank 2, attempt 1",
        "node 4 starts rank 3, attempt 1",
    ]
    assert started(is_late.passes(1.5)) == [
        "node 1 starts rank 0, attempt 1",
        "node 2 starts rank 1, attempt 1",
        "node 3 starts rank 2, attempt 1",
    ]
    assert ended(is_late.heals().passes(1)) == [
        f"node 4 ends with 5: node 0 has been silent for 15 s (no restart: {WENT_ON})",
    ]


def test_leases_that_are_over_are_not_waited_out() -> None:
    """The majority waits for a moment, since others may be about to come."""
    job = Job(nodes=5, least=1)

    assert started(job.cuts(0).cuts(4).passes(17)) == []
    assert len(started(job.passes(1))) == 3


@pytest.mark.parametrize("claim", [{"attempt": 3}, {"coordinator": "another"}, {"node_rank": 1}])
def test_a_claim_to_what_nobody_lost_is_refused(claim: dict[str, object]) -> None:
    """Another attempt's or coordinator's place, or one that is taken; the right one is not."""
    wrong, right = Job(nodes=4, least=1), Job(nodes=4, least=1)
    for job in (wrong, right):
        job.cuts(2).cuts(3).passes(10).loses_node(0).settles().passes(6).heals().saw()

    assert ended(wrong.claims(2, of=1, **claim).settles())[0].endswith(f"(no restart: {WENT_ON})")
    assert ended(right.claims(2, of=1).settles()) == []


def test_an_agent_that_has_missed_an_attempt_is_refused() -> None:
    """Node 0 has gone on without it, and was lost only then."""
    job = Job(nodes=6, least=1)
    job.cuts(4).passes(17.5).dies(0, 1, 2, 3, 5, by=signal.SIGTERM).settles().passes(2.5)
    assert started(job)[-1] == "node 5 starts rank 4, attempt 1"

    job.loses_node(1).loses_node(0).settles().heals().passes(1)

    assert ended(job) == [
        f"node 4 ends with 5: node 0 has been silent for 15 s (no restart: {WENT_ON})",
    ]


def test_the_last_node_goes_on_after_a_restart_too() -> None:
    """Node 0, which is known to have ended, was one of the attempt before as well."""
    job = Job(nodes=2, least=1, restarts=1)
    job.exits(1, code=3).settles().dies(0, by=signal.SIGTERM).settles().saw()

    assert started(job.loses_node(0).passes(1)) == ["node 1 starts rank 0, attempt 2"]


def test_restarts_and_losses_are_counted_on() -> None:
    """--max-restarts holds for the whole job, and so does a growing pause."""
    restarts, losses = Job(nodes=3, least=1, restarts=3), Job(nodes=4, least=1)
    for attempt in range(2):
        restarts.exits(2, code=3 + attempt).settles().dies(0, 1, by=signal.SIGTERM).passes(2)
        assert len(started(restarts)) == 3, attempt
    restarts.loses_node(0).passes(3).exits(0, code=1).settles().dies(1, by=signal.SIGTERM)
    losses.loses_node(3).settles().dies(0, 1, 2, by=signal.SIGTERM).settles()

    assert restarts.settles().saw()[-1] == (
        "node 1 prints: restarting in 0.5 s, since workers have failed within 10 s of their start"
        " 3 times in a row"
    )
    restarts.passes(3).exits(0, code=2).settles().dies(1, by=signal.SIGTERM).settles()
    assert "node 2 ends with 2: rank 0 failed" in ended(restarts)
    losses.loses_node(0).passes(16).settles()
    assert losses.restarted(1).endswith(
        "lost nodes: 2, nodes: 2; node 0 (n0) is gone: nobody has its place"
    )


def test_nobody_waits_for_newcomers() -> None:
    """They look for the job where node 0 was: --rejoin-timeout is over at once."""
    job = Job(nodes=4, spares=1, rejoin=60)
    job.loses_node(1).settles().dies(0, 2, 3, by=signal.SIGTERM).settles().saw()

    assert ended(job.loses_node(0).passes(16)) == [
        (
            f"node {node} ends with 5: node 0 is gone (no restart: no other node has taken the place"
            " of node 0 (n0))"
        )
        for node in (2, 3, 4)
    ]


def test_a_suspension_is_still_wanted() -> None:
    """All successors know of the request as soon as it is made."""
    job = Job(nodes=3, least=1)
    job.asked_to_suspend("SIGUSR1", node=2).settles()

    assert job.loses_node(0).settles().saw()[-4:] == [
        "node 1 starts rank 0, attempt 1",
        "node 1 holds its ranks",
        "node 2 starts rank 1, attempt 1",
        "node 2 holds its ranks",
    ]


def test_a_successor_has_successors() -> None:
    """So the job may lose one coordinator after the other."""
    job = Job(nodes=4, least=1)
    job.loses_node(0).settles().loses_node(1).passes(16)

    assert started(job)[-2:] == [
        "node 2 starts rank 0, attempt 2",
        "node 3 starts rank 1, attempt 2",
    ]


def test_the_first_three_nodes_by_rank_are_successors() -> None:
    """One that is lost with node 0 is passed over at once; without any of them all end."""
    third, none = Job(nodes=6, least=1), Job(nodes=6, least=1)
    third.loses_node(2).loses_node(1).loses_node(0)
    none.loses_node(3).loses_node(2).loses_node(1).loses_node(0)

    assert started(third.settles()) == [
        "node 3 starts rank 0, attempt 1",
        "node 4 starts rank 1, attempt 1",
        "node 5 starts rank 2, attempt 1",
    ]
    assert ended(none.settles()) == [
        (
            f"node {node} ends with 5: node 0 is gone (no restart: no successor of it has gathered"
            " more than half of the nodes)"
        )
        for node in (4, 5)
    ]


def test_a_spare_is_no_successor() -> None:
    """Nor is any node of a job that no option lets outlive its nodes."""
    spares, plain = Job(nodes=2, spares=2), Job(nodes=3)
    spares.loses_node(1).loses_node(0).settles()
    plain.loses_node(0).settles().dies(1, 2, by=signal.SIGTERM).settles()

    assert ended(spares) == [
        "node 2 ends without having had a place",
        "node 3 ends without having had a place",
    ]
    assert ended(plain) == [f"node {node} ends with 5: node 0 is gone" for node in (1, 2)]


def test_a_node_that_others_cannot_reach_is_no_successor() -> None:
    """It is on node 0's machine, at an address that leads nowhere else; all may be on one machine."""
    one = Job(nodes=3, least=1, addresses={1: "127.0.0.1"})
    all_ = Job(nodes=3, least=1, addresses={1: "127.0.0.1", 2: "127.0.0.1"})

    assert "node 2 gathers the others" in one.loses_node(0).settles().saw()
    assert "node 1 gathers the others" in all_.loses_node(0).settles().saw()


def test_successors_have_their_turns() -> None:
    """Each for an equal part of --heartbeat-timeout; an agent that none answers ends."""
    second, none = Job(nodes=5, least=1), Job(nodes=6, least=1)
    second.cuts(0).cuts(1)
    none.cuts(0).cuts(1).cuts(2).cuts(3)

    assert "node 2 gathers the others" not in second.passes(18.5).saw()
    assert second.passes(0.5).saw()[:2] == [
        "node 2 gathers the others",
        "node 3 turns to node 2",
    ]
    assert not any("node 4" in line for line in ended(none.passes(26)))
    assert "node 4 ends" in "".join(ended(none.passes(0.5)))


def test_an_agent_stays_with_the_successor_that_has_its_claim() -> None:
    """Another one could count it too; only if that one has ended it turns to the next, in its turn."""
    silent, dead = Job(nodes=6, least=1), Job(nodes=6, least=1)
    for job in (silent, dead):
        job.cuts(2).cuts(5).passes(1).loses_node(0).settles()
        assert job.saw()[-1] == "node 4 turns to node 1"

    assert not any("node 3 gathers" in line for line in silent.cuts(3).cuts(4).passes(30).saw())
    assert not any("gathers" in line for line in dead.loses_node(1).passes(7).saw())
    assert dead.passes(1).saw() == ["node 3 gathers the others", "node 4 turns to node 3"]


def test_the_next_attempt_waits_until_all_know_of_the_last_one() -> None:
    """One that knows only an earlier one could follow another successor."""
    job = Job(nodes=3, spares=3)
    job.freezes(5).loses_node(1).settles().dies(0, 2, by=signal.SIGTERM).settles()
    assert len(started(job)) == 3

    job.loses_node(3).settles().dies(0, 2, by=signal.SIGTERM).settles()

    assert started(job.confirms(5, attempt=0).settles()) == []
    assert started(job.thaws(5).settles()) == [
        "node 0 starts rank 0, attempt 2",
        "node 2 starts rank 2, attempt 2",
        "node 4 starts rank 1, attempt 2",
    ]


def test_it_does_not_wait_for_one_that_is_lost() -> None:
    """Whether it works or waits."""
    works, waits = Job(nodes=4, least=1), Job(nodes=3, spares=3)
    works.loses_node(1).settles().dies(3, by=signal.SIGTERM).settles().freezes(3)
    works.dies(0, 2, by=signal.SIGTERM).settles().passes(18)
    waits.freezes(5).loses_node(1).settles().dies(0, 2, by=signal.SIGTERM).settles()
    waits.loses_node(3).settles()

    for job, rank in ((works, 1), (waits, 2)):
        assert started(job) != []
        assert f"node 2 starts rank {rank}, attempt 2" in started(
            job.dies(0, rank, by=signal.SIGTERM).passes(20)
        )


def test_an_attempt_is_known_before_it_begins() -> None:
    """Whoever gets no more than that of it can follow a successor all the same."""
    job = Job(nodes=3, least=1, restarts=1)
    job.exits(2, code=3).settles().freezes(2).dies(0, 1, by=signal.SIGTERM).settles().saw()

    job.thaws(2).gets(2).cuts(2, off=(0,)).passes(5).loses_node(0)

    assert started(job.passes(16)) == [
        "node 1 starts rank 0, attempt 2",
        "node 2 starts rank 1, attempt 2",
    ]


def test_newcomers_alone_may_not_go_on() -> None:
    """More than half of the agents of the attempt before are needed, too: some may know only that."""
    job = Job(nodes=3, least=1, restarts=1)
    job.joins().joins().joins().settles()
    job.exits(1, code=7).settles().dies(0, 2, by=signal.SIGTERM).settles().saw()

    ends = ended(job.cuts(0, 2).passes(31))

    assert (
        "node 1 ends with 5: node 0 has been silent for 15 s (no restart: 1 of 3 nodes" in ends[0]
    )


def test_a_frozen_node_0_that_continues_has_no_majority() -> None:
    """The others have turned away, which is no end: they may go on without it, as they do."""
    job = Job(nodes=3, least=1)

    assert started(job.freezes(0).passes(18)) == [
        "node 1 starts rank 0, attempt 1",
        "node 2 starts rank 1, attempt 1",
    ]
    assert ended(job.thaws(0).passes(1).stops(0).passes(2)) == [
        (
            "node 0 ends with 5: node 1 has been silent for 17 s"
            f" (no restart: 1 of 3 nodes are left, {NO_MAJORITY}"
        ),
    ]


def test_a_spare_that_has_turned_away_counts_as_missing() -> None:
    """It takes no place of node 0's job, and may be one of those who go on elsewhere."""
    job = Job(nodes=2, spares=1)
    job.cuts(2).passes(16).heals().passes(0.5).loses_node(1).settles()

    assert ended(job.dies(0, by=signal.SIGTERM).settles())[-1] == (
        f"node 0 ends with 5: node 1 is gone (no restart: 1 of 3 nodes are left, {NO_MAJORITY}"
    )


def test_one_that_alone_has_lost_node_0_ends() -> None:
    """The others do not come to it: they go on with node 0, and a spare."""
    job = Job(nodes=3, spares=1)

    job.cuts(1, off=(0,)).passes(18).dies(0, 2, by=signal.SIGTERM).passes(2)
    assert started(job) == [
        "node 0 starts rank 0, attempt 1",
        "node 2 starts rank 2, attempt 1",
        "node 3 starts rank 1, attempt 1",
    ]
    [end] = ended(job.passes(11))
    assert end.startswith("node 1 ends with 5: node 0 has been silent for 15 s (no restart: 1 of 4")


def test_what_ranks_have_left_is_killed_when_node_0_is_lost() -> None:
    """All ranks start again, also those that had succeeded."""
    job = Job(nodes=3, least=1)
    job.leaves("sh", node=1).exits(1).passes(2).saw()

    assert job.loses_node(0).settles().saw()[:2] == [
        "node 1 prints: node 0 (n0) is gone: killing what the ranks here have left running",
        "node 1 kills what its ranks have left",
    ]
    assert (job.running(1), job.running(2)) == ([0], [1])
