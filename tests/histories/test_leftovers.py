"""Left-over processes may end by themselves if all ranks of their node have succeeded.

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
    there.leaves_processes("sh", node=node, rank=node).exits(*there.running(node)).settles()
    there.time_passes(1).settles().new_lines()
    return there


# The grace period goes by.


def test_no_leftovers() -> None:
    """The job ends without a line."""
    assert Job(workers=2).exits(0, 1).settles().new_lines() == [WAITS, ENDS]


def test_leftover_that_ends_within_a_second_is_not_named() -> None:
    """Helper processes of libraries end when they notice that their rank has."""
    job = Job().leaves_processes("python").exits(0).settles()

    assert job.time_passes(0.9).settles().new_lines() == [WAITS]
    assert job.leftovers_end().settles().new_lines() == [ENDS]


def test_longer_leftover_is_named_and_waited_for() -> None:
    """An upload takes twenty seconds."""
    job = Job(workers=2).leaves_processes("sh", rank=0).exits(0, 1).settles()

    assert job.time_passes(1).settles().new_lines() == [WAITS, NAMED]
    assert job.time_passes(19).settles().new_lines() == []
    assert job.leftovers_end().settles().new_lines() == [ENDS]


def test_leftover_that_does_not_end_is_killed() -> None:
    """SIGTERM after the grace period, SIGKILL 5 s later; the remaining ones are named each time."""
    job = left()

    job.leaves_processes("python")
    assert job.time_passes(23.9).settles().new_lines() == []
    assert job.time_passes(0.1).settles().new_lines() == [
        "node 0 prints: sh (pid 500, of rank 0), python (pid 501) did not end within 25 s: sending SIGTERM",
        TERMINATES,
    ]
    assert job.time_passes(4.9).settles().new_lines() == []
    assert job.time_passes(0.1).delivers_all().new_lines() == [KILLS]
    assert job.settles().new_lines() == [
        "node 0 prints: sh (pid 500, of rank 0), python (pid 501) did not end within 5 s of SIGTERM: sending SIGKILL",
        ENDS,
    ]


def test_leftover_that_obeys_sigterm_is_not_killed() -> None:
    """A server ends in order."""
    job = left()
    job.time_passes(24).settles().new_lines()

    assert job.leftovers_end().settles().new_lines() == [ENDS]


def test_leftover_that_has_ended_is_not_named() -> None:
    """NoLeftovers follows."""
    assert Job().exits(0).delivers_all().time_passes(1).settles().new_lines() == [WAITS, ENDS]


def test_five_leftovers_are_named() -> None:
    """A pool may have left a hundred."""
    job = Job().leaves_processes(*["python"] * 17).exits(0).settles()
    job.time_passes(1).settles()

    named = ", ".join(f"python (pid {pid})" for pid in range(500, 505))
    assert f"still running: {named} and 12 more; waiting" in job.new_lines()[-1]


def test_short_grace_period_has_one_notice() -> None:
    """SIGTERM comes before the processes would be named."""
    job = Job(grace=0.5).leaves_processes("sh").exits(0).settles()

    assert job.time_passes(0.4).settles().new_lines() == [WAITS]
    assert job.time_passes(0.1).settles().new_lines() == [
        "node 0 prints: sh (pid 500) did not end within 0.5 s: sending SIGTERM",
        TERMINATES,
    ]


# It is not waited for.


def test_leftover_without_grace_period_is_killed_at_once() -> None:
    """As --shutdown-timeout 0 demands."""
    assert Job(grace=0).leaves_processes("sh").exits(0).settles().new_lines() == [KILLS, ENDS]


def test_leftovers_of_failed_attempt_are_killed_at_once() -> None:
    """Even those of a rank that had succeeded, and before a restart."""
    job = Job(workers=2, restarts=1).leaves_processes("sh", rank=0)

    assert job.exits(0).settles().new_lines() == []
    assert job.exits(1, code=3).settles().new_lines() == [
        KILLS,
        "node 0 starts ranks 0-1, attempt 1",
    ]


def test_leftovers_of_stopped_ranks_are_killed_at_once() -> None:
    """Ranks may exit with 0 when they are stopped."""
    job = Job().leaves_processes("sh").signalled(signal.SIGTERM).exits(0).settles()

    assert job.new_lines()[-2:] == [KILLS, "node 0 ends with 143: it got SIGTERM"]


def test_leftovers_of_suspended_ranks_are_killed_at_once() -> None:
    """The job's time is nearly over, as a request or SIGTERM shows."""
    held, asked = (
        Job(workers=2).calls_requested(0, 1).settles().leaves_processes("sh") for _ in range(2)
    )
    held.asked_to_suspend("USR1").settles()
    # Nobody has heard of it yet.
    asked.signalled(signal.SIGTERM)

    assert held.exits(0, 1).new_lines()[-1] == KILLS
    assert asked.exits(0, 1).new_lines() == [KILLS]


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
def test_signal_after_success_does_not_fail_job(happens: Callable[[Job], Job], what: str) -> None:
    """All ranks have exited with 0."""
    assert happens(left()).settles().new_lines() == [
        f"node 0 prints: {what}: killing processes that the ranks on this node left running",
        KILLS,
        ENDS,
    ]


def test_signal_before_leftovers_are_named_is_not_printed() -> None:
    """Usually no process is left that it could end."""
    job = Job().leaves_processes("sh").exits(0).settles()

    assert job.signalled(signal.SIGINT).settles().new_lines() == [WAITS, KILLS, ENDS]


def test_leftovers_named_after_signal_are_not_printed() -> None:
    """They are being killed."""
    job = Job().leaves_processes("sh").exits(0).settles()
    job.time_passes(1).signalled(signal.SIGTERM).new_lines()

    assert job.settles().new_lines() == [ENDS]


def test_lost_fork_server_kills_leftovers() -> None:
    """The agent has adopted them."""
    assert left().loses_fork_server().settles().new_lines() == [KILLS, ENDS]


def test_unresponsive_fork_server_is_not_waited_for() -> None:
    """After the grace period, 5 s and 7 s."""
    job = Job().leaves_processes("sh").exits(0).settles()

    for seconds in (1, 24, 5, 7):
        assert job.new_lines()[-1:] != [ENDS]
        job.time_passes(seconds).delivers_all()
    assert job.new_lines()[-1] == ENDS


def test_other_signals_change_nothing() -> None:
    """No rank is left to print its stack or to save."""
    job = left(suspend_signal=signal.SIGUSR2)

    for number in (signal.SIGQUIT, signal.SIGUSR2):
        job.signalled(number)
    job.output_is_closed().is_idle(0, seconds=600)
    assert job.settles().new_lines() == []
    assert job.leftovers_end().settles().new_lines() == [ENDS]


# Several nodes.


def test_node_does_not_wait_for_leftovers_of_others() -> None:
    """The job has succeeded, and a node without left-over processes ends."""
    job = Job(nodes=2).leaves_processes("sh", node=1, rank=1)

    assert job.exits(1).settles().new_lines() == ["node 1 waits for what its ranks have left"]
    assert job.exits(0).settles().new_lines() == [WAITS, ENDS]
    assert job.time_passes(1).settles().new_lines() == [
        (
            "node 1 prints: the ranks of this node have ended; still running: sh (pid 500, of rank 1);"
            " waiting up to 25 s (--shutdown-timeout; Ctrl-C ends them)"
        ),
    ]
    job.leftovers_end(1)
    assert job.settles().new_lines() == ["node 1 ends with 0: all ranks have succeeded"]


@pytest.mark.parametrize(
    ("happens", "again", "code"),
    [
        (lambda job: job.signalled(signal.SIGTERM, node=1), ("SIGTERM", "SIGTERM"), 143),
        (lambda job: job.signalled(signal.SIGINT, node=1), ("interrupted", "Ctrl-C"), 130),
        (lambda job: job.asked_to_stop(1), ("SIGTERM", "SIGTERM"), 143),
    ],
)
def test_signal_ends_job_if_ranks_of_other_nodes_run(
    happens: Callable[[Job], Job], again: tuple[str, str], code: int
) -> None:
    """As without left-over processes."""
    job = left(nodes=2, node=1)

    seen = happens(job).settles().new_lines()
    assert seen[1:3] == [
        "node 1 kills what its ranks have left",
        OTHERS_STOP.format(*again, code),
    ]
    job.dies(0, by=signal.SIGTERM).settles()
    assert [line[:18] for line in job.new_lines()[-2:]] == [
        f"node {node} ends with {str(code)[:1]}" for node in (0, 1)
    ]


def test_signal_after_all_ranks_succeeded_ends_leftovers() -> None:
    """Each node ends its own."""
    job = Job(nodes=2).leaves_processes("sh").leaves_processes("sh", node=1).exits(0, 1).settles()
    job.time_passes(1).settles().new_lines()

    job.signalled(signal.SIGTERM, node=1)
    assert job.settles().new_lines() == [
        "node 1 prints: SIGTERM: killing processes that the ranks on this node left running",
        "node 1 kills what its ranks have left",
        "node 1 ends with 0: all ranks have succeeded",
    ]
    assert job.signalled(signal.SIGTERM).settles().new_lines()[1:] == [KILLS, ENDS]


def test_signal_to_two_nodes_crosses_verdict() -> None:
    """Node 0 gets all reports before it gets the signal's."""
    job = Job(nodes=2).leaves_processes("sh", node=1).exits(0, 1)
    job.signalled(signal.SIGTERM, node=1).settles()

    assert job.new_lines()[-2:] == [ENDS, "node 1 ends with 0: all ranks have succeeded"]


def test_query_does_not_wait_for_ended_nodes() -> None:
    """Its user wants to see what this node still waits for."""
    job = Job(nodes=2).leaves_processes("sh").exits(0, 1).settles().loses_connection(1)
    job.new_lines()

    assert job.queries_ranks(0).settles().new_lines() == [
        "node 0 has all answers to its query 1: no node is missing"
    ]


def test_failure_on_other_node_kills_leftovers() -> None:
    """The next attempt begins on all nodes."""
    job = left(nodes=2, node=1, restarts=1)

    assert job.exits(0, code=3).settles().new_lines() == [
        KILLS,
        (
            "node 1 prints: rank 0 on n0 failed: killing processes that the ranks on this node left"
            " running"
        ),
        "node 1 kills what its ranks have left",
        "node 0 starts rank 0, attempt 1",
        "node 1 starts rank 1, attempt 1",
    ]


def test_stop_now_on_other_node_kills_leftovers() -> None:
    """By ``clusterrun stop --now`` on the other node."""
    job = left(nodes=2, node=1)

    assert job.asked_to_stop(at_once=True).settles().new_lines()[-2:] == [
        "node 1 prints: n0 got SIGTERM: killing processes that the ranks on this node left running",
        "node 1 kills what its ranks have left",
    ]


def test_next_attempt_waits_for_killed_leftovers() -> None:
    """Of the other node as well: the two may share a port, or files."""
    job = left(nodes=2, node=1, restarts=1)
    job.exits(0, code=3).output_is_read(0).is_cleaned_up().delivers_all()

    assert "starts" not in "".join(job.new_lines())
    assert job.is_cleaned_up(1).delivers_all().new_lines() == [
        "node 0 starts rank 0, attempt 1",
        "node 1 starts rank 1, attempt 1",
    ]


def test_loss_of_node_with_leftovers_ends_job() -> None:
    """Its left-over processes may still run, and ranks of others do."""
    job = left(nodes=2, node=1)

    job.loses_node(1).dies(0, by=signal.SIGTERM).settles()

    assert job.new_lines()[-1] == "node 0 ends with 5: node 1 is gone"


def test_leftovers_do_not_hide_hang_of_others() -> None:
    """Their node counts as idle."""
    job = left(nodes=2, node=1)

    job.is_idle(0, 1).settles()

    assert "no rank has printed or exited for 60 s" in "".join(job.new_lines())


def test_lost_node_0_kills_leftovers() -> None:
    """The job may not have succeeded."""
    job = left(nodes=2, node=1)

    assert job.loses_node(0).settles().new_lines() == [
        (
            "node 1 prints: node 0 (n0) is gone: killing processes that the ranks on this node left"
            " running"
        ),
        "node 1 kills what its ranks have left",
        "node 1 ends with 5: node 0 is gone",
    ]


def test_node_declared_lost_kills_leftovers() -> None:
    """The verdict tells it."""
    job = left(nodes=2, node=1)

    assert job.is_declared_lost(1).settles().new_lines()[-2:] == [
        "node 1 kills what its ranks have left",
        "node 1 joins again",
    ]
