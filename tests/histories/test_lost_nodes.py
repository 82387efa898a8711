"""A job that outlives its nodes: who takes the places of lost ones, and when it ends all the same."""

import signal

from tests.histories.told_job import Job


def test_spare_nodes_take_the_places_of_lost_ones() -> None:
    """With their ranks; no restart is counted. Nodes without a place end with the job."""
    job = Job(nodes=3, spares=2)

    job.loses_node(1).settles().dies(0, 2, by=signal.SIGTERM).settles()
    assert job.saw()[-3:] == [
        "node 0 starts rank 0, attempt 1",
        "node 2 starts rank 2, attempt 1",
        "node 3 starts rank 1, attempt 1",
    ]
    job.exits(0, 1, 2).settles()
    assert job.saw()[-4:] == [
        "node 0 ends with 0: all ranks have succeeded",
        "node 2 ends with 0: all ranks have succeeded",
        "node 3 ends with 0: all ranks have succeeded",
        "node 4 ends without having had a place",
    ]


def test_two_nodes_are_lost_at_once() -> None:
    """Both are replaced, or the job ends and says whom nobody has replaced."""
    enough, too_few = Job(nodes=3, spares=2), Job(nodes=3, spares=1)

    for job in (enough, too_few):
        job.loses_node(1).loses_node(2).settles().dies(0, by=signal.SIGTERM).settles()

    assert enough.saw()[-3:] == [
        "node 0 starts rank 0, attempt 1",
        "node 3 starts rank 1, attempt 1",
        "node 4 starts rank 2, attempt 1",
    ]
    assert too_few.saw()[-2:] == [
        (
            "node 0 ends with 5: node 1 is gone (no restart: no other node has taken the place of"
            " node 1 (n1), node 2 (n2))"
        ),
        "node 3 ends without having had a place",
    ]


def test_too_many_nodes_are_lost() -> None:
    """--max-node-losses counts all attempts."""
    job = Job(nodes=2, spares=2, most_losses=1)

    for lost in (1, 2):
        job.loses_node(lost).settles().dies(0, by=signal.SIGTERM).settles()

    assert job.saw()[-2:] == [
        "node 0 ends with 5: node 1 is gone (no restart: --max-node-losses allows 1)",
        "node 3 ends without having had a place",
    ]


def test_silent_nodes_need_a_majority() -> None:
    """Half of the agents is not enough: the other half may be a part of the job that goes on."""
    job = Job(nodes=2, rejoin=60)

    job.misses(1).settles().dies(0, by=signal.SIGTERM).settles()

    assert job.saw()[-1] == (
        "node 0 ends with 5: node 1 has been silent for 17 s (no restart: 1 of 2 nodes are left,"
        " not more than half, and the others may still run: two parts of a job must not go on at"
        " once)"
    )


def test_a_silent_node_may_still_run() -> None:
    """So the next attempt does not begin at once; when it goes on, it stops its ranks."""
    job = Job(nodes=3, spares=1)

    job.misses(1).settles().dies(0, 2, by=signal.SIGTERM).settles()

    assert "starts" not in "".join(job.saw())
    assert job.thaws(1).settles().saw() == [
        "node 1 prints: node 1 (n1) has been silent for 17 s: stopping 1 worker here",
        "node 1 sends SIGTERM to rank 1",
    ]


def test_a_job_waits_for_a_node_in_a_lost_ones_place() -> None:
    """For --rejoin-timeout; then it ends."""
    comes, stays_away = Job(nodes=2, rejoin=60), Job(nodes=2, rejoin=60)
    for job in (comes, stays_away):
        job.loses_node(1).settles().dies(0, by=signal.SIGTERM).settles().saw()

    assert comes.passes(30).settles().joins().settles().saw() == [
        "node 0 prints: n2 (pid 12) has joined and waits to take the place of a lost node",
        "node 0 starts rank 0, attempt 1",
        "node 2 waits for a place",
        "node 2 starts rank 1, attempt 1",
    ]
    assert stays_away.passes(61).settles().saw() == [
        (
            "node 0 ends with 5: node 1 is gone (no restart: no other node has taken the place of"
            " node 1 (n1) within 60 s (--rejoin-timeout))"
        ),
    ]


def test_an_elastic_job_goes_on_with_fewer_nodes() -> None:
    """Ranks are counted through again; below the minimum it ends."""
    job = Job(nodes=3, least=2)

    job.loses_node(1).settles().dies(0, 2, by=signal.SIGTERM).settles()
    assert job.saw()[-2:] == [
        "node 0 starts rank 0, attempt 1",
        "node 2 starts rank 1, attempt 1",
    ]
    job.loses_node(2).settles().dies(0, by=signal.SIGTERM).settles()
    assert job.saw()[-1] == (
        "node 0 ends with 5: node 1 is gone (no restart: 1 node left, and the minimum is 2)"
    )


def test_a_newcomer_waits_for_the_next_attempt() -> None:
    """Then it has the last ranks."""
    job = Job(nodes=3, least=1, restarts=1)
    job.loses_node(1).settles().dies(0, 2, by=signal.SIGTERM).settles().saw()

    assert job.joins().settles().saw() == [
        "node 0 prints: n3 (pid 13) has joined and waits to take the place of a lost node",
        "node 3 waits for a place",
    ]
    job.exits(0, code=1).settles().dies(1, by=signal.SIGTERM).settles()
    assert job.saw()[-3:] == [
        "node 0 starts rank 0, attempt 2",
        "node 2 starts rank 1, attempt 2",
        "node 3 starts rank 2, attempt 2",
    ]


def test_a_node_of_another_size_takes_no_place() -> None:
    """The ranks of the world are counted; one that fits may come later."""
    job = Job(nodes=2, rejoin=60)
    job.loses_node(1).settles().dies(0, by=signal.SIGTERM).settles().saw()

    assert job.joins(workers=2).settles().saw()[-1] == "node 2 waits for a place"
    assert job.joins().settles().saw()[-1] == "node 3 starts rank 1, attempt 1"
