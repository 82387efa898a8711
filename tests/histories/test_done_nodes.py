"""A node whose ranks have all ended waits for the other nodes, or for the next attempt."""

import signal

import pytest

from tests.histories.job_history import Job

OTHERS_STOP = (
    "node 1 prints: {0}: the other nodes stop their workers (a second {1} does not wait for them);"
    " exit code {2}"
)
NODE_0_STOPS = [
    "node 0 prints: n1 got SIGTERM: stopping 1 worker on this node",
    "node 0 sends SIGTERM to rank 0",
]


def done(node: int = 1, nodes: int = 2, *, restarts: int = 0) -> Job:
    """Return a job, one of whose nodes has reported that its one rank has succeeded."""
    job = Job(nodes=nodes, restarts=restarts)
    job.exits(node).settles().new_lines()
    return job


def test_helper_loss_does_not_end_wait() -> None:
    """The node has no rank that needs a helper or a reader, and no deadline."""
    job = done()

    job.loses_fork_server(1).loses_relay(1).output_is_closed(1).is_cleaned_up(1).gets_orders(0, 1)
    assert job.time_passes(50).settles().new_lines() == []
    assert job.exits(0).settles().new_lines()[1:] == [
        "node 0 ends with 0: all ranks have succeeded",
        "node 1 ends with 0: all ranks have succeeded",
    ]


def test_signal_ends_job_on_other_nodes() -> None:
    """The same signal twice within a second counts once."""
    job = done()

    job.signalled(signal.SIGTERM, node=1).time_passes(0.5).signalled(signal.SIGTERM, node=1)
    assert job.settles().new_lines() == [
        OTHERS_STOP.format("SIGTERM", "SIGTERM", 143),
        *NODE_0_STOPS,
    ]
    assert job.dies(0, by=signal.SIGTERM).settles().new_lines()[1:] == [
        "node 0 ends with 143: it got SIGTERM",
        "node 1 ends with 143: it got SIGTERM",
    ]


def test_signal_comes_before_report() -> None:
    """Its ranks have succeeded; only ranks of the others are left to stop."""
    job = Job(nodes=2).exits(1)

    assert job.signalled(signal.SIGTERM, node=1).settles().new_lines() == [
        "node 1 waits for what its ranks have left",
        "node 1 kills what its ranks have left",
        OTHERS_STOP.format("SIGTERM", "SIGTERM", 143),
        *NODE_0_STOPS,
    ]


def test_second_signal_ends_wait() -> None:
    """The other nodes are stopped as well."""
    job = done()

    job.signalled(signal.SIGINT, node=1).time_passes(0.1).signalled(signal.SIGINT, node=1).settles()
    assert job.new_lines()[0] == OTHERS_STOP.format("interrupted", "Ctrl-C", 130)
    assert job.time_passes(1.1).signalled(signal.SIGINT, node=1).settles().new_lines() == [
        "node 1 ends with 130: it got SIGINT",
    ]
    job.dies(0, by=signal.SIGTERM).settles()
    assert job.new_lines()[-1] == "node 0 ends with 130: it got SIGINT"


def test_stop_command_ends_job_on_other_nodes() -> None:
    """With --now it ends at once; a second command changes nothing."""
    stopped, killed = done(), done()

    for _ in range(2):
        stopped.asked_to_stop(node=1)
    assert stopped.settles().new_lines() == [
        OTHERS_STOP.format("SIGTERM", "SIGTERM", 143),
        *NODE_0_STOPS,
    ]
    killed.asked_to_stop(node=1, at_once=True)
    assert killed.settles().new_lines() == [
        "node 0 prints: n1 got SIGTERM: killing 1 worker on this node",
        "node 0 sends SIGKILL to rank 0 and all they started",
    ]


@pytest.mark.parametrize("is_command", [False, True])
def test_signal_before_next_attempt_prevents_it(*, is_command: bool) -> None:
    """A job on one node has reported its end, but has no response yet."""
    job = Job(restarts=1)
    job.exits(0, code=3).output_is_read(0).is_cleaned_up().new_lines()

    if is_command:
        job.asked_to_stop()
    else:
        job.signalled(signal.SIGTERM)

    assert job.settles().new_lines() == [
        "node 0 prints: SIGTERM: no restart; exit code 143",
        "node 0 ends with 143: it got SIGTERM",
    ]


def test_signal_crosses_next_attempt_order() -> None:
    """Its node does not participate in the next attempt, so the job ends."""
    job = done(restarts=1)
    job.freezes(1).exits(0, code=3).settles().new_lines()

    job.signalled(signal.SIGTERM, node=1).continues(1).settles()

    assert "node 1 starts" not in "".join(job.new_lines())
    job.dies(0, by=signal.SIGTERM).settles()
    assert job.new_lines()[-2:] == [
        "node 0 ends with 143: it got SIGTERM",
        "node 1 ends with 143: it got SIGTERM",
    ]


def test_node_without_fork_server_refuses_next_attempt() -> None:
    """A job that succeeds does not need the fork server any more."""
    job = done(restarts=1)
    job.loses_fork_server(1).exits(0, code=3).settles()

    assert "node 1 starts" not in "".join(job.new_lines())
    job.dies(0, by=signal.SIGTERM).settles()
    assert (
        job.new_lines()[-1] == "node 1 ends with 137: its fork server on n1 was killed by SIGKILL"
    )


def test_next_attempt_order_while_ranks_run_is_ignored() -> None:
    """Ranks run: it is ignored."""
    job = Job(restarts=1)

    assert job.restarts_too_early().new_lines() == []
    assert job.exits(0).settles().new_lines()[1:] == [
        "node 0 ends with 0: all ranks have succeeded"
    ]


def test_node_that_loses_node_0_ends() -> None:
    """If it knows of a signal that node 0 got, that is the reason."""
    lost, signalled = Job(nodes=2, restarts=1), Job(nodes=2, restarts=1)
    lost.exits(1, code=3).settles()
    signalled.signalled(signal.SIGTERM).exits(1, code=3).settles()

    for job in (lost, signalled):
        job.loses_node(0).settles()

    assert lost.new_lines()[-1] == "node 1 ends with 5: node 0 is gone"
    assert signalled.new_lines()[-1] == "node 1 ends with 143: it got SIGTERM"
