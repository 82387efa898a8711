"""A node whose ranks have all ended waits for the other nodes, or for the next attempt."""

import signal

import pytest

from tests.histories.job_history import Job

OTHERS_STOP = (
    "node 1 prints: {0}: the other nodes stop their workers (a second {1} does not wait for them);"
    " exit code {2}"
)
NODE_0_STOPS = [
    "node 0 prints: n1 got SIGTERM: stopping 1 worker here",
    "node 0 sends SIGTERM to rank 0",
]


def done(node: int = 1, nodes: int = 2, *, restarts: int = 0) -> Job:
    """Return a job, one of whose nodes has reported that its one rank has succeeded."""
    job = Job(nodes=nodes, restarts=restarts)
    job.exits(node).settles().saw()
    return job


def test_nothing_of_its_own_ends_the_wait() -> None:
    """It has no rank that needs a helper or a reader, and nothing to be in time for."""
    job = done()

    job.loses_fork_server(1).loses_relay(1).loses_reader(1).is_clean(1).gets_orders(0, 1)
    assert job.passes(50).settles().saw() == []
    assert job.exits(0).settles().saw()[1:] == [
        "node 0 ends with 0: all ranks have succeeded",
        "node 1 ends with 0: all ranks have succeeded",
    ]


def test_a_signal_to_it_ends_the_job_on_the_others() -> None:
    """One that comes twice within a second came once, here too."""
    job = done()

    job.signalled(signal.SIGTERM, node=1).passes(0.5).signalled(signal.SIGTERM, node=1)
    assert job.settles().saw() == [
        OTHERS_STOP.format("SIGTERM", "SIGTERM", 143),
        *NODE_0_STOPS,
    ]
    assert job.dies(0, by=signal.SIGTERM).settles().saw()[1:] == [
        "node 0 ends with 143: it got SIGTERM",
        "node 1 ends with 143: it got SIGTERM",
    ]


def test_a_signal_may_come_before_its_report_has() -> None:
    """Its ranks have succeeded: only on the others something is left to end."""
    job = Job(nodes=2).exits(1)

    assert job.signalled(signal.SIGTERM, node=1).settles().saw() == [
        "node 1 waits for what its ranks have left",
        "node 1 kills what its ranks have left",
        OTHERS_STOP.format("SIGTERM", "SIGTERM", 143),
        *NODE_0_STOPS,
    ]


def test_a_second_signal_ends_its_wait() -> None:
    """The other nodes are stopped all the same."""
    job = done()

    job.signalled(signal.SIGINT, node=1).passes(0.1).signalled(signal.SIGINT, node=1).settles()
    assert job.saw()[0] == OTHERS_STOP.format("interrupted", "Ctrl-C", 130)
    assert job.passes(1.1).signalled(signal.SIGINT, node=1).settles().saw() == [
        "node 1 ends with 130: it got SIGINT",
    ]
    job.dies(0, by=signal.SIGTERM).settles()
    assert job.saw()[-1] == "node 0 ends with 130: it got SIGINT"


def test_a_command_to_it_ends_the_job_on_the_others() -> None:
    """At once, if that is typed; typed again, it changes nothing."""
    stopped, killed = done(), done()

    for _ in range(2):
        stopped.asked_to_stop(node=1)
    assert stopped.settles().saw() == [
        OTHERS_STOP.format("SIGTERM", "SIGTERM", 143),
        *NODE_0_STOPS,
    ]
    killed.asked_to_stop(node=1, at_once=True)
    assert killed.settles().saw() == [
        "node 0 prints: n1 got SIGTERM: killing 1 worker here",
        "node 0 sends SIGKILL to rank 0 and all they started",
    ]


@pytest.mark.parametrize("is_command", [False, True])
def test_one_that_comes_before_the_next_attempt_prevents_it(*, is_command: bool) -> None:
    """The job on one node has reported its end, and has no answer yet."""
    job = Job(restarts=1)
    job.exits(0, code=3).is_read(0).is_clean().saw()

    if is_command:
        job.asked_to_stop()
    else:
        job.signalled(signal.SIGTERM)

    assert job.settles().saw() == [
        "node 0 prints: SIGTERM: no restart; exit code 143",
        "node 0 ends with 143: it got SIGTERM",
    ]


def test_a_signal_that_crosses_the_order_to_begin_anew() -> None:
    """Its node takes no part in the next attempt, so that the job ends."""
    job = done(restarts=1)
    job.freezes(1).exits(0, code=3).settles().saw()

    job.signalled(signal.SIGTERM, node=1).thaws(1).settles()

    assert "node 1 starts" not in "".join(job.saw())
    job.dies(0, by=signal.SIGTERM).settles()
    assert job.saw()[-2:] == [
        "node 0 ends with 143: it got SIGTERM",
        "node 1 ends with 143: it got SIGTERM",
    ]


def test_without_a_fork_server_it_takes_no_part_in_the_next_attempt() -> None:
    """A job that succeeds does not need one any more."""
    job = done(restarts=1)
    job.loses_fork_server(1).exits(0, code=3).settles()

    assert "node 1 starts" not in "".join(job.saw())
    job.dies(0, by=signal.SIGTERM).settles()
    assert job.saw()[-1] == "node 1 ends with 137: its fork server on n1 was killed by SIGKILL"


def test_an_order_to_begin_anew_comes_too_early() -> None:
    """Ranks run: it is ignored."""
    job = Job(restarts=1)

    assert job.begins_anew().saw() == []
    assert job.exits(0).settles().saw()[1:] == ["node 0 ends with 0: all ranks have succeeded"]


def test_no_node_begins_anew_without_node_0() -> None:
    """It ends; for the signal that node 0 got, if it knows of it."""
    lost, signalled = Job(nodes=2, restarts=1), Job(nodes=2, restarts=1)
    lost.exits(1, code=3).settles()
    signalled.signalled(signal.SIGTERM).exits(1, code=3).settles()

    for job in (lost, signalled):
        job.loses_node(0).settles()

    assert lost.saw()[-1] == "node 1 ends with 5: node 0 is gone"
    assert signalled.saw()[-1] == "node 1 ends with 143: it got SIGTERM"
