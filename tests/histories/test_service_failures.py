"""Workers of services that fail alone: those that start again, and those whose failure is ignored."""

import signal
from typing import Any

import pytest

from tests.histories.job_history import Job

TERM = signal.SIGTERM

SUCCESS = "ends with 0: all ranks have succeeded"


def waiting(on_failure: str, nodes: int = 2, *, restarts: int = 2, **has: Any) -> Job:
    """Return a job whose two ranks wait for two servers: on their node, or on the next one."""
    services = {"server": {"nodes": {nodes - 1: 2}, "on_failure": on_failure, "ready": True, **has}}
    job = Job(nodes=nodes, workers=[2, 0][:nodes], restarts=restarts, services=services)
    job.saw()
    return job


def running(on_failure: str, nodes: int = 2, *, restarts: int = 2, **has: Any) -> Job:
    """Return such a job once all run."""
    job = waiting(on_failure, nodes, restarts=restarts, **has)
    if has.get("ready", True):
        job.is_ready("server 0", "server 1")
    job.settles().saw()
    return job


def ends(job: Job) -> set[str]:
    """Return how the nodes that have ended since then say that the job has."""
    return {line[7:] for line in job.saw() if " ends with " in line}


def signals(job: Job) -> list[str]:
    return [line for line in job.saw() if " sends " in line]


def starts(job: Job) -> list[str]:
    return [line for line in job.saw() if " starts " in line]


# Restarts of one worker.


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_worker_starts_again_alone(nodes: int) -> None:
    """No other one gets a signal; it is asked anew whether it is ready."""
    job, there = running("restart", nodes).passes(60), f"node {nodes - 1}"

    assert job.exits("server 0", code=3).saw() == [
        f"{there} prints: server rank 0 ended with exit code 3: restarting it (1 of 2)",
        f"{there} starts server rank 0 again",
        f"{there} asks whether server rank 0 is ready",
    ]
    assert job.settles().passes(300).settles().is_ready("server 0").settles().saw() == []
    assert job.running(nodes - 1)[-2:] == [2, 3]
    job.exits(0, 1).settles().dies("server 0", "server 1", by=TERM).settles()
    assert ends(job) == {SUCCESS}


@pytest.mark.parametrize("nodes", [1, 2])
def test_restarts_are_counted_for_each_worker(nodes: int) -> None:
    """After one too many, all workers of the job start again, and each may do so alone again."""
    job, there = running("restart", nodes, restarts=1), f"node {nodes - 1}"

    job.dies("server 0", "server 1").settles().is_ready("server 0", "server 1").settles()
    assert starts(job) == [f"{there} starts server rank {rank} again" for rank in (0, 1)]
    assert "node 0 sends SIGTERM to ranks 0-1" in job.exits("server 0", code=3).settles().saw()
    job.dies(0, 1, "server 1", by=TERM).settles()
    assert f"{there} starts server ranks 0-1, attempt 1" in starts(job)
    assert "server rank 0 failed" in job.restarted()
    assert starts(job.dies("server 0").settles()) == [f"{there} starts server rank 0 again"]


def test_the_last_restart_is_used_up() -> None:
    """Its failure is that of the job, and then the job's restarts count."""
    job = running("restart", 1, restarts=1)

    for _ in range(2):
        job.exits("server 0", code=3).settles().exits("server 0", code=3).settles()
        job.dies("server 1", by=TERM).settles()
        if job.running(0) == [0, 1]:
            job.dies(0, 1, by=TERM).settles()

    assert ends(job) == {"ends with 3: server rank 0 failed"}


@pytest.mark.parametrize("nodes", [1, 2])
def test_one_that_ends_with_0_starts_again_after_5_s(nodes: int) -> None:
    """Who has told it to exit may be at its end, too."""
    job, there = running("restart", nodes).passes(60), f"node {nodes - 1}"
    job.exits("server 0").settles()

    assert job.passes(4.9).settles().saw() == []
    assert job.passes(0.1).settles().saw() == [
        f"{there} prints: server rank 0 ended with exit code 0: restarting it (1 of 2)",
        f"{there} starts server rank 0 again",
        f"{there} asks whether server rank 0 is ready",
    ]
    assert job.is_ready("server 0").passes(600).settles().saw() == []
    job.exits(0, 1).settles().dies("server 0", "server 1", by=TERM).settles()
    assert ends(job) == {SUCCESS}


def test_two_that_end_with_0_start_again_each_in_its_time() -> None:
    """The 5 s of the second one are not forgotten."""
    job = running("restart").exits("server 1").settles().passes(3).exits("server 0").settles()

    assert starts(job.passes(2).settles()) == ["node 1 starts server rank 1 again"]
    assert starts(job.passes(2.9).settles()) == []
    assert starts(job.passes(0.1).settles()) == ["node 1 starts server rank 0 again"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_one_that_ends_just_before_the_main_program_is_not_started_again(nodes: int) -> None:
    """The job succeeds."""
    job = running("restart", nodes).exits("server 0").settles().passes(4).exits(0, 1).settles()

    assert starts(job.passes(1).settles()) == []
    assert job.running(nodes - 1) == [3]
    assert ends(job.dies("server 1", by=TERM).settles()) == {SUCCESS}


def test_the_last_lines_of_the_second_run_are_waited_for() -> None:
    """Those of the first one, which are known, are not taken for them."""
    job = running("restart", 1).exits("server 0").settles().passes(5).settles()
    job.exits(0, code=3).dies(1, "server 0", "server 1", by=TERM).is_clean()
    job.is_read(0).is_read(1).is_read("server 1").hears()

    assert starts(job)[1:] == []
    job.is_read("server 0").hears()
    assert starts(job) == ["node 0 starts server ranks 0-1, attempt 1"]


def test_one_that_is_not_ready_in_time_is_killed_first() -> None:
    """It starts again once it is dead, and has its whole time anew."""
    job = waiting("restart", timeout=90.0).is_ready("server 1").passes(90).settles()
    job.saw()

    assert job.is_not_ready("server 0").settles().saw() == [
        "node 1 sends SIGKILL to server rank 0 and all they started"
    ]
    assert job.dies("server 0").settles().saw() == [
        (
            "node 1 prints: server rank 0 was not ready within 90 s: Connection refused:"
            " restarting it (1 of 2)"
        ),
        "node 1 starts server rank 0 again",
        "node 1 asks whether server rank 0 is ready",
    ]
    assert job.is_ready("server 0").settles().saw() == ["node 0 starts ranks 0-1"]


def test_one_that_is_never_ready_ends_the_job() -> None:
    """Each try is a restart of its own; then all start again, then the job is over."""
    job = waiting("restart", 1, restarts=1, timeout=90.0)
    for _ in range(2):
        job.is_not_ready("server 0").dies("server 0").settles()
        job.is_not_ready("server 0").settles().dies("server 0", "server 1").settles()

    assert ends(job) == {"ends with 1: server rank 0 failed"}


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_wait_for_one_that_starts_again(nodes: int) -> None:
    """What has been ready and is loading again is not ready: a rank would find nobody there."""
    job = waiting("restart", nodes).is_ready("server 0").settles().dies("server 0").settles()

    assert "node 0 starts ranks 0-1" not in job.is_ready("server 1").settles().saw()
    assert job.is_ready("server 0").settles().saw() == ["node 0 starts ranks 0-1"]


def test_one_that_fails_before_it_was_ready() -> None:
    """Ranks wait on."""
    job = waiting("restart").is_ready("server 1").exits("server 0", code=3).settles()

    assert starts(job) == ["node 1 starts server rank 0 again"]
    assert job.is_ready("server 0").settles().saw() == ["node 0 starts ranks 0-1"]


def test_one_that_cannot_be_started_again_is_tried_again() -> None:
    """Each try counts; the last one is the cause."""
    job = running("restart", restarts=2).dies("server 0").settles()
    job.cannot_start("server 0", "fork", "Cannot allocate memory").settles()

    assert starts(job) == ["node 1 starts server rank 0 again"] * 2
    job.cannot_start("server 0", "fork", "Cannot allocate memory").settles()
    assert "node 0 sends SIGTERM to ranks 0-1" in signals(job)


def test_one_whose_process_does_not_exit_is_killed_and_starts_again() -> None:
    """Like a rank, it has the grace period after its failure."""
    job = running("restart")
    job.hangs_at_exit("server 0").settles().passes(5).settles()
    job.shows(0, 1, at="wait").shows("server 0", "server 1", at="join").settles().passes(20)

    assert "node 1 sends SIGKILL to server rank 0 and all they started" in signals(job.settles())
    assert starts(job.dies("server 0").settles()) == ["node 1 starts server rank 0 again"]
    assert job.passes(100).settles().saw() == []


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_must_finish_starts_again_until_it_has(nodes: int) -> None:
    """The job waits for that; an exit with 0 is no failure of it."""
    job = running("restart", nodes, ready=False, must_finish=True).exits("server 1").settles()
    job.exits("server 0", code=3).exits(0, 1).settles()

    assert starts(job) == [f"node {nodes - 1} starts server rank 0 again"]
    assert ends(job.passes(60).settles()) == set()
    assert ends(job.exits("server 0").settles()) == {SUCCESS}


# Other ends while one starts again.


def starting_again(nodes: int = 2, **has: Any) -> Job:
    """Return a job of which a server's process is made again."""
    services = {"server": {"nodes": {nodes - 1: 2}, "on_failure": "restart", "ready": True, **has}}
    job = Job(nodes=nodes, workers=[2, 0][:nodes], restarts=2, services=services, starting=[2])
    job.starts("server 0").is_ready("server 0", "server 1").settles().dies("server 0").settles()
    job.saw()
    return job


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_signal_while_one_starts_again(nodes: int, begins: bool) -> None:
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
def test_a_rank_fails_while_one_starts_again(nodes: int) -> None:
    """It is the cause, and no more is started but with all others."""
    job = starting_again(nodes).exits(0, code=3).settles()

    assert f"node {nodes - 1} sends SIGTERM to server ranks 0-1 and all they started" in signals(
        job
    )
    job.dies(1, "server 0", "server 1", by=TERM).settles()
    assert "rank 0 failed" in job.restarted()
    assert f"node {nodes - 1} starts server ranks 0-1, attempt 1" in starts(job)


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_main_program_ends_while_one_starts_again(nodes: int) -> None:
    """It is stopped with the others: exit code 0."""
    job = starting_again(nodes).exits(0, 1).settles()

    assert signals(job) == [
        f"node {nodes - 1} sends SIGTERM to server ranks 0-1 and all they started"
    ]
    assert ends(job.dies("server 0", "server 1", by=TERM).settles()) == {SUCCESS}


def test_a_signal_while_one_that_was_not_ready_is_killed() -> None:
    """It does not start again."""
    job = running("restart", 1).dies("server 0").settles().is_not_ready("server 0")
    job.saw()
    job.signalled(TERM).settles().dies(0, 1, "server 0", "server 1", by=TERM).settles()

    assert "node 0 starts server rank 0 again" not in (seen := job.saw())
    assert seen[-1] == "node 0 ends with 143: it got SIGTERM"


def test_a_rank_fails_while_one_that_was_not_ready_is_killed() -> None:
    """The rank is the cause: the other would have started again."""
    job = running("restart", 1).dies("server 0").settles().is_not_ready("server 0")
    job.saw()
    job.exits(0, code=3).settles().dies(1, "server 0", "server 1").settles()

    assert starts(job) == ["node 0 starts server ranks 0-1, attempt 1"]
    assert "rank 0 failed" in job.restarted()


def test_the_main_program_ends_while_one_that_was_not_ready_is_killed() -> None:
    """The job has succeeded."""
    job = running("restart", 1).dies("server 0").settles().is_not_ready("server 0")
    job.saw()
    job.exits(0, 1).settles().dies("server 0").settles()

    assert starts(job) == []
    assert ends(job.dies("server 1", by=TERM).settles()) == {SUCCESS}
    assert job.report() == [f"rank {rank} exited with 0 after 0 s" for rank in (0, 1)]


# Failures that are ignored.


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_failure_is_ignored(nodes: int) -> None:
    """A notice says so, and the job succeeds; no report names the worker."""
    job, there = running("ignore", nodes).passes(60), f"node {nodes - 1}"

    assert job.exits("server 0", code=3).settles().saw() == [
        f"{there} prints: server rank 0 ended with exit code 3; the job goes on (on_failure: ignore)"
    ]
    job.passes(60).exits(0, 1).settles()
    assert signals(job) == [f"{there} sends SIGTERM to server rank 1 and all they started"]
    assert ends(job.dies("server 1", by=TERM).settles()) == {SUCCESS}
    assert job.report() == [f"rank {rank} exited with 0 after 120 s" for rank in (0, 1)]
    assert nodes == 1 or job.report(1) == []


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_end_with_0_is_ignored(nodes: int) -> None:
    """After the 5 s in which the main program may end, too."""
    job, there = running("ignore", nodes).exits("server 0").settles(), f"node {nodes - 1}"

    assert job.passes(4.9).settles().saw() == []
    assert job.passes(0.1).settles().saw() == [
        f"{there} prints: server rank 0 ended with exit code 0; the job goes on (on_failure: ignore)"
    ]
    job.exits(0, 1).settles().dies("server 1", by=TERM).settles()
    assert ends(job) == {SUCCESS}


def test_all_workers_of_a_node_are_ignored() -> None:
    """The node waits for the others, and is there when all start again."""
    job = running("ignore").exits("server 0", "server 1", code=3).settles()

    assert [line for line in job.saw() if " prints: " not in line] == [
        "node 1 kills what is left of server ranks 0-1",
        "node 1 waits for what its ranks have left",
    ]
    job.passes(60).exits(0, code=4).settles().dies(1, by=TERM).settles()
    assert "node 1 starts server ranks 0-1, attempt 1" in job.saw()
    job.is_ready("server 0", "server 1").exits("server 0", "server 1", code=3).settles()
    assert ends(job.exits(0, 1).settles()) == {SUCCESS}
    assert job.report(1) == []


@pytest.mark.parametrize("on_failure", ["ignore", "restart"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_rank_that_fails_later_is_the_cause(nodes: int, on_failure: str) -> None:
    """And not the worker whose failure was ignored, or that runs again."""
    job = running(on_failure, nodes).exits("server 0", code=9).settles().passes(60)
    job.exits(1, code=3).settles()
    job.dies(0, *(["server 0"] if on_failure == "restart" else []), "server 1", by=TERM).settles()

    assert "rank 1 failed; restarts: 1" in job.restarted()
    assert f"node {nodes - 1} starts server ranks 0-1, attempt 1" in starts(job)


@pytest.mark.parametrize("first", ["main", "evaluate"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_what_must_finish_has_when_its_failure_is_ignored(nodes: int, first: str) -> None:
    """The job waits no longer for it."""
    job = running("ignore", nodes, ready=False, must_finish=True)
    if first == "main":
        job.exits(0, 1).settles()
    job.exits("server 0", code=3).settles().exits("server 1").settles()
    if first == "evaluate":
        assert ends(job) == set()
        job.exits(0, 1).settles()

    assert ends(job.passes(0).settles()) == {SUCCESS}


@pytest.mark.parametrize("nodes", [1, 2])
def test_one_that_was_to_become_ready_is_not_ignored(nodes: int) -> None:
    """Ranks would wait for it for ever."""
    job = waiting("ignore", nodes, restarts=0).is_ready("server 0").exits("server 1", code=3)

    assert signals(job.settles()) == [
        f"node {nodes - 1} sends SIGTERM to server rank 0 and all they started"
    ]
    assert ends(job.dies("server 0", by=TERM).settles()) == {"ends with 3: server rank 1 failed"}


def test_one_that_is_not_ready_in_time_is_not_ignored() -> None:
    """Nor one that ends with 0 before."""
    job = waiting("ignore", restarts=0).is_not_ready("server 1").settles().dies("server 1")
    assert ends(job.settles().dies("server 0", by=TERM).settles()) == {
        "ends with 1: server rank 1 failed"
    }
    job = waiting("ignore", restarts=0).exits("server 1").settles().passes(5).settles()
    assert ends(job.dies("server 0", by=TERM).settles()) == {"ends with 1: server rank 1 failed"}
