"""Service workers that fail alone: those that restart, and those whose failure is ignored."""

import signal
from typing import Any

import pytest

from tests.histories.job_history import Job
from tests.histories.worlds import ends, signals

TERM = signal.SIGTERM

SUCCESS = "ends with 0: all ranks have succeeded"


def waiting(on_failure: str, nodes: int = 2, *, restarts: int = 2, **has: Any) -> Job:
    """Return a job whose two ranks wait for two servers: on their node, or on the next one."""
    services = {"server": {"nodes": {nodes - 1: 2}, "on_failure": on_failure, "ready": True, **has}}
    job = Job(nodes=nodes, workers=[2, 0][:nodes], restarts=restarts, services=services)
    job.new_lines()
    return job


def running(on_failure: str, nodes: int = 2, *, restarts: int = 2, **has: Any) -> Job:
    """Return such a job once all run."""
    job = waiting(on_failure, nodes, restarts=restarts, **has)
    if has.get("ready", True):
        job.is_ready("server 0", "server 1")
    job.settles().new_lines()
    return job


def starts(job: Job) -> list[str]:
    return [line for line in job.new_lines() if " starts " in line]


# Restarts of one worker.


@pytest.mark.parametrize("nodes", [1, 2])
def test_service_worker_restarts_alone(nodes: int) -> None:
    """No other worker gets a signal; its readiness is probed again."""
    job, there = running("restart", nodes).time_passes(60), f"node {nodes - 1}"

    assert job.exits("server 0", code=3).new_lines() == [
        f"{there} prints: server rank 0 ended with exit code 3: restarting it (1 of 2)",
        f"{there} starts server rank 0 again",
        f"{there} asks whether server rank 0 is ready",
    ]
    assert job.settles().time_passes(300).settles().is_ready("server 0").settles().new_lines() == []
    assert job.running(nodes - 1)[-2:] == [2, 3]
    job.exits(0, 1).settles().dies("server 0", "server 1", by=TERM).settles()
    assert ends(job) == {SUCCESS}


@pytest.mark.parametrize("nodes", [1, 2])
def test_restarts_are_counted_for_each_worker(nodes: int) -> None:
    """After one too many all workers restart, and each may then restart alone again."""
    job, there = running("restart", nodes, restarts=1), f"node {nodes - 1}"

    job.dies("server 0", "server 1").settles().is_ready("server 0", "server 1").settles()
    assert starts(job) == [f"{there} starts server rank {rank} again" for rank in (0, 1)]
    assert (
        "node 0 sends SIGTERM to ranks 0-1" in job.exits("server 0", code=3).settles().new_lines()
    )
    job.dies(0, 1, "server 1", by=TERM).settles()
    assert f"{there} starts server ranks 0-1, attempt 1" in starts(job)
    assert "server rank 0 failed" in job.restarted()
    assert starts(job.dies("server 0").settles()) == [f"{there} starts server rank 0 again"]


def test_last_worker_restart_fails() -> None:
    """Its failure is the job's, and then the job's restarts count."""
    job = running("restart", 1, restarts=1)

    for _ in range(2):
        job.exits("server 0", code=3).settles().exits("server 0", code=3).settles()
        job.dies("server 1", by=TERM).settles()
        if job.running(0) == [0, 1]:
            job.dies(0, 1, by=TERM).settles()

    assert ends(job) == {"ends with 3: server rank 0 failed"}


@pytest.mark.parametrize("nodes", [1, 2])
def test_worker_that_exits_with_0_restarts_after_5_s(nodes: int) -> None:
    """What has told it to exit may be ending as well."""
    job, there = running("restart", nodes).time_passes(60), f"node {nodes - 1}"
    job.exits("server 0").settles()

    assert job.time_passes(4.9).settles().new_lines() == []
    assert job.time_passes(0.1).settles().new_lines() == [
        f"{there} prints: server rank 0 ended with exit code 0: restarting it (1 of 2)",
        f"{there} starts server rank 0 again",
        f"{there} asks whether server rank 0 is ready",
    ]
    assert job.is_ready("server 0").time_passes(600).settles().new_lines() == []
    job.exits(0, 1).settles().dies("server 0", "server 1", by=TERM).settles()
    assert ends(job) == {SUCCESS}


def test_two_workers_that_exit_with_0_restart_after_5_s_each() -> None:
    """The 5 s of the second one are not forgotten."""
    job = running("restart").exits("server 1").settles().time_passes(3).exits("server 0").settles()

    assert starts(job.time_passes(2).settles()) == ["node 1 starts server rank 1 again"]
    assert starts(job.time_passes(2.9).settles()) == []
    assert starts(job.time_passes(0.1).settles()) == ["node 1 starts server rank 0 again"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_worker_that_exits_just_before_main_program_is_not_restarted(nodes: int) -> None:
    """The job succeeds."""
    job = running("restart", nodes).exits("server 0").settles().time_passes(4).exits(0, 1).settles()

    assert starts(job.time_passes(1).settles()) == []
    assert job.running(nodes - 1) == [3]
    assert ends(job.dies("server 1", by=TERM).settles()) == {SUCCESS}


def test_last_lines_of_second_run_are_waited_for() -> None:
    """Those of the first run, which are known, do not count."""
    job = running("restart", 1).exits("server 0").settles().time_passes(5).settles()
    job.exits(0, code=3).dies(1, "server 0", "server 1", by=TERM).is_cleaned_up()
    job.output_is_read(0).output_is_read(1).output_is_read("server 1").delivers_all()

    assert starts(job)[1:] == []
    job.output_is_read("server 0").delivers_all()
    assert starts(job) == ["node 0 starts server ranks 0-1, attempt 1"]


def test_worker_not_ready_in_time_is_killed_and_restarts() -> None:
    """It restarts once it has ended, with its full timeout."""
    job = waiting("restart", timeout=90.0).is_ready("server 1").time_passes(90).settles()
    job.new_lines()

    assert job.is_not_ready("server 0").settles().new_lines() == [
        "node 1 sends SIGKILL to server rank 0 and all they started"
    ]
    assert job.dies("server 0").settles().new_lines() == [
        (
            "node 1 prints: server rank 0 was not ready within 90 s: Connection refused:"
            " restarting it (1 of 2)"
        ),
        "node 1 starts server rank 0 again",
        "node 1 asks whether server rank 0 is ready",
    ]
    assert job.is_ready("server 0").settles().new_lines() == ["node 0 starts ranks 0-1"]


def test_worker_never_ready_ends_job() -> None:
    """Each try uses one of its own restarts; then all restart, then the job ends."""
    job = waiting("restart", 1, restarts=1, timeout=90.0)
    for _ in range(2):
        job.is_not_ready("server 0").dies("server 0").settles()
        job.is_not_ready("server 0").settles().dies("server 0", "server 1").settles()

    assert ends(job) == {"ends with 1: server rank 0 failed"}


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_wait_for_restarting_worker(nodes: int) -> None:
    """It was ready, but loads again, so ranks could not connect to it."""
    job = waiting("restart", nodes).is_ready("server 0").settles().dies("server 0").settles()

    assert "node 0 starts ranks 0-1" not in job.is_ready("server 1").settles().new_lines()
    assert job.is_ready("server 0").settles().new_lines() == ["node 0 starts ranks 0-1"]


def test_restarting_worker_leaves_other_services_ready() -> None:
    services = {
        name: {"nodes": {0: size}, "on_failure": "restart", "ready": True}
        for name, size in {"server": 2, "judge": 1}.items()
    }
    job = Job(nodes=1, workers=[1], restarts=1, services=services)

    job.is_ready("judge 0", "server 0").settles().dies("server 0").settles()

    assert starts(job.is_ready("server 1").settles())[-1:] == ["node 0 starts server rank 0 again"]
    assert starts(job.is_ready("server 0").settles()) == ["node 0 starts rank 0"]


def test_worker_fails_before_it_was_ready() -> None:
    """Ranks keep waiting."""
    job = waiting("restart").is_ready("server 1").exits("server 0", code=3).settles()

    assert starts(job) == ["node 1 starts server rank 0 again"]
    assert job.is_ready("server 0").settles().new_lines() == ["node 0 starts ranks 0-1"]


def test_worker_that_cannot_be_restarted_is_tried_again() -> None:
    """Each try counts; the last one is the cause."""
    job = running("restart", restarts=2).dies("server 0").settles()
    job.cannot_start("server 0", "fork", "Cannot allocate memory").settles()

    assert starts(job) == ["node 1 starts server rank 0 again"] * 2
    job.cannot_start("server 0", "fork", "Cannot allocate memory").settles()
    assert "node 0 sends SIGTERM to ranks 0-1" in signals(job)


def test_failed_worker_that_does_not_exit_is_killed_and_restarts() -> None:
    """Like a rank, it gets the grace period after its failure."""
    job = running("restart")
    job.hangs_at_exit("server 0").settles().time_passes(5).settles()
    job.shows_stack(0, 1, at="wait").shows_stack(
        "server 0", "server 1", at="join"
    ).settles().time_passes(20)

    assert "node 1 sends SIGKILL to server rank 0 and all they started" in signals(job.settles())
    assert starts(job.dies("server 0").settles()) == ["node 1 starts server rank 0 again"]
    assert job.time_passes(100).settles().new_lines() == []


@pytest.mark.parametrize("nodes", [1, 2])
def test_must_finish_service_restarts_until_it_succeeds(nodes: int) -> None:
    """The job waits for it; an exit with 0 is not a failure."""
    job = running("restart", nodes, ready=False, must_finish=True).exits("server 1").settles()
    job.exits("server 0", code=3).exits(0, 1).settles()

    assert starts(job) == [f"node {nodes - 1} starts server rank 0 again"]
    assert ends(job.time_passes(60).settles()) == set()
    assert ends(job.exits("server 0").settles()) == {SUCCESS}


# Other ends while one starts again.


def starting_again(nodes: int = 2, **has: Any) -> Job:
    """Return a job of which a server's process is made again."""
    services = {"server": {"nodes": {nodes - 1: 2}, "on_failure": "restart", "ready": True, **has}}
    job = Job(nodes=nodes, workers=[2, 0][:nodes], restarts=2, services=services, starting=[2])
    job.starts("server 0").is_ready("server 0", "server 1").settles().dies("server 0").settles()
    job.new_lines()
    return job


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("nodes", [1, 2])
def test_signal_while_worker_restarts(nodes: int, begins: bool) -> None:
    """All get it, whether its program runs or not."""
    job = starting_again(nodes).signalled(TERM).settles()
    if begins:
        job.starts("server 0")

    assert f"node {nodes - 1} sends SIGTERM to server ranks 0-1 and all they started" in signals(
        job
    )
    job.dies(0, 1, "server 0", "server 1", by=TERM).settles()
    assert ends(job) == {"ends with 143: it got SIGTERM"}


@pytest.mark.parametrize("nodes", [1, 2])
def test_rank_fails_while_worker_restarts(nodes: int) -> None:
    """It is the cause, and from then on workers restart only together."""
    job = starting_again(nodes).exits(0, code=3).settles()

    assert f"node {nodes - 1} sends SIGTERM to server ranks 0-1 and all they started" in signals(
        job
    )
    job.dies(1, "server 0", "server 1", by=TERM).settles()
    assert "rank 0 failed" in job.restarted()
    assert f"node {nodes - 1} starts server ranks 0-1, attempt 1" in starts(job)


@pytest.mark.parametrize("nodes", [1, 2])
def test_main_program_ends_while_worker_restarts(nodes: int) -> None:
    """The worker is stopped with the others: exit code 0."""
    job = starting_again(nodes).exits(0, 1).settles()

    assert signals(job) == [
        f"node {nodes - 1} sends SIGTERM to server ranks 0-1 and all they started"
    ]
    assert ends(job.dies("server 0", "server 1", by=TERM).settles()) == {SUCCESS}


def test_signal_while_unready_worker_is_killed() -> None:
    """It does not restart."""
    job = running("restart", 1).dies("server 0").settles().is_not_ready("server 0")
    job.new_lines()
    job.signalled(TERM).settles().dies(0, 1, "server 0", "server 1", by=TERM).settles()

    assert "node 0 starts server rank 0 again" not in (seen := job.new_lines())
    assert seen[-1] == "node 0 ends with 143: it got SIGTERM"


def test_rank_fails_while_unready_worker_is_killed() -> None:
    """The rank is the cause, because the worker would have restarted."""
    job = running("restart", 1).dies("server 0").settles().is_not_ready("server 0")
    job.new_lines()
    job.exits(0, code=3).settles().dies(1, "server 0", "server 1").settles()

    assert starts(job) == ["node 0 starts server ranks 0-1, attempt 1"]
    assert "rank 0 failed" in job.restarted()


def test_main_program_ends_while_unready_worker_is_killed() -> None:
    """The job has succeeded."""
    job = running("restart", 1).dies("server 0").settles().is_not_ready("server 0")
    job.new_lines()
    job.exits(0, 1).settles().dies("server 0").settles()

    assert starts(job) == []
    assert ends(job.dies("server 1", by=TERM).settles()) == {SUCCESS}
    assert job.report() == [f"rank {rank} exited with 0 after 0 s" for rank in (0, 1)]


# Failures that are ignored.


@pytest.mark.parametrize("nodes", [1, 2])
def test_on_failure_ignore(nodes: int) -> None:
    """A notice is printed, and the job succeeds; no report names the worker."""
    job, there = running("ignore", nodes).time_passes(60), f"node {nodes - 1}"

    assert job.exits("server 0", code=3).settles().new_lines() == [
        (
            f"{there} prints: server rank 0 ended with exit code 3; the job continues (on_failure:"
            " ignore)"
        )
    ]
    job.time_passes(60).exits(0, 1).settles()
    assert signals(job) == [f"{there} sends SIGTERM to server rank 1 and all they started"]
    assert ends(job.dies("server 1", by=TERM).settles()) == {SUCCESS}
    assert job.report() == [f"rank {rank} exited with 0 after 120 s" for rank in (0, 1)]
    assert nodes == 1 or job.report(1) == []


@pytest.mark.parametrize("nodes", [1, 2])
def test_on_failure_ignore_and_exit_with_0(nodes: int) -> None:
    """After the 5 s in which the main program may end as well."""
    job, there = running("ignore", nodes).exits("server 0").settles(), f"node {nodes - 1}"

    assert job.time_passes(4.9).settles().new_lines() == []
    assert job.time_passes(0.1).settles().new_lines() == [
        (
            f"{there} prints: server rank 0 ended with exit code 0; the job continues (on_failure:"
            " ignore)"
        )
    ]
    job.exits(0, 1).settles().dies("server 1", by=TERM).settles()
    assert ends(job) == {SUCCESS}


def test_all_workers_of_node_failed_and_are_ignored() -> None:
    """The node waits for the others, and participates when all restart."""
    job = running("ignore").exits("server 0", "server 1", code=3).settles()

    assert [line for line in job.new_lines() if " prints: " not in line] == [
        "node 1 kills what is left of server ranks 0-1",
        "node 1 waits for what its ranks have left",
    ]
    job.time_passes(60).exits(0, code=4).settles().dies(1, by=TERM).settles()
    assert "node 1 starts server ranks 0-1, attempt 1" in job.new_lines()
    job.is_ready("server 0", "server 1").exits("server 0", "server 1", code=3).settles()
    assert ends(job.exits(0, 1).settles()) == {SUCCESS}
    assert job.report(1) == []


@pytest.mark.parametrize("on_failure", ["ignore", "restart"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_rank_that_fails_later_is_cause(nodes: int, on_failure: str) -> None:
    """Not the worker whose failure was ignored, or that runs again."""
    job = running(on_failure, nodes).exits("server 0", code=9).settles().time_passes(60)
    job.exits(1, code=3).settles()
    job.dies(0, *(["server 0"] if on_failure == "restart" else []), "server 1", by=TERM).settles()

    assert "rank 1 failed; restarts: 1" in job.restarted()
    assert f"node {nodes - 1} starts server ranks 0-1, attempt 1" in starts(job)


@pytest.mark.parametrize("first", ["main", "evaluate"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_must_finish_service_ends_by_ignored_failure(nodes: int, first: str) -> None:
    """The job does not wait for it any more."""
    job = running("ignore", nodes, ready=False, must_finish=True)
    if first == "main":
        job.exits(0, 1).settles()
    job.exits("server 0", code=3).settles().exits("server 1").settles()
    if first == "evaluate":
        assert ends(job) == set()
        job.exits(0, 1).settles()

    assert ends(job.time_passes(0).settles()) == {SUCCESS}


@pytest.mark.parametrize("nodes", [1, 2])
def test_failure_before_ready_is_not_ignored(nodes: int) -> None:
    """Ranks would wait for it forever."""
    job = waiting("ignore", nodes, restarts=0).is_ready("server 0").exits("server 1", code=3)

    assert signals(job.settles()) == [
        f"node {nodes - 1} sends SIGTERM to server rank 0 and all they started"
    ]
    assert ends(job.dies("server 0", by=TERM).settles()) == {"ends with 3: server rank 1 failed"}


def test_not_ready_in_time_is_not_ignored() -> None:
    """Nor is an exit with 0 before it is ready."""
    job = waiting("ignore", restarts=0).is_not_ready("server 1").settles().dies("server 1")
    assert ends(job.settles().dies("server 0", by=TERM).settles()) == {
        "ends with 1: server rank 1 failed"
    }
    job = waiting("ignore", restarts=0).exits("server 1").settles().time_passes(5).settles()
    assert ends(job.dies("server 0", by=TERM).settles()) == {"ends with 1: server rank 1 failed"}
