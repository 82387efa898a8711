"""Ranks exit with code 0 while others run: what is printed, while the job keeps running."""

import signal
from collections.abc import Mapping
from typing import Any

import pytest

from tests.histories.job_history import Job

GONE = "RuntimeError: Connection closed by peer [10.0.0.2]:4711"
"""The last line of a rank whose peer is gone."""


def notices(job: Job) -> list[str]:
    """Return the lines on clean exits that are new."""
    return [line for line in job.new_lines() if "exited with code 0" in line]


def causes(job: Job) -> set[str]:
    """Return how the nodes have ended, which agree."""
    return {line[7:] for line in job.new_lines() if " ends with " in line}


@pytest.mark.parametrize(
    ("nodes", "workers", "exits", "notice"),
    [
        (4, 1, [1], "rank 1 exited with code 0 60 s ago; ranks 0, 2-3 still run"),
        (1, 4, [1], "rank 1 exited with code 0 60 s ago; ranks 0, 2-3 still run"),
        (2, 2, [0, 1], "ranks 0-1 exited with code 0 60 s ago; ranks 2-3 still run"),
        (2, 2, [0, 3], "ranks 0, 3 exited with code 0 60 s ago; ranks 1-2 still run"),
        (1, 2, [0], "rank 0 exited with code 0 60 s ago; rank 1 still runs"),
    ],
)
def test_rank_exits_long_before_the_others(
    nodes: int, workers: int, exits: list[int], notice: str
) -> None:
    """Node 0 prints one line after a minute; the job keeps running."""
    job = Job(nodes=nodes, workers=workers).exits(*exits).settles()
    job.time_passes(1).settles().new_lines()

    assert job.time_passes(58.5).settles().new_lines() == []
    job.time_passes(0.5).settles()
    assert job.new_lines()[0] == f"node 0 prints: {notice}"
    assert notices(job.time_passes(1000).settles()) == []
    rest = set(range(nodes * workers)) - set(exits)
    assert causes(job.exits(*rest).settles()) == {"ends with 0: all ranks have succeeded"}


def test_ranks_exit_one_after_the_other() -> None:
    """One line names all that have exited by then; later ones are not named."""
    job = Job(workers=6).exits(1).time_passes(20).settles().exits(5).time_passes(1).settles()
    job.new_lines()

    assert notices(job.time_passes(39).settles()) == [
        "node 0 prints: ranks 1, 5 exited with code 0, the first 60 s ago; ranks 0, 2-4 still run"
    ]
    assert notices(job.exits(2).settles().time_passes(1).settles().time_passes(100).settles()) == []


def test_all_ranks_exit_within_a_minute() -> None:
    """As in most jobs there is no line, and no message about each rank."""
    job = (
        Job(nodes=2, workers=2)
        .exits(0, 2)
        .time_passes(0.5)
        .exits(1)
        .settles()
        .time_passes(50)
        .settles()
    )

    job.exits(3).settles()
    assert notices(job) == []
    assert notices(job.time_passes(100).settles()) == []


@pytest.mark.parametrize(
    ("exits", "notice"),
    [
        (
            range(1, 8000, 2),
            (
                "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 3992 more exited with code 0 60 s ago;"
                " ranks 0, 2, 4, 6, 8, 10, 12, 14 and 3992 more still run"
            ),
        ),
        (
            range(1, 8000),
            "ranks 1-7999 exited with code 0 60 s ago; rank 0 still runs",
        ),
    ],
)
def test_notice_names_few_of_many_ranks(exits: range, notice: str) -> None:
    """The job has 8,000 ranks."""
    job = Job(nodes=8, workers=1000).exits(*exits).delivers_all().time_passes(1).delivers_all()

    assert notices(job.time_passes(59).delivers_all()) == [f"node 0 prints: {notice}"]


def test_ranks_of_node_0_exit_first() -> None:
    """It names the ranks, but not the node again; other nodes print their own line."""
    job = Job(nodes=3).exits(0, 1).settles()
    job.new_lines()

    assert job.time_passes(60).settles().new_lines() == [
        "node 0 prints: ranks 0-1 exited with code 0 60 s ago; rank 2 still runs",
        "node 1 prints: all workers of this node have exited; still running: n2",
    ]
    assert job.time_passes(60).settles().new_lines() == [
        "node 1 prints: all workers of this node have exited; still running: n2",
    ]


def test_job_without_grace_period() -> None:
    """Left-over processes are killed at once, but the clean exits are known."""
    job = Job(nodes=2, grace=0).exits(1).settles()

    assert notices(job.time_passes(61).settles()) == [
        "node 0 prints: rank 1 exited with code 0 61 s ago; rank 0 still runs"
    ]


@pytest.mark.parametrize("why", ["failure", "signal"])
def test_exits_of_stopped_ranks_are_not_printed(why: str) -> None:
    """They are to exit: no line."""
    job = Job(nodes=2, workers=2, grace=1000).exits(2).settles().time_passes(2).settles()
    if why == "failure":
        job.exits(3, code=1)
    else:
        job.signalled(signal.SIGTERM)

    assert notices(job.settles().exits(1).settles().time_passes(100).settles()) == []


def test_exits_in_suspension_are_not_printed() -> None:
    """Once the suspension is cancelled they are."""
    job = Job(workers=2).exits(1).settles().time_passes(2).settles().calls_requested(0)
    job.asked_to_suspend("SIGTERM").settles()

    assert notices(job.time_passes(100).settles()) == [
        "node 0 prints: rank 1 exited with code 0 102 s ago; rank 0 still runs"
    ]


def test_exits_of_earlier_attempt_are_forgotten() -> None:
    """Those of the one before are forgotten."""
    job = Job(workers=2, restarts=1).exits(1).settles().time_passes(2).settles().exits(0, code=3)

    assert notices(job.settles().time_passes(100).settles()) == []


# Services.


def test_exits_in_service_with_world() -> None:
    """Its ranks are named if they form a world that must finish; replicas may end one by one."""
    of_world = {"nodes": {0: 3}, "world": True, "must_finish": True}
    replicas = {"nodes": {0: 2}, "must_finish": True}
    server = {"nodes": {0: 1}}
    services: Mapping[str, Mapping[str, Any]] = {
        "eval": of_world,
        "copy": replicas,
        "server": server,
    }
    job = Job(workers=2, services=services).exits("eval 1", "copy 0").time_passes(1).settles()

    assert notices(job.time_passes(60).settles()) == [
        "node 0 prints: eval rank 1 exited with code 0 61 s ago; eval ranks 0, 2 still run"
    ]
    assert notices(job.exits(0).time_passes(1).settles().time_passes(60).settles()) == [
        "node 0 prints: rank 0 exited with code 0 61 s ago; rank 1 still runs"
    ]


def test_all_ranks_of_main_program_exit() -> None:
    """A service that must finish has its own peers."""
    services = {"eval": {"nodes": {0: 1}, "must_finish": True}}
    job = Job(workers=2, services=services).exits(0, 1).time_passes(1).settles()

    assert notices(job.time_passes(100).settles()) == []


def test_stopped_services_are_not_printed() -> None:
    """There is no line, however long a service takes to stop."""
    job = Job(nodes=2, services={"server": {"nodes": {1: 2}, "world": True}}, grace=1000)
    job.exits(0, 1).settles().exits("server 0").settles()

    assert notices(job.time_passes(100).settles()) == []


# A failure that follows.


@pytest.mark.parametrize(
    ("nodes", "workers"),
    [(4, 1), (2, 2), (1, 4)],
)
def test_rank_fails_after_peer_exited(nodes: int, workers: int) -> None:
    """The reports say so; the exit code is that of the failed rank."""
    job = Job(nodes=nodes, workers=workers).exits(1).delivers_all().time_passes(1.2)
    job.exits(2, code=7).settles()

    job.dies(0, 3, by=signal.SIGTERM).settles()
    assert causes(job) == {"ends with 7: rank 2 failed 1.2 s after rank 1 exited with 0"}


@pytest.mark.parametrize(
    ("seconds", "last", "after"),
    [
        # Both have just begun.
        (0.1, "ValueError: it", ""),
        (0.1, GONE, " 0.1 s after rank 1 exited with 0"),
        (0.4, "ValueError: it", " 0.4 s after rank 1 exited with 0"),
        (59.0, "ValueError: it", " 59.0 s after rank 1 exited with 0"),
        (62.0, "ValueError: it", ""),
        (62.0, GONE, " 62.0 s after rank 1 exited with 0"),
    ],
)
def test_time_between_exit_and_failure(seconds: float, last: str, after: str) -> None:
    """A very long or short time counts only if the rank has lost a connection."""
    job = Job(workers=2).exits(1).time_passes(seconds).exits(0, code=1, last=last).settles()

    assert causes(job) == {f"ends with 1: rank 0 failed{after}"}


@pytest.mark.parametrize(
    ("number", "after"),
    [(signal.SIGABRT, " 2.0 s after rank 1 exited with 0"), (signal.SIGKILL, "")],
)
def test_signal_kills_rank_after_peer_exited(number: int, after: str) -> None:
    """NCCL's watchdog aborts; an out-of-memory kill has nothing to do with peers."""
    job = Job(workers=2).exits(1).time_passes(2).dies(0, by=number).settles()

    assert causes(job) == {f"ends with {128 + number}: rank 0 failed{after}"}


@pytest.mark.parametrize(
    ("last", "after"),
    [(GONE, " 0.0 s after rank 1 exited with 0"), ("ValueError: it", "")],
)
def test_rank_fails_just_before_peer_exited(last: str, after: str) -> None:
    """It may notice the closed connection before the agent notices the exit."""
    job = Job(nodes=2).exits(0, code=1, last=last, since=0.5)

    assert causes(job.exits(1).settles()) == {f"ends with 1: rank 0 failed{after}"}


def test_rank_that_exits_while_stopping_is_not_mentioned() -> None:
    """It exits because of the failure."""
    job = Job(workers=3).exits(0, code=1, last=GONE).settles().exits(1, 2).settles()

    assert causes(job) == {"ends with 1: rank 0 failed"}


def test_failure_after_many_exits() -> None:
    """The verdict names as many ranks as fit."""
    job = (
        Job(workers=1200)
        .exits(*range(1, 1200))
        .delivers_all()
        .time_passes(2)
        .exits(0, code=3)
        .settles()
    )

    after = "2.0 s after ranks 1-1024 and 175 others exited with 0"
    assert causes(job) == {f"ends with 3: rank 0 failed {after}"}


def test_service_fails_after_main_ranks_exited() -> None:
    """They are not its peers."""
    services = {"eval": {"nodes": {0: 2}, "world": True, "must_finish": True}}
    job = Job(workers=2, services=services).exits(1, "eval 1").time_passes(2)
    of_one = Job(workers=2, services={"server": {"nodes": {0: 1}}}).exits(1).time_passes(2)

    job.exits("eval 0", code=3).settles().dies(0, by=signal.SIGTERM)
    of_one.exits("server 0", code=3).settles().dies(0, by=signal.SIGTERM)
    assert causes(job.settles()) == {
        "ends with 3: eval rank 0 failed 2.0 s after rank 1 exited with 0"
    }
    assert causes(of_one.settles()) == {"ends with 3: server rank 0 failed"}


def test_restart_after_clean_exit() -> None:
    """The line between the attempts mentions it, and the next attempt does not."""
    job = Job(workers=2, restarts=1).exits(1).time_passes(2).exits(0, code=3).settles()

    assert job.restarted().startswith("rank 0 failed 2.0 s after rank 1 exited with 0;")
    assert causes(job.exits(0, code=3).settles().dies(1, by=signal.SIGTERM).settles()) == {
        "ends with 3: rank 0 failed"
    }
