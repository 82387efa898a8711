"""What ranks have left running may end by itself, if all ranks of their node have succeeded.

The grace period is 25 s unless a history sets another.
"""

import signal
from collections.abc import Callable

import pytest

from tests.histories.job_history import Job

WAITS = "node 0 waits for what its ranks have left"
KILLS = "node 0 kills what its ranks have left"
ENDS = "node 0 ends with 0: all ranks have succeeded"
TERMINATES = "node 0 sends SIGTERM to what its ranks have left"
NAMED = (
    "node 0 prints: the ranks have ended; still running: sh (pid 500, of rank 0);"
    " waiting up to 25 s (--shutdown-timeout; Ctrl-C ends them)"
)
OTHERS_STOP = (
    "node 1 prints: {}: the other nodes stop their workers (a second {} does not wait for them);"
    " exit code {}"
)


def left(*, node: int = 0, **job: object) -> Job:
    """Return a job whose node has ended its ranks, and has named the process that they have left."""
    there = Job(**job)  # type: ignore[arg-type]
    there.leaves("sh", node=node, rank=node).exits(*there.running(node)).settles()
    there.passes(1).settles().saw()
    return there


# The grace period goes by.


def test_nothing_is_left() -> None:
    """The job ends without a line."""
    assert Job(workers=2).exits(0, 1).settles().saw() == [WAITS, ENDS]


def test_what_ends_within_a_second_is_not_named() -> None:
    """Helper processes of libraries end when they notice that their rank has."""
    job = Job().leaves("python").exits(0).settles()

    assert job.passes(0.9).settles().saw() == [WAITS]
    assert job.has_nothing_left().settles().saw() == [ENDS]


def test_what_takes_longer_is_named_and_waited_for() -> None:
    """An upload takes twenty seconds."""
    job = Job(workers=2).leaves("sh", rank=0).exits(0, 1).settles()

    assert job.passes(1).settles().saw() == [WAITS, NAMED]
    assert job.passes(19).settles().saw() == []
    assert job.has_nothing_left().settles().saw() == [ENDS]


def test_what_does_not_end_is_asked_to_and_killed() -> None:
    """SIGTERM after the grace period, SIGKILL 5 s later; what is left then is named each time."""
    job = left()

    job.leaves("python")
    assert job.passes(23.9).settles().saw() == []
    assert job.passes(0.1).settles().saw() == [
        "node 0 prints: sh (pid 500, of rank 0), python (pid 501) did not end within 25 s: sending SIGTERM",
        TERMINATES,
    ]
    assert job.passes(4.9).settles().saw() == []
    assert job.passes(0.1).hears().saw() == [KILLS]
    assert job.settles().saw() == [
        "node 0 prints: sh (pid 500, of rank 0), python (pid 501) did not end within 5 s of SIGTERM: sending SIGKILL",
        ENDS,
    ]


def test_what_obeys_sigterm_is_not_killed() -> None:
    """A server ends in order."""
    job = left()
    job.passes(24).settles().saw()

    assert job.has_nothing_left().settles().saw() == [ENDS]


def test_what_has_ended_when_its_name_is_asked_for_is_not_named() -> None:
    """That nothing is left follows."""
    assert Job().exits(0).hears().passes(1).settles().saw() == [WAITS, ENDS]


def test_five_are_named() -> None:
    """A pool may have left a hundred."""
    job = Job().leaves(*["python"] * 17).exits(0).settles()
    job.passes(1).settles()

    named = ", ".join(f"python (pid {pid})" for pid in range(500, 505))
    assert f"still running: {named} and 12 more; waiting" in job.saw()[-1]


def test_a_short_grace_period_has_one_notice() -> None:
    """SIGTERM comes before the processes would be named."""
    job = Job(grace=0.5).leaves("sh").exits(0).settles()

    assert job.passes(0.4).settles().saw() == [WAITS]
    assert job.passes(0.1).settles().saw() == [
        "node 0 prints: sh (pid 500) did not end within 0.5 s: sending SIGTERM",
        TERMINATES,
    ]


# It is not waited for.


def test_without_a_grace_period_it_is_killed_at_once() -> None:
    """As --shutdown-timeout 0 asks."""
    assert Job(grace=0).leaves("sh").exits(0).settles().saw() == [KILLS, ENDS]


def test_what_is_left_of_a_failure_is_killed_at_once() -> None:
    """Also what a rank has left that had succeeded, and before a restart."""
    job = Job(workers=2, restarts=1).leaves("sh", rank=0)

    assert job.exits(0).settles().saw() == []
    assert job.exits(1, code=3).settles().saw() == [KILLS, "node 0 starts ranks 0-1, attempt 1"]


def test_what_is_left_of_a_stop_is_killed_at_once() -> None:
    """Ranks may end with 0 when they are asked to end."""
    job = Job().leaves("sh").signalled(signal.SIGTERM).exits(0).settles()

    assert job.saw()[-2:] == [KILLS, "node 0 ends with 143: it got SIGTERM"]


def test_what_is_left_of_ranks_that_are_to_save_is_killed_at_once() -> None:
    """The time of their job is nearly over: that they are held, or that SIGTERM has come, says so."""
    held, asked = (Job(workers=2).asks(0, 1).settles().leaves("sh") for _ in range(2))
    held.asked_to_suspend("USR1").settles()
    # Nobody has heard of it yet.
    asked.signalled(signal.SIGTERM)

    assert held.exits(0, 1).saw()[-1] == KILLS
    assert asked.exits(0, 1).saw() == [KILLS]


# Something happens meanwhile.


@pytest.mark.parametrize(
    ("happens", "what"),
    [
        (lambda job: job.signalled(signal.SIGTERM), "SIGTERM"),
        (lambda job: job.signalled(signal.SIGINT), "interrupted"),
        (lambda job: job.signalled(signal.SIGHUP), "SIGHUP"),
        (lambda job: job.signalled(signal.SIGTERM, by_parent=True), "SIGTERM"),
        (Job.asked_to_stop, "clusterrun stop"),
        (lambda job: job.asked_to_stop(at_once=True), "clusterrun stop --now"),
        (Job.loses_relay, "the relay exited with code 1"),
    ],
)
def test_the_job_has_succeeded_whatever_ends_it(happens: Callable[[Job], Job], what: str) -> None:
    """All ranks have ended with 0."""
    assert happens(left()).settles().saw() == [
        f"node 0 prints: {what}: killing what the ranks here have left running",
        KILLS,
        ENDS,
    ]


def test_a_signal_before_anything_is_named_is_not_mentioned() -> None:
    """Most often nothing is left that it could end."""
    job = Job().leaves("sh").exits(0).settles()

    assert job.signalled(signal.SIGINT).settles().saw() == [WAITS, KILLS, ENDS]


def test_names_that_come_after_a_signal_are_not_printed() -> None:
    """What they name is being killed."""
    job = Job().leaves("sh").exits(0).settles()
    job.passes(1).signalled(signal.SIGTERM).saw()

    assert job.settles().saw() == [ENDS]


def test_without_a_fork_server_the_rest_is_killed() -> None:
    """The agent has it now."""
    assert left().loses_fork_server().settles().saw() == [KILLS, ENDS]


def test_a_fork_server_that_does_not_answer_is_given_up() -> None:
    """After the grace period, 5 s and 7 s."""
    job = Job().leaves("sh").exits(0).settles()

    for seconds in (1, 24, 5, 7):
        assert job.saw()[-1:] != [ENDS]
        job.passes(seconds).hears()
    assert job.saw()[-1] == ENDS


def test_other_signals_change_nothing() -> None:
    """No rank is there to be asked for its stack, or to be asked to save."""
    job = left(suspend_signal=signal.SIGUSR2)

    for number in (signal.SIGQUIT, signal.SIGUSR2):
        job.signalled(number)
    job.loses_reader().stands_still(0, seconds=600)
    assert job.settles().saw() == []
    assert job.has_nothing_left().settles().saw() == [ENDS]


# Several nodes.


def test_no_node_waits_for_what_another_ones_ranks_have_left() -> None:
    """The job has succeeded, and the node without leftovers ends."""
    job = Job(nodes=2).leaves("sh", node=1, rank=1)

    assert job.exits(1).settles().saw() == ["node 1 waits for what its ranks have left"]
    assert job.exits(0).settles().saw() == [WAITS, ENDS]
    assert job.passes(1).settles().saw() == [
        (
            "node 1 prints: the ranks of this node have ended; still running: sh (pid 500, of rank 1);"
            " waiting up to 25 s (--shutdown-timeout; Ctrl-C ends them)"
        ),
    ]
    job.has_nothing_left(1)
    assert job.settles().saw() == ["node 1 ends with 0: all ranks have succeeded"]


@pytest.mark.parametrize(
    ("happens", "again", "code"),
    [
        (lambda job: job.signalled(signal.SIGTERM, node=1), ("SIGTERM", "SIGTERM"), 143),
        (lambda job: job.signalled(signal.SIGINT, node=1), ("interrupted", "Ctrl-C"), 130),
        (lambda job: job.asked_to_stop(1), ("SIGTERM", "SIGTERM"), 143),
    ],
)
def test_a_signal_ends_the_job_if_ranks_of_other_nodes_run(
    happens: Callable[[Job], Job], again: tuple[str, str], code: int
) -> None:
    """As without leftovers."""
    job = left(nodes=2, node=1)

    seen = happens(job).settles().saw()
    assert seen[1:3] == [
        "node 1 kills what its ranks have left",
        OTHERS_STOP.format(*again, code),
    ]
    job.dies(0, by=signal.SIGTERM).settles()
    assert [line[:18] for line in job.saw()[-2:]] == [
        f"node {node} ends with {str(code)[:1]}" for node in (0, 1)
    ]


def test_a_signal_ends_no_job_whose_ranks_have_all_succeeded() -> None:
    """On each node it ends what is left there."""
    job = Job(nodes=2).leaves("sh").leaves("sh", node=1).exits(0, 1).settles()
    job.passes(1).settles().saw()

    job.signalled(signal.SIGTERM, node=1)
    assert job.settles().saw() == [
        "node 1 prints: SIGTERM: killing what the ranks here have left running",
        "node 1 kills what its ranks have left",
        "node 1 ends with 0: all ranks have succeeded",
    ]
    assert job.signalled(signal.SIGTERM).settles().saw()[1:] == [KILLS, ENDS]


def test_two_nodes_get_a_signal_that_crosses_the_verdict() -> None:
    """Node 0 has heard of all ends before it hears of the signal."""
    job = Job(nodes=2).leaves("sh", node=1).exits(0, 1)
    job.signalled(signal.SIGTERM, node=1).settles()

    assert job.saw()[-2:] == [ENDS, "node 1 ends with 0: all ranks have succeeded"]


def test_a_query_then_waits_for_no_node_that_has_ended() -> None:
    """Its user wants to see what this node still waits for."""
    job = Job(nodes=2).leaves("sh").exits(0, 1).settles().loses_connection(1)
    job.saw()

    assert job.asks_about_ranks(0).settles().saw() == [
        "node 0 has all answers to its query 1: no node is missing"
    ]


def test_a_failure_elsewhere_ends_it_at_once() -> None:
    """The next attempt begins on all nodes."""
    job = left(nodes=2, node=1, restarts=1)

    assert job.exits(0, code=3).settles().saw() == [
        KILLS,
        "node 1 prints: rank 0 on n0 failed: killing what the ranks here have left running",
        "node 1 kills what its ranks have left",
        "node 0 starts rank 0, attempt 1",
        "node 1 starts rank 1, attempt 1",
    ]


def test_a_stop_without_grace_elsewhere_ends_it_at_once() -> None:
    """By ``clusterrun stop --now`` on the other node."""
    job = left(nodes=2, node=1)

    assert job.asked_to_stop(at_once=True).settles().saw()[-2:] == [
        "node 1 prints: n0 got SIGTERM: killing what the ranks here have left running",
        "node 1 kills what its ranks have left",
    ]


def test_the_next_attempt_waits_until_the_rest_is_killed() -> None:
    """Also on the other node: the two may share a port, or files."""
    job = left(nodes=2, node=1, restarts=1)
    job.exits(0, code=3).is_read(0).is_clean().hears()

    assert "starts" not in "".join(job.saw())
    assert job.is_clean(1).hears().saw() == [
        "node 0 starts rank 0, attempt 1",
        "node 1 starts rank 1, attempt 1",
    ]


def test_a_node_that_is_lost_meanwhile_ends_the_job() -> None:
    """What its ranks have left may still run, and ranks of others do."""
    job = left(nodes=2, node=1)

    job.loses_node(1).dies(0, by=signal.SIGTERM).settles()

    assert job.saw()[-1] == "node 0 ends with 5: node 1 is gone"


def test_what_is_left_does_not_hide_a_hang_of_others() -> None:
    """Its node counts as one whose ranks stand still."""
    job = left(nodes=2, node=1)

    job.stands_still(0, 1).settles()

    assert "no rank has printed or exited for 60 s" in "".join(job.saw())


def test_without_node_0_it_is_killed() -> None:
    """The job may not have succeeded."""
    job = left(nodes=2, node=1)

    assert job.loses_node(0).settles().saw() == [
        "node 1 prints: node 0 (n0) is gone: killing what the ranks here have left running",
        "node 1 kills what its ranks have left",
        "node 1 ends with 5: node 0 is gone",
    ]


def test_a_node_that_the_others_have_lost_kills_it() -> None:
    """It learns that from the verdict."""
    job = left(nodes=2, node=1)

    assert job.is_given_up(1).settles().saw()[-2:] == [
        "node 1 kills what its ranks have left",
        "node 1 joins again",
    ]
