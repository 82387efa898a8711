"""A job that outlives its nodes: who takes the places of lost ones, and when it ends all the same."""

import signal
from itertools import chain, combinations, product
from typing import Any

import pytest

from tests.histories.told_job import Job
from tests.histories.told_joining import Joining
from tests.histories.worlds import begun, starts, stops


def waiting(nodes: int = 3) -> Job:
    """Return a job that has lost node 1, and waits for another one."""
    job = Job(nodes=nodes, rejoin=60)
    assert stops(job.loses_node(1), 0, *range(2, nodes)) == []
    return job


def test_all_others_keep_their_places() -> None:
    """In every job of at most four nodes and three spares, whichever are lost."""
    for nodes, spares in product(range(2, 5), range(1, 4)):
        others = range(1, nodes)
        for lost in chain.from_iterable(combinations(others, many) for many in others):
            job = Job(nodes=nodes, spares=spares)
            for number in lost:
                job.loses_node(number)
            stopped = stops(job, *sorted({*range(nodes)} - {*lost}))
            if len(lost) > spares:
                assert "no other node has taken the place of" in stopped[0]
            else:
                free = iter(range(nodes, nodes + spares))
                assert stopped == starts(*(next(free) if n in lost else n for n in range(nodes)))


def test_the_last_nodes_are_the_spares() -> None:
    """By the ranks that a scheduler has given, in whatever order nodes join."""
    job = Joining(nodes=2, spares=1, endpoint=True)

    assert job.joins(rank=2).joins(rank=1).settles().saw() == [
        "node 0 starts rank 0, attempt 0",
        "node 1 waits for a place",
        "node 2 starts rank 1, attempt 0",
    ]


def test_a_loss_is_no_restart() -> None:
    """All report who has the place of whom; a loss after its node's report counts besides a failure."""
    lost, failed = Job(nodes=2, spares=1), Job(nodes=3, spares=1, restarts=1)

    stops(lost.loses_node(1), 0)
    assert lost.restarted() == (
        "node 1 is gone; restarts: 0, lost nodes: 1; node 1 (n1) is gone: n2 has its place"
    )
    stops(failed.exits(0, code=7), 1)
    stops(failed.loses_node(1), 2)
    assert failed.restarted() == (
        "rank 0 failed; restarts: 1, lost nodes: 1; node 1 (n1) is gone: n3 has its place"
    )


def test_a_spare_that_has_gone_takes_no_place() -> None:
    """Also one whose host is silent, or whose connection is lost."""
    for how, why in (
        (Job.loses_node, "has left"),
        (Job.loses_connection, "has left"),
        (Job.misses, "has been silent for 17 s"),
    ):
        job = Job(nodes=4, spares=1)

        assert how(job, 4).settles().saw()[0] == (
            f"node 0 prints: n4 (pid 14), which waited for a place, {why}"
        )
        assert stops(job.loses_node(1), 0, 2, 3)[0] == (
            "node 0 ends with 5: node 1 is gone (no restart: no other node has taken the place of"
            " node 1 (n1))"
        )


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
    assert "lost nodes: 2" in enough.restarted()
    assert too_few.saw()[-2:] == [
        (
            "node 0 ends with 5: node 1 is gone (no restart: no other node has taken the place of"
            " node 1 (n1), node 2 (n2))"
        ),
        "node 3 ends without having had a place",
    ]


@pytest.mark.parametrize("nodes", range(2, 6))
def test_silent_nodes_need_a_majority(nodes: int) -> None:
    """Half of the agents is not enough: the other half may be a part of the job that goes on."""
    for silent in range(1, nodes):
        job = Job(nodes=nodes, least=1)
        for number in range(nodes - silent, nodes):
            job.misses(number)
        left = nodes - silent
        stopped = stops(job, *range(left)) or job.passes(2).settles().saw()
        if 2 * left > nodes:
            assert stopped == starts(*range(left))
        else:
            assert stopped[0] == (
                f"node 0 ends with 5: node {left} has been silent for 17 s (no restart: {left} of"
                f" {nodes} nodes are left, not more than half, and the others may still run: two"
                " parts of a job must not go on at once)"
            )


@pytest.mark.parametrize(
    ("silent", "gone", "goes_on"),
    [((), (1, 2, 3), True), ((1,), (2, 3), False), ((1,), (2,), False), ((1,), (), True)],
)
def test_nodes_that_have_ended_need_no_majority(
    silent: tuple[int, ...], gone: tuple[int, ...], *, goes_on: bool
) -> None:
    """Their kernels say so. But where one may still run, it may have the others' part."""
    job = Job(nodes=4, least=1)
    for number in silent:
        job.misses(number)
    for number in gone:
        job.loses_node(number)
    stopped = stops(job, *({0, 1, 2, 3} - {*silent, *gone})) or job.passes(2).settles().saw()
    assert ("starts" in stopped[0]) is goes_on


@pytest.mark.parametrize("ends", [True, False])
def test_a_silent_node_that_ends_is_no_other_part(*, ends: bool) -> None:
    """Its kernel has closed the connection since: no majority is needed."""
    job = Job(nodes=2, spares=1)
    job.loses_node(2).settles().joins().misses(1).settles()
    if ends:
        job.loses_node(1)
    stops(job, 0)

    assert job.passes(2).settles().saw() == (starts(0, 3) if ends else [])


def test_those_of_the_attempt_before_count_too() -> None:
    """They may not know yet that another has begun; unless they have ended, also since then."""
    silent, gone = Job(nodes=5, least=1), Job(nodes=5, least=1)
    since = Job(nodes=4, least=1, most=6, restarts=1)
    stops(since.joins().joins().exits(0, code=7), 1, 2, 3)
    stops(silent.misses(3).misses(4), 0, 1, 2)
    stops(gone.loses_node(3).loses_node(4), 0, 1, 2)

    for job in (silent, gone):
        job.passes(2).settles().misses(2)
    assert "2 of 5 nodes are left, not more than half" in stops(silent, 0, 1)[0]
    assert stops(gone, 0, 1) == []
    assert gone.passes(2).settles().saw() == starts(0, 1, attempt=2)
    stops(since.loses_node(3).misses(2), 0, 1, 4, 5)
    assert since.passes(2).settles().saw() == starts(0, 1, 4, 5, attempt=2)


def test_silent_spares_count_too() -> None:
    """One may be the first of many that are cut off, or a part of another half."""
    first, half = Job(nodes=3, spares=2), Job(nodes=2, spares=2)

    assert stops(first.misses(3).loses_node(1), 0, 2) == []
    assert first.passes(1.3).settles().saw() == starts(0, 4, 2)
    assert "2 of 4 nodes are left" in stops(half.misses(3).loses_node(1), 0)[0]


def test_a_silent_node_may_still_run() -> None:
    """So the next attempt does not begin at once; when the node goes on, it kills its ranks."""
    job = Job(nodes=3, spares=1)

    assert stops(job.misses(1), 0, 2) == []
    assert job.passes(2).settles().saw() == starts(0, 3, 2)
    assert job.thaws(1).settles().saw() == [
        "node 1 prints: node 1 (n1) has been silent for 17 s: stopping 1 worker here",
        "node 1 sends SIGTERM to rank 1",
        (
            "node 1 prints: the other nodes have lost this one: killing 1 worker here, since the other"
            " nodes may go on"
        ),
        "node 1 sends SIGKILL to rank 1 and all they started",
    ]


def test_a_silent_node_learns_that_the_others_have_gone_on() -> None:
    """Its report is not that of the job."""
    job = Job(nodes=2, spares=1)
    stops(job.misses(1), 0)
    job.passes(2).settles().exits(1).settles().exits(0).settles().saw()

    assert stops(job.thaws(1), 1)[-1:] == [
        (
            "node 1 ends with 5: node 1 has been silent for 17 s (no restart: the other nodes have gone"
            " on without this one)"
        ),
    ]


@pytest.mark.parametrize("first", [1, 2])
def test_node_0_is_cut_off(first: int) -> None:
    """It finds the others silent one after the other, and begins no attempt in between."""
    job = Job(nodes=2, spares=1)
    job.misses(first).settles()
    if first == 1:
        assert stops(job, 0) == []
    job.passes(0.9).misses(3 - first).settles()
    if first == 2:
        job.dies(0, by=signal.SIGTERM).settles()

    assert job.saw()[-1].startswith(
        "node 0 ends with 5: node 1 has been silent for 17 s (no restart: 1 of 3 nodes are left"
    )


def test_ranks_that_may_run_have_their_lease() -> None:
    """The connection was reset, or the agent follows a successor: its last answer was for 15 s.

    Of an agent that has ended none runs: known before all have stopped, or while they wait for it.
    """
    reset, away, has_ended, ends = (Job(nodes=3, spares=1) for _ in range(4))
    reset.loses_connection(1)
    away.turns_away(1)
    has_ended.turns_away(1).settles().loses_node(1)
    ends.turns_away(1)

    killed = ["killing 1 worker here, since the other nodes may go on" in it for it in away.saw()]
    assert killed == [True, False]
    for job in (reset, away, has_ended, ends):
        assert stops(job, 0, 2) == []
    for job in (has_ended, ends.loses_node(1)):
        assert begun(job.passes(1.3)) == starts(0, 3, 2)
    for job in (reset, away):
        assert begun(job.passes(14.5)) == []
        assert begun(job.passes(0.5)) == starts(0, 3, 2)


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
    assert job.restarted() == (
        "node 1 is gone; restarts: 0, lost nodes: 1, nodes: 2; node 1 (n1) is gone: nobody has its"
        " place"
    )
    job.loses_node(2).settles().dies(0, by=signal.SIGTERM).settles()
    assert job.saw()[-1] == (
        "node 0 ends with 5: node 1 is gone (no restart: 1 node left, and the minimum is 2)"
    )


@pytest.mark.parametrize("other", [{"workers": 2}, {"role": "reader"}], ids=["size", "role"])
def test_a_node_of_another_size_or_role_takes_no_place(other: dict[str, Any]) -> None:
    """The ranks of the world are counted, and within a role, too; one that fits may come later."""
    job = waiting(2)

    assert job.joins(**other).settles().saw()[-1] == "node 2 waits for a place"
    assert job.joins().settles().saw()[-1] == "node 3 starts rank 1, attempt 1"


@pytest.mark.parametrize(
    "comes", [{"host": "n1"}, {"rank": 1}, {"host": "n1", "rank": 2}], ids=["host", "rank", "both"]
)
def test_a_node_that_is_back_takes_its_own_place(comes: dict[str, Any]) -> None:
    """Before spares that have waited longer: by its host, or by the rank that a scheduler gave it."""
    job = Job(nodes=3, spares=1)

    assert stops(job.joins(**comes).loses_node(1), 0, 2) == starts(0, 4, 2)


def test_the_time_to_rejoin_counts_anew() -> None:
    """For each attempt."""
    job = waiting(2)
    job.passes(50).settles().joins().settles().loses_node(2)
    stops(job, 0)

    assert job.passes(50).settles().saw() == []
    assert job.joins().settles().saw()[-1] == "node 3 starts rank 1, attempt 2"


def test_what_ends_a_job_that_waits() -> None:
    """A signal does; Ctrl-Z does not."""
    signalled, paused = waiting(2), waiting(2)

    assert signalled.signalled(signal.SIGTERM).settles().saw()[-1:] == [
        "node 0 ends with 143: it got SIGTERM",
    ]
    assert paused.signalled(signal.SIGTSTP).settles().saw() == ["node 0 stops with its ranks"]
    paused.signalled(signal.SIGCONT).settles().joins().settles()
    assert paused.saw()[-1] == "node 2 starts rank 1, attempt 1"


def test_another_node_is_lost_while_the_job_waits() -> None:
    """Both places are to be taken; or too few are left, if its end is not known."""
    gone = waiting()
    assert begun(gone.loses_node(2).joins()) == []
    assert begun(gone.joins()) == starts(0, 3, 4)

    for how in (Job.misses, Job.loses_host):
        assert how(waiting(), 2).settles().saw() == [
            (
                "node 0 ends with 5: node 1 is gone (no restart: 1 of 3 nodes are left, not more than"
                " half, and the others may still run: two parts of a job must not go on at once)"
            ),
        ]


def test_a_node_that_goes_while_the_job_waits_may_change_nothing() -> None:
    """It was lost already, or could take no place, or was refused."""
    lost, unfit, refused = Job(nodes=3, rejoin=60), waiting(), waiting()
    stops(lost.misses(1), 0, 2)
    unfit.joins(workers=2)
    refused.joins(must={"nnodes": "7"})

    lost.misses(1).loses_node(1)
    unfit.loses_node(3)
    refused.loses_node(3)

    for job in (lost, unfit, refused):
        assert "ends" not in "".join(job.passes(5).settles().saw())
        assert begun(job.joins())[:1] == ["node 0 starts rank 0, attempt 1"]


def test_who_may_not_wait_for_a_place() -> None:
    """With other options, or as a second node 0; nor more than have places. The job goes on."""
    job = Job(nodes=1, spares=1, has_token=True)
    job.joins(must={"nnodes": "7"}).joins(rank=0).joins().joins().settles()

    assert [line for line in job.saw() if "gives up" in line] == [
        (
            "node 2 gives up: nnodes is 2 on n0, 7 on n2"
            " (run the same command on every node, each with its own --node-rank)"
        ),
        (
            "node 3 gives up: n3 (pid 13) has node rank 0, but n0:29500 is an address of n0 (pid 10)"
            " (give --node-rank 0 to the machine that --master-addr names)"
        ),
        "node 5 gives up: enough nodes wait for a place in the job at n0:29500: n1, n4",
    ]
    assert job.exits(0).settles().saw()[1] == "node 0 ends with 0: all ranks have succeeded"


def test_a_node_that_waits_takes_part_in_suspensions() -> None:
    """Its agent may ask for one, and learns whether SIGTERM does, also if it joins later."""
    job = Job(nodes=2, spares=1)

    asks = "will take SIGTERM for a request to suspend"
    assert job.asks(0).settles().saw() == [f"node 2 {asks}"]
    assert job.joins().settles().saw()[1:] == ["node 3 waits for a place", f"node 3 {asks}"]
    assert job.asked_to_suspend("SIGUSR1", node=2).settles().saw() == [
        "node 0 holds its ranks",
        "node 1 holds its ranks",
    ]
    job.asks(1).is_held(4).is_held(4, node=1).settles()
    assert job.saw()[0] == (
        "node 0 prints: SIGUSR1 on n2: all ranks save at step 4 and end (--suspend-grace 30 s)"
    )
