"""--nnodes MIN:MAX: the number of nodes follows losses and newcomers."""

import signal

import pytest

from tests.histories.told_job import Job
from tests.histories.worlds import starts, stops


def growing() -> Job:
    """Return a job of two nodes, with room for two more, that a third waits to grow."""
    job = Job(nodes=2, least=1, most=4, grows=True, restarts=1)
    job.joins().settles().saw()
    return job


@pytest.mark.parametrize(
    ("least", "most", "multiple", "nodes", "newcomers", "lost", "places"),
    [
        (1, 4, 1, 4, 0, 3, (0,)),
        (1, 4, 1, 4, 2, 2, (0, 3, 4, 5)),
        (3, 5, 1, 5, 0, 2, (0, 3, 4)),
        (3, 5, 1, 4, 3, 1, (0, 2, 3, 4, 5)),
        (2, 6, 2, 4, 1, 1, (0, 2, 3, 4)),
        (2, 6, 2, 4, 1, 2, (0, 3)),
        (4, 8, 4, 4, 3, 1, (0, 2, 3, 4)),
    ],
)
def test_the_nodes_that_are_left_are_counted_through(
    *,
    least: int,
    most: int,
    multiple: int,
    nodes: int,
    newcomers: int,
    lost: int,
    places: tuple[int, ...],
) -> None:
    """In their order, newcomers last, without a gap, up to MAX, in multiples of K."""
    job = Job(nodes=nodes, least=least, most=most, multiple=multiple)
    for _ in range(newcomers):
        job.joins()
    for number in range(1, 1 + lost):
        job.loses_node(number)

    stopped = stops(job, 0, *range(1 + lost, nodes))
    assert [line for line in stopped if "starts" in line] == starts(*places)


@pytest.mark.parametrize(
    ("least", "multiple", "why"),
    [
        (3, 1, "2 nodes left, and the minimum is 3"),
        (3, 3, "2 nodes left, and the minimum is 3, a multiple of 3"),
    ],
)
def test_too_few_nodes_are_left(least: int, multiple: int, why: str) -> None:
    """The job ends, and says how many it needs; or it waits for others, if so told, and says so then."""
    job = Job(nodes=3, least=least, most=6, multiple=multiple)
    waits = Job(nodes=3, least=least, most=6, multiple=multiple, rejoin=60)
    for each in (job, waits):
        each.loses_node(1)

    end = f"ends with 5: node 1 is gone (no restart: {why}"
    assert stops(job, 0, 2) == [f"node 0 {end})", f"node 2 {end})"]
    assert stops(waits, 0, 2) == []
    within = f"{end} within 60 s (--rejoin-timeout))"
    assert waits.passes(61).settles().saw() == [f"node 0 {within}", f"node 2 {within}"]


def test_one_node_more_than_a_multiple_waits() -> None:
    """From the beginning."""
    job = Job(nodes=5, least=2, most=6, multiple=2)

    assert job.began[-2:] == ["node 3 starts rank 3, attempt 0", "node 4 waits for a place"]


def test_a_node_that_has_worked_may_wait_as_it_is() -> None:
    """It has no place in a smaller multiple, and has one before newcomers in the next attempt."""
    job = Job(nodes=4, least=2, most=4, multiple=2)

    assert stops(job.loses_node(1), 0, 2, 3) == [
        "node 0 starts rank 0, attempt 1",
        "node 2 starts rank 1, attempt 1",
        "node 3 prints: this node waits for a place: the world has 2 nodes (--elastic-multiple 2)",
    ]
    assert stops(job.joins().loses_node(2), 0) == starts(0, 3, attempt=2)


def test_the_user_of_a_node_that_waits_ends_it() -> None:
    """The job goes on without it."""
    job = Job(nodes=4, least=2, most=4, multiple=2)
    stops(job.loses_node(1), 0, 2, 3)

    assert job.signalled(signal.SIGTERM, node=3).settles().saw()[1:] == [
        "node 0 prints: n3 (pid 13), which waited for a place, has left",
        "node 3 ends with 143: it got SIGTERM",
    ]
    job.exits(0, 1).settles()
    assert job.saw()[-1] == "node 2 ends with 0: all ranks have succeeded"


def test_all_restart_for_newcomers() -> None:
    """--elastic-join now: 30 s after the first, for all that join until then. It is no restart."""
    job = growing()

    job.passes(29).settles().joins().settles()
    assert job.saw()[-1] == "node 3 waits for a place"
    assert job.passes(1.1).settles().saw() == [
        "node 0 prints: n2, n3 joined: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
        "node 1 prints: n2, n3 joined: stopping 1 worker here",
        "node 1 sends SIGTERM to rank 1",
    ]
    assert stops(job, 0, 1) == starts(0, 1, 2, 3)
    assert job.passes(100).settles().saw() == []
    assert stops(job.exits(1, code=7), 0, 2, 3) == starts(0, 1, 2, 3, attempt=2)


@pytest.mark.parametrize("code", [0, 3])
def test_how_ranks_end_that_are_stopped_for_a_newcomer_is_no_matter(code: int) -> None:
    """Those that have just exited with 0 do so once more: what was ordered is done."""
    job = growing()
    job.passes(31).settles().exits(0, 1, code=code, last="ValueError").settles()

    assert job.saw()[-1] == "node 2 starts rank 2, attempt 1"


def test_a_job_does_not_grow_while_it_ends() -> None:
    """Well or by a failure, or as its suspension is wanted; nor for a node that has left."""
    ends, fails, suspended, left = growing(), growing(), growing(), growing()
    suspended.asks(0, 1)
    for job in (ends, fails, suspended, left):
        job.passes(28).settles()
    ends.exits(1)
    fails.exits(1, code=3)
    suspended.asked_to_suspend("SIGUSR1")
    left.loses_node(2)

    for job in (ends, fails, suspended, left):
        job.settles().saw()
        assert job.passes(3).settles().saw() == []
    assert stops(fails, 0) == starts(0, 1, 2)


def test_a_job_grows_by_what_has_a_place_only() -> None:
    """A world that would have no more nodes than before is left alone."""
    job = Job(nodes=2, least=2, most=4, multiple=2, grows=True)
    job.joins().settles().saw()

    assert job.passes(31).settles().saw() == []


def test_what_happens_while_all_stop_for_a_newcomer() -> None:
    """A lost node has no place, and the newcomer has; a signal ends the job."""
    lost, signalled = growing(), growing()
    for job in (lost, signalled):
        job.passes(31).settles().saw()

    assert stops(lost.loses_node(1), 0) == starts(0, 2)
    assert stops(signalled.signalled(signal.SIGTERM), 0, 1) == [
        "node 0 ends with 143: it got SIGTERM",
        "node 1 ends with 143: it got SIGTERM",
        "node 2 ends without having had a place",
    ]


def test_a_lost_node_ends_a_job_that_was_to_grow() -> None:
    """It was lost after its report, and the newcomer, too: the loss is why the job ends."""
    job = Job(nodes=3, least=3, most=4, grows=True)
    job.joins().settles().passes(31).settles()
    stops(job, 1)
    job.loses_node(1).loses_node(3)

    end = "ends with 5: node 1 is gone (no restart: 2 nodes left, and the minimum is 3)"
    assert stops(job, 0, 2) == [f"node 0 {end}", f"node 2 {end}"]


def test_ranks_save_before_the_world_grows() -> None:
    """If they ask whether they should: all at one step, and all restart then."""
    job = growing()
    job.asks(0, 1).settles().saw()

    assert job.passes(31).settles().saw() == ["node 0 holds its ranks", "node 1 holds its ranks"]
    assert job.is_held(7).is_held(6, node=1).settles().saw() == [
        "node 0 prints: n2 joined: all ranks save at step 7 and restart (--suspend-grace 30 s)",
        "node 0 lets its ranks go on, to save at step 7",
        "node 1 lets its ranks go on, to save at step 7",
    ]
    assert job.saves(7, 0).settles().saw() == []
    assert job.saves(7, 1).settles().saw() == [
        "node 0 lets ranks that have saved end",
        "node 1 lets ranks that have saved end",
    ]
    assert job.exits(0, 1).settles().saw()[-3:] == starts(0, 1, 2)


def test_a_world_grows_without_ranks_that_do_not_save() -> None:
    """--suspend-grace limits it; they are named, and may not be left out by a command."""
    job = growing()
    job.asks(0, 1).settles().passes(31).settles()
    job.is_held(7).is_held(6, node=1).settles().saves(7, 0).settles().saw()

    assert job.passes(5).settles().saw() == [
        "node 0 prints: n2 joined: waits for rank 1 to save",
    ]
    assert job.passes(26).settles().saw() == [
        "node 0 lets ranks that have saved end",
        "node 1 lets ranks that have saved end",
        "node 1 prints: n2 joined: stopping 1 worker here",
        "node 1 sends SIGTERM to rank 1",
    ]
    assert job.dies(1, by=signal.SIGTERM).exits(0).settles().saw()[-3:] == starts(0, 1, 2)


def test_a_world_grows_if_an_agent_holds_no_ranks() -> None:
    """It may be frozen for a while: the grace ends that, too."""
    job = growing()
    job.asks(0, 1).settles().passes(31).settles().is_held(7).settles().saw()

    assert stops(job.passes(31).settles(), 0, 1) == starts(0, 1, 2)


def test_a_job_is_suspended_while_it_saves_to_grow() -> None:
    """The request of a person or a scheduler wins."""
    job = growing()
    job.asks(0, 1).settles().passes(31).settles()
    job.asked_to_suspend("SIGUSR1").settles().is_held(7).is_held(6, node=1).settles()
    job.saves(7, 0, 1).settles().exits(0, 1).settles()

    assert job.saw()[-3:] == [
        "node 0 ends with 75: all saved at step 7, as SIGUSR1 on n0 asked",
        "node 1 ends with 75: all saved at step 7, as SIGUSR1 on n0 asked",
        "node 2 ends without having had a place",
    ]


def test_a_job_whose_ranks_end_does_not_grow() -> None:
    """A rank has ended with 0 before all have saved: the others go on to their own end."""
    job = growing()
    job.asks(0, 1).settles().passes(31).settles().saw()

    said = job.exits(1).settles().saw()
    assert "node 0 prints: n2 joined: no restart, since rank 1 has exited already" in said
    assert "node 0 lets its ranks go on" in said
    assert job.exits(0).settles().saw()[-3:] == [
        "node 0 ends with 0: all ranks have succeeded",
        "node 1 ends with 0: all ranks have succeeded",
        "node 2 ends without having had a place",
    ]


def test_a_node_that_joins_is_told_when_it_comes_in() -> None:
    """At the next restart, or by a restart for it, or in a lost one's place if the world is full."""
    says = "node 0 prints: n{} (pid 1{}) has joined and {}"
    now, later, full = growing(), Job(nodes=2, least=1, most=4), Job(nodes=2, least=1, most=2)

    assert now.passes(10).joins().settles().saw()[0] == says.format(
        3, 3, "comes in when all workers restart in 20 s (--elastic-join now)"
    )
    assert later.joins().settles().saw()[0] == says.format(
        2, 2, "comes in when all workers restart"
    )
    assert full.joins().settles().saw()[0] == says.format(
        2, 2, "waits to take the place of a lost node"
    )
