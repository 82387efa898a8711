"""A job that survives node loss: which nodes replace lost ones, and when it ends all the same."""

import signal
from collections.abc import Callable
from itertools import chain, combinations, product
from typing import Any

import pytest

from tests.histories.job_history import Job
from tests.histories.join_history import JoinHistory
from tests.histories.worlds import begun, of_node, starts, stops


def waiting(nodes: int = 3) -> Job:
    """Return a job that has lost node 1, and waits for another one."""
    job = Job(nodes=nodes, rejoin=60)
    assert stops(job.loses_node(1), 0, *range(2, nodes)) == []
    return job


def test_other_nodes_keep_their_ranks() -> None:
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


def test_last_nodes_are_spares() -> None:
    """By the ranks that a scheduler has assigned, in whatever order nodes join."""
    job = JoinHistory(nodes=2, spares=1, endpoint=True)

    assert job.joins(rank=2).joins(rank=1).settles().new_lines() == [
        "node 0 starts rank 0, attempt 0",
        "node 1 waits for a place",
        "node 2 starts rank 1, attempt 0",
    ]


def test_node_loss_is_not_counted_as_restart() -> None:
    """All report which node replaces which; a loss after the node's report counts besides a failure."""
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


def test_lost_spare_replaces_no_node() -> None:
    """Even one whose host is silent, or whose connection is lost."""
    for how, why in (
        (Job.loses_node, "has left"),
        (Job.loses_connection, "has left"),
        (Job.goes_silent, "has been silent for 18 s"),
    ):
        job = Job(nodes=4, spares=1)

        assert how(job, 4).settles().new_lines()[0] == (
            f"node 0 prints: n4 (pid 14), which was waiting to join, {why}"
        )
        assert stops(job.loses_node(1), 0, 2, 3)[0] == (
            "node 0 ends with 5: node 1 is gone (no restart: no other node has taken the place of"
            " node 1 (n1))"
        )


def test_two_nodes_are_lost_at_once() -> None:
    """Both are replaced, or the job ends and names the one that is not."""
    enough, too_few = Job(nodes=3, spares=2), Job(nodes=3, spares=1)

    for job in (enough, too_few):
        job.loses_node(1).loses_node(2).settles().dies(0, by=signal.SIGTERM).settles()

    assert "lost nodes: 2" in enough.restarted()
    assert too_few.new_lines()[-2:] == [
        (
            "node 0 ends with 5: node 1 is gone (no restart: no other node has taken the place of"
            " node 1 (n1), node 2 (n2))"
        ),
        "node 3 ends without having had a place",
    ]


@pytest.mark.parametrize("nodes", range(2, 6))
def test_elastic_job_continues_without_silent_nodes(nodes: int) -> None:
    """However many: node 0 runs the coordinator, and their leases have expired."""
    for silent in range(1, nodes):
        job = Job(nodes=nodes, least=1)
        for number in range(nodes - silent, nodes):
            job.goes_silent(number)
        left = nodes - silent

        assert stops(job, *range(left)) == []
        assert job.time_passes(2).settles().new_lines() == starts(*range(left))


def test_nodes_cut_off_together_are_lost_in_one_attempt() -> None:
    """They are found silent one after another, a spare among them; no attempt begins in between."""
    both, spare = Job(nodes=3, spares=2), Job(nodes=3, spares=2)

    assert stops(both.goes_silent(1), 0, 2) == []
    both.time_passes(0.9).goes_silent(2)
    assert begun(both.time_passes(1)) == []
    assert begun(both.time_passes(0.3)) == starts(0, 3, 4)
    assert stops(spare.goes_silent(3).loses_node(1), 0, 2) == []
    assert begun(spare.time_passes(1.3)) == starts(0, 4, 2)


def test_node_0_is_cut_off() -> None:
    """No node is left to replace one; a node that may continue alone does."""
    job, alone = Job(nodes=2, spares=1), Job(nodes=2, least=1)
    job.goes_silent(1).settles().time_passes(0.9).goes_silent(2)

    assert stops(job, 0)[-1] == (
        "node 0 ends with 5: node 1 has been silent for 18 s (no restart: no other node has taken the"
        " place of node 1 (n1))"
    )
    assert stops(alone.goes_silent(1), 0) == []
    assert begun(alone.time_passes(1.3)) == starts(0)


def test_silent_node_is_declared_lost() -> None:
    """When it continues it is told so, kills its ranks, and joins again; nothing else was sent to it."""
    job = Job(nodes=3, spares=1)

    assert stops(job.goes_silent(1), 0, 2) == []
    assert begun(job.time_passes(2)) == starts(0, 3, 2)
    assert job.continues(1).settles().new_lines() == [
        (
            "node 1 prints: node 0 has declared this node lost, as it has been silent for 18 s:"
            " killing 1 worker on this node; rejoining"
        ),
        "node 1 sends SIGKILL to rank 1 and all they started",
    ]
    job.time_passes(5).settles().time_passes(7)
    assert of_node(1, job.settles().new_lines())[-1] == "node 1 joins again"
    assert job.joins(host="n1").settles().new_lines()[-1] == "node 4 waits for a place"


def test_spare_declared_lost_joins_again() -> None:
    job = Job(nodes=2, spares=1)
    job.goes_silent(2).settles().new_lines()

    assert job.continues(2).settles().new_lines() == ["node 2 joins again"]


def test_next_attempt_waits_for_lease() -> None:
    """The connection was reset, or its host is silent: its newest answer was for 18 s.

    Of a node whose connection has ended in order none runs: known before all have stopped, or later.
    """
    reset, silent, has_ended, ends = (Job(nodes=3, spares=1) for _ in range(4))
    for job in (reset, has_ended, ends):
        job.loses_connection(1)
    silent.loses_host(1)
    has_ended.loses_node(1)
    for job in (reset, silent, has_ended, ends):
        assert [line for line in stops(job, 0, 2) if "starts" in line] == (
            starts(0, 3, 2) if job is has_ended else []
        )
    assert begun(ends.loses_node(1)) == starts(0, 3, 2)
    for job in (reset, silent):
        assert begun(job.time_passes(17.5)) == []
        assert begun(job.time_passes(0.5)) == starts(0, 3, 2)


@pytest.mark.parametrize(
    ("loses", "name", "how", "code"),
    [
        (Job.loses_fork_server, "fork server", "was killed by SIGKILL", 137),
        (Job.loses_relay, "relay", "exited with code 1", 6),
    ],
    ids=["fork server", "relay"],
)
def test_node_without_helper_leaves_job(
    loses: Callable[[Job, int], Job], name: str, how: str, code: int
) -> None:
    """It cannot start a rank any more; the others continue without it and print why."""
    job, ended, waiting = Job(nodes=3, spares=1), Job(nodes=3, spares=1), Job(nodes=3, rejoin=60)
    why = f"node 1 has lost its {name}, which {how}"

    loses(job, 1).settles()
    if loses is Job.loses_relay:
        job.dies(1, by=signal.SIGTERM).settles()
    lines = of_node(1, job.new_lines())
    assert lines[0] == f"node 1 prints: the {name} {how}: this node leaves the job"
    assert lines[-1] == f"node 1 ends with {code}: its {name} {how}"
    assert stops(job.loses_node(1), 0, 2)[-3:] == starts(0, 3, 2)
    assert why in job.restarted()

    # It had reported the end of its ranks.
    ended.exits(1).settles()
    loses(ended, 1).settles()
    assert stops(ended.loses_node(1).exits(0, code=7), 2)

    loses(waiting, 1).settles()
    stops(waiting.loses_node(1), 0, 2)
    loses(waiting, 2).settles()
    assert begun(waiting.loses_node(2).joins().joins()) == starts(0, 3, 4)


def test_node_0_without_helper_ends_job() -> None:
    """It runs the coordinator."""
    job = Job(nodes=2, spares=1)

    job.loses_fork_server(0).settles().dies(1, by=signal.SIGTERM).settles()

    assert "node 1 ends with 137: its fork server on n0 was killed by SIGKILL" in job.new_lines()


def test_node_that_does_not_end_its_ranks_is_lost() -> None:
    """20 s after the grace period; a node that its user has paused is waited for."""
    job, paused = Job(nodes=3, spares=1, restarts=1), Job(nodes=3, spares=1, restarts=1)
    paused.signalled(signal.SIGTSTP, node=1).settles()
    for each in (job, paused):
        each.freezes(1).exits(0, code=7).settles().dies(2, by=signal.SIGTERM).settles()
        assert begun(each.time_passes(44.9)) == []
        each.time_passes(0.2).settles()

    # Neither has node 0, which has the job: it is waited for.
    both = Job(nodes=3, spares=1, restarts=1)
    both.freezes(1).exits(2, code=7).settles().time_passes(45.1)
    assert begun(both) == []
    assert begun(both.time_passes(18)) == starts(0, 3, 2)

    assert begun(paused.time_passes(30)) == []
    assert begun(job.time_passes(18)) == starts(0, 3, 2)
    assert job.restarted() == (
        "rank 0 failed; restarts: 1, lost nodes: 1; node 1 (n1) has not ended its workers: n3 has its"
        " place"
    )


def test_short_rejoin_timeout_does_not_end_before_the_lease_of_a_lost_node() -> None:
    """The spare begins once the lost node's workers must have ended."""
    job = Job(nodes=3, spares=1, rejoin=5)
    job.loses_connection(1).settles().dies(0, 2, by=signal.SIGTERM).settles().new_lines()

    assert job.time_passes(6).settles().new_lines() == []
    assert job.time_passes(12).settles().new_lines()[-3:] == starts(0, 3, 2)


def test_job_waits_for_replacement_node() -> None:
    """For --rejoin-timeout; then it ends."""
    comes, stays_away = Job(nodes=2, rejoin=60), Job(nodes=2, rejoin=60)
    for job in (comes, stays_away):
        job.loses_node(1).settles().dies(0, by=signal.SIGTERM).settles().new_lines()

    assert comes.time_passes(30).settles().joins().settles().new_lines() == [
        "node 0 prints: n2 (pid 12) has joined and waits to take the place of a lost node",
        "node 0 starts rank 0, attempt 1",
        "node 2 waits for a place",
        "node 2 starts rank 1, attempt 1",
    ]
    assert stays_away.time_passes(61).settles().new_lines() == [
        (
            "node 0 ends with 5: node 1 is gone (no restart: no other node has taken the place of"
            " node 1 (n1) within 60 s (--rejoin-timeout))"
        ),
    ]


def test_elastic_job_continues_with_fewer_nodes() -> None:
    """Ranks are numbered again; below the minimum the job ends."""
    job = Job(nodes=3, least=2)

    job.loses_node(1).settles().dies(0, 2, by=signal.SIGTERM).settles()
    assert job.new_lines()[-2:] == [
        "node 0 starts rank 0, attempt 1",
        "node 2 starts rank 1, attempt 1",
    ]
    assert job.restarted() == (
        "node 1 is gone; restarts: 0, lost nodes: 1, nodes: 2; node 1 (n1) is gone: nobody has its"
        " place"
    )
    job.loses_node(2).settles().dies(0, by=signal.SIGTERM).settles()
    assert job.new_lines()[-1] == (
        "node 0 ends with 5: node 1 is gone (no restart: 1 node left, and the minimum is 2)"
    )


@pytest.mark.parametrize("other", [{"workers": 2}, {"role": "reader"}], ids=["size", "role"])
def test_node_of_other_size_or_role_replaces_no_node(other: dict[str, Any]) -> None:
    """It would change other ranks, in the world or in a role; one that fits may join later."""
    job = waiting(2)

    assert job.joins(**other).settles().new_lines()[-1] == "node 2 waits for a place"
    assert job.joins().settles().new_lines()[-1] == "node 3 starts rank 1, attempt 1"


@pytest.mark.parametrize(
    "comes", [{"host": "n1"}, {"rank": 1}, {"host": "n1", "rank": 2}], ids=["host", "rank", "both"]
)
def test_returning_node_gets_its_own_rank(comes: dict[str, Any]) -> None:
    """Before spares that have waited longer: by its host, or by its scheduler's rank."""
    job = Job(nodes=3, spares=1)

    assert stops(job.joins(**comes).loses_node(1), 0, 2) == starts(0, 4, 2)


def test_rejoin_timeout_restarts_with_each_attempt() -> None:
    """For each attempt."""
    job = waiting(2)
    job.time_passes(50).settles().joins().settles().loses_node(2)
    stops(job, 0)

    assert job.time_passes(50).settles().new_lines() == []
    assert job.joins().settles().new_lines()[-1] == "node 3 starts rank 1, attempt 2"


def test_signal_ends_waiting_job() -> None:
    """Ctrl-Z does not."""
    signalled, paused = waiting(2), waiting(2)

    assert signalled.signalled(signal.SIGTERM).settles().new_lines()[-1:] == [
        "node 0 ends with 143: it got SIGTERM",
    ]
    assert paused.signalled(signal.SIGTSTP).settles().new_lines() == ["node 0 stops with its ranks"]
    paused.signalled(signal.SIGCONT).settles().joins().settles()
    assert paused.new_lines()[-1] == "node 2 starts rank 1, attempt 1"


def test_another_node_is_lost_while_job_waits() -> None:
    """Both must be replaced, even if the second one's end is not known: it runs no rank."""
    for how in (Job.loses_node, Job.goes_silent, Job.loses_host):
        job = how(waiting(), 2).joins()
        assert begun(job.time_passes(2)) == []
        assert begun(job.joins()) == starts(0, 3, 4)


def test_irrelevant_node_leaves_while_job_waits() -> None:
    """It was already lost, did not fit, or was refused."""
    lost, unfit, refused = Job(nodes=3, rejoin=60), waiting(), waiting()
    stops(lost.goes_silent(1), 0, 2)
    unfit.joins(workers=2)
    refused.joins(must={"nnodes": "7"})

    lost.goes_silent(1).loses_node(1)
    unfit.loses_node(3)
    refused.loses_node(3)

    for job in (lost, unfit, refused):
        assert "ends" not in "".join(job.time_passes(5).settles().new_lines())
        assert begun(job.joins())[:1] == ["node 0 starts rank 0, attempt 1"]


def test_nodes_that_may_not_wait_for_rank() -> None:
    """With different options, as a second node 0, or too many. The job continues."""
    job = Job(nodes=1, spares=1, has_token=True)
    job.joins(must={"nnodes": "7"}).joins(rank=0).joins().joins().settles()

    assert [line for line in job.new_lines() if "gives up" in line] == [
        (
            "node 2 gives up: nnodes is 2 on n0, 7 on n2"
            " (run the same command on every node, each with its own --node-rank)"
        ),
        (
            "node 3 gives up: n3 (pid 13) has node rank 0, but n0:29500 is an address of n0 (pid 10)"
            " (give --node-rank 0 to the machine that --master-addr names)"
        ),
        "node 5 gives up: enough nodes are already waiting to join the job at n0:29500: n1, n4",
    ]
    assert job.exits(0).settles().new_lines()[1] == "node 0 ends with 0: all ranks have succeeded"


def test_waiting_node_may_request_suspension() -> None:
    """Its agent is told whether SIGTERM requests one, even if it joins later."""
    job = Job(nodes=2, spares=1)

    asks = "will take SIGTERM for a request to suspend"
    assert job.calls_requested(0).settles().new_lines() == [f"node 2 {asks}"]
    assert job.joins().settles().new_lines()[1:] == ["node 3 waits for a place", f"node 3 {asks}"]
    assert job.asked_to_suspend("SIGUSR1", node=2).settles().new_lines() == [
        "node 0 holds its ranks",
        "node 1 holds its ranks",
    ]
    job.calls_requested(1).holds_ranks(4).holds_ranks(4, node=1).settles()
    assert job.new_lines()[0] == (
        "node 0 prints: SIGUSR1 on n2: all ranks save at step 4 and end (--suspend-grace 30 s)"
    )
