"""Services beside the main program: when they start, which of their exits are failures, and when they stop.

The workers of services are commands of their own: signals go to their groups.
"""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.histories.job_history import Job
from tests.histories.worlds import ends, signals

TERM, INT = signal.SIGTERM, signal.SIGINT

ALONE = {"server": {"nodes": {0: 2}, "ready": True}}
APART = {"server": {"nodes": {1: 2}, "ready": True}}

SUCCESS = "ends with 0: all ranks have succeeded"
SUSPENDS = "clusterrun suspend"


def waiting(nodes: int = 2, **values: Any) -> Job:
    """Return a job whose two ranks wait for two servers: on their node, or on the next one."""
    services = APART if nodes == 2 else ALONE
    job = Job(nodes=nodes, workers=[2, 0][:nodes], **{"services": services, **values})
    job.new_lines()
    return job


def running(nodes: int = 2, **values: Any) -> Job:
    """Return such a job once the servers are ready and all run."""
    job = waiting(nodes, **values).is_ready("server 0", "server 1").settles()
    job.new_lines()
    return job


def ending(nodes: int = 2, **values: Any) -> Job:
    """Return such a job whose ranks have ended with 0, and whose servers have got SIGTERM."""
    job = running(nodes, **values).exits(0, 1).settles()
    job.new_lines()
    return job


# Who starts when.


@pytest.mark.parametrize("services", [ALONE, APART])
def test_main_program_starts_when_services_are_ready(
    services: dict[str, dict[str, Any]],
) -> None:
    """Its ranks have the lowest numbers, so the first service worker has the number 2."""
    [server] = services["server"]["nodes"]
    job = Job(nodes=server + 1, workers=[2, 0][: server + 1], services=services)

    begins = "starts server ranks 0-1, attempt 0"
    assert job.began == [
        "node 0 closes the port",
        *(["node 0 starts nothing yet, attempt 0"] if server else []),
        f"node {server} {begins}",
        f"node {server} asks whether server rank 0 is ready",
        f"node {server} asks whether server rank 1 is ready",
    ]
    assert job.is_ready("server 1").settles().new_lines() == []
    assert job.is_ready(2).settles().new_lines() == ["node 0 starts ranks 0-1"]
    assert job.running(server) == ([2, 3] if server else [0, 1, 2, 3])


def test_services_start_in_order_of_after() -> None:
    """A service without a readiness probe is not waited for, and waits only for those that it names."""
    services: dict[str, dict[str, Any]] = {
        "store": {"nodes": {0: 1}},
        "engine": {"nodes": {0: 1, 1: 1}, "ready": True},
        "router": {"nodes": {1: 1}, "ready": True, "after": ("engine",)},
        "monitor": {"nodes": {0: 1}, "after": ("engine", "router")},
        "eval": {"nodes": {1: 1}, "after": ("engine",)},
    }
    job = Job(nodes=2, workers=1, services=services)

    assert [line for line in job.began if "starts" in line] == [
        "node 0 starts store rank 0, engine rank 0, attempt 0",
        "node 1 starts engine rank 1, attempt 0",
    ]
    assert job.is_ready("engine 1").settles().new_lines() == []
    assert job.is_ready("engine 0").settles().new_lines() == [
        "node 1 starts router rank 0, eval rank 0",
        "node 1 asks whether router rank 0 is ready",
    ]
    assert job.is_ready("router 0").settles().new_lines() == [
        "node 0 starts rank 0, monitor rank 0",
        "node 1 starts rank 1",
    ]


def test_without_readiness_probe_all_start_at_once() -> None:
    """Nobody is asked, and nobody is waited for."""
    job = Job(workers=2, services={"server": {"nodes": {0: 2}}})

    assert job.began[-1] == "node 0 starts ranks 0-1, server ranks 0-1, attempt 0"
    assert job.time_passes(1000).settles().new_lines() == []


def test_only_rank_0_of_world_is_probed() -> None:
    """It has the port for all of them."""
    services = {"engine": {"nodes": {0: 2, 1: 2}, "ready": True, "world": True}}
    job = Job(nodes=2, workers=1, services=services)

    assert [line for line in job.began if "asks" in line] == [
        "node 0 asks whether engine rank 0 is ready",
    ]
    assert job.is_ready("engine 0").settles().new_lines() == [
        "node 0 starts rank 0",
        "node 1 starts rank 1",
    ]


def test_worker_is_probed_once_its_program_runs() -> None:
    """Not while its process is being started; its timeout begins then."""
    job = Job(workers=1, services={"server": {"nodes": {0: 1}, "ready": True}}, starting=[1])

    assert job.began[-1] == "node 0 starts server rank 0, attempt 0"
    assert job.starts("server 0").new_lines() == ["node 0 asks whether server rank 0 is ready"]


def test_worker_that_starts_while_stopping_is_not_probed() -> None:
    """It gets SIGTERM like the others."""
    job = waiting(1, starting=[3]).exits("server 0", code=3)

    assert signals(job) == ["node 0 sends SIGTERM to server rank 1 and all they started"]
    assert job.starts("server 1").new_lines() == []


def test_notice_of_unready_services_after_10_s_then_every_minute() -> None:
    """On all nodes of a small job, until all are ready."""
    job = waiting()

    assert job.time_passes(9.9).settles().new_lines() == []
    assert job.time_passes(0.1).settles().new_lines() == [
        f"node {node} prints: the job has been waiting 10 s for server ranks 0-1 to be ready"
        for node in (0, 1)
    ]
    job.is_ready("server 0").settles()
    assert job.time_passes(59.9).settles().new_lines() == []
    assert job.time_passes(0.1).settles().new_lines() == [
        f"node {node} prints: the job has been waiting 70 s for server rank 1 to be ready"
        for node in (0, 1)
    ]
    assert job.is_ready("server 1").settles().new_lines() == ["node 0 starts ranks 0-1"]
    assert job.time_passes(1000).settles().new_lines() == []


def test_no_readiness_notice_while_stopping() -> None:
    """The job ends for another reason; the end of the grace period is due next."""
    job = waiting().exits("server 0", code=3).settles()
    job.new_lines()

    assert job.time_passes(20).settles().new_lines() == []
    assert 4 < job.next_due() <= 5


def test_only_node_0_prints_notice_in_large_job() -> None:
    """One line names all services that are waited for, even those that wait themselves."""
    services: dict[str, dict[str, Any]] = {
        "server": {"nodes": {8: 1, 9: 1}, "ready": True},
        "router": {"nodes": {9: 1}, "ready": True, "after": ("server",)},
    }
    job = Job(nodes=10, services=services).time_passes(10).settles()

    assert job.new_lines() == [
        (
            "node 0 prints: the job has been waiting 10 s for server ranks 0-1, router rank 0 to be"
            " ready"
        ),
    ]


# Not ready in time.


@pytest.mark.parametrize("nodes", [1, 2])
def test_service_not_ready_in_time_ends_job(nodes: int) -> None:
    """It is killed and is the cause; programs that waited for it never start. Its exit changes nothing."""
    there = f"node {nodes - 1}"
    services = {"server": {"nodes": {nodes - 1: 2}, "ready": True, "timeout": 90.0}}
    job = waiting(nodes, services=services).is_ready("server 0").time_passes(90).settles()
    job.new_lines()

    assert job.is_not_ready("server 1").new_lines() == [
        f"{there} sends SIGKILL to server rank 1 and all they started",
        f"{there} sends SIGTERM to server rank 0 and all they started",
    ]
    assert job.dies("server 1").settles().dies("server 0", by=TERM).settles().new_lines()[-1] == (
        f"{there} ends with 1: server rank 1 failed"
    )
    assert job.report(nodes - 1) == [
        "server rank 0 was killed by SIGTERM after 90 s, as it was asked to end",
        "server rank 1 was not ready within 90 s: Connection refused: after 90 s",
    ]
    if nodes == 2:
        assert job.report() == []


def test_service_ready_while_stopping_starts_nothing() -> None:
    """The job has another reason to end."""
    job = waiting().is_ready("server 0").settles().exits("server 0", code=3)
    job.is_ready("server 1").is_not_ready("server 1").settles()

    assert signals(job) == ["node 1 sends SIGTERM to server rank 1 and all they started"]
    assert ends(job.dies("server 1", by=TERM).settles()) == {"ends with 3: server rank 0 failed"}


# What fails.


@pytest.mark.parametrize("nodes", [1, 2])
def test_rank_failure_ends_services(nodes: int) -> None:
    """Like all workers of all nodes."""
    job = running(nodes).exits(1, code=3).settles()

    assert (
        f"node {nodes - 1} sends SIGTERM to server ranks 0-1 and all they started"
        in job.new_lines()
    )
    job.dies(0, "server 0", by=TERM).exits("server 1").settles()
    assert ends(job) == {"ends with 3: rank 1 failed"}
    assert job.report(nodes - 1)[-2:] == [
        "server rank 0 was killed by SIGTERM after 0 s, as it was asked to end",
        "server rank 1 exited with 0 after 0 s, as it was asked to end",
    ]


@pytest.mark.parametrize("nodes", [1, 2])
def test_service_failure_ends_job(nodes: int) -> None:
    """With its own exit code, however shortly before the end of the main program."""
    job = running(nodes).exits(0).settles().dies("server 1").settles()

    assert "node 0 sends SIGTERM to rank 1" in job.new_lines()
    assert ends(job.exits(1).dies("server 0", by=TERM).settles()) == {
        "ends with 137: server rank 1 failed"
    }


@pytest.mark.parametrize("nodes", [1, 2])
def test_program_waiting_for_failed_service_is_never_started(nodes: int) -> None:
    """No report names it."""
    job = waiting(nodes).cannot_start("server 1", "exec", "No such file or directory").settles()

    assert signals(job) == [
        f"node {nodes - 1} sends SIGTERM to server rank 0 and all they started",
    ]
    assert ends(job.dies("server 0", by=TERM).settles()) == {"ends with 126: server rank 1 failed"}
    assert [line for node in range(nodes) for line in job.report(node)] == [
        "server rank 0 was killed by SIGTERM after 0 s, as it was asked to end",
        "server rank 1 did not start: exec: No such file or directory after 0 s",
    ]


def test_signal_while_ranks_wait() -> None:
    """It ends the job as usual."""
    job = waiting().signalled(TERM).settles()

    assert signals(job) == ["node 1 sends SIGTERM to server ranks 0-1 and all they started"]
    assert ends(job.dies("server 0", "server 1", by=TERM).settles()) == {
        "ends with 143: it got SIGTERM"
    }


# A service that ends with 0.


@pytest.mark.parametrize("nodes", [1, 2])
def test_service_that_exits_early_has_failed(nodes: int) -> None:
    """After 5 s, because what has told it to exit may end in that time."""
    job = running(nodes).time_passes(60).exits("server 0").settles()

    assert job.time_passes(4.9).settles().new_lines() == []
    assert job.time_passes(0.1).settles().running(nodes - 1)[-1:] == [3]
    assert "node 0 sends SIGTERM to ranks 0-1" in job.new_lines()
    job.dies(0, 1, "server 1", by=TERM).settles()
    assert ends(job) == {"ends with 1: server rank 0 failed"}
    assert "server rank 0 exited with 0 before the others after 60 s" in job.report(nodes - 1)


@pytest.mark.parametrize("nodes", [1, 2])
def test_service_exits_just_before_main_program(nodes: int) -> None:
    """The job succeeds; no report names the service."""
    job = running(nodes).exits("server 0").settles().time_passes(4.9).exits(0, 1).settles()

    assert signals(job) == [f"node {nodes - 1} sends SIGTERM to server rank 1 and all they started"]
    assert ends(job.time_passes(0.1).dies("server 1", by=TERM).settles()) == {SUCCESS}
    assert job.report() == [f"rank {rank} exited with 0 after 5 s" for rank in (0, 1)]
    assert nodes == 1 or job.report(1) == []


def test_all_services_exit_before_main_program() -> None:
    """Nothing is left to stop."""
    job = running().exits("server 0", "server 1").settles().time_passes(3).exits(0, 1).settles()

    assert signals(job) == []
    assert job.running(1) == []
    assert job.report(1) == []


def test_rank_fails_after_service_exited() -> None:
    """Within the 5 s the rank is the cause, and the report has the service's exit."""
    job = running().exits("server 0").settles().time_passes(2).exits(0, code=3).settles()

    job.dies(1, "server 1", by=TERM).settles().time_passes(3).settles()
    assert ends(job) == {"ends with 3: rank 0 failed"}
    assert job.report(1)[0] == "server rank 0 exited with 0 after 0 s"


def test_two_services_exit_early() -> None:
    """The 5 s of the first one count."""
    job = running().exits("server 1").settles().time_passes(3).exits("server 0").settles()

    assert job.time_passes(1.9).settles().new_lines() == []
    assert "node 0 sends SIGTERM to ranks 0-1" in job.time_passes(0.1).settles().new_lines()
    assert ends(job.dies(0, 1, by=TERM).settles()) == {"ends with 1: server rank 1 failed"}


def test_service_exits_while_others_wait_for_it() -> None:
    """They are never started."""
    job = waiting(1).is_ready("server 0").settles().exits("server 0", "server 1").settles()

    assert job.time_passes(4.9).settles().new_lines() == []
    assert ends(job.time_passes(0.1).settles()) == {"ends with 1: server rank 0 failed"}


def test_late_rank_does_not_shorten_grace_period_of_others() -> None:
    """A service's early exit is the cause; meanwhile a failed rank's stack is due."""
    job = (
        running(1)
        .exits("server 0")
        .settles()
        .time_passes(4)
        .hangs_at_exit(0)
        .time_passes(1)
        .settles()
    )

    assert signals(job) == [
        "node 0 sends SIGTERM to rank 1",
        "node 0 sends SIGTERM to server rank 1 and all they started",
    ]
    assert job.time_passes(24.9).settles().new_lines() == []
    assert job.time_passes(0.1).settles().new_lines()[0] == (
        "node 0 prints: 3 workers did not exit within 25 s: sending SIGKILL"
    )


# The end of the work.


def test_services_stop_when_ranks_of_all_nodes_have_exited() -> None:
    """A node that runs services only is told."""
    services = {"server": {"nodes": {0: 1, 2: 1}}}
    job = Job(nodes=3, workers=[1, 2, 0], services=services)
    job.exits(0, 1).settles().new_lines()

    assert job.exits(2).settles().new_lines() == [
        "node 1 waits for what its ranks have left",
        "node 0 prints: the main program has ended: stopping 1 worker of services",
        "node 0 sends SIGTERM to server rank 0 and all they started",
        "node 2 prints: the main program has ended: stopping 1 worker of services",
        "node 2 sends SIGTERM to server rank 1 and all they started",
    ]
    assert ends(job.dies("server 0", "server 1", by=TERM).settles()) == {SUCCESS}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    "stop",
    [
        lambda job: job.exits("server 0", "server 1"),
        lambda job: job.dies("server 0", "server 1", by=TERM),
        lambda job: job.exits("server 0", code=3, last="Traceback (most recent call last):\nE: e"),
        lambda job: job.dies("server 0", by=signal.SIGSEGV),
        lambda job: job.time_passes(25).settles().dies("server 0"),
    ],
    ids=["exits", "dies", "raises", "crashes", "is killed"],
)
def test_job_succeeds_however_services_stop(stop: Callable[[Job], Job], nodes: int) -> None:
    """Some raise during a request; some ignore SIGTERM and get SIGKILL. No report names them."""
    job = stop(ending(nodes)).settles()

    if job.running(nodes - 1):
        job.dies("server 1", by=TERM).settles()
    assert ends(job) == {SUCCESS}
    assert job.report() == [f"rank {rank} exited with 0 after 0 s" for rank in (0, 1)]
    assert nodes == 1 or job.report(1) == []


def test_failing_service_gets_sigterm_after_main_program() -> None:
    """Its traceback is not needed, because the job has succeeded."""
    job = running(1).hangs_at_exit("server 0").exits(0, 1).settles()

    assert signals(job) == ["node 0 sends SIGTERM to server ranks 0-1 and all they started"]
    assert ends(job.dies("server 0", "server 1", by=TERM).settles()) == {SUCCESS}


def test_services_that_ignore_sigterm_are_killed() -> None:
    """After the grace period, like other workers."""
    job = ending()

    assert job.time_passes(24.9).settles().new_lines() == []
    assert job.time_passes(0.1).settles().new_lines() == [
        "node 1 prints: 2 workers did not exit within 25 s: sending SIGKILL",
        "node 1 sends SIGKILL to server ranks 0-1 and all they started",
    ]


def test_notice_of_running_ranks_every_minute() -> None:
    """On nodes that have ended."""
    job = ending(grace=100)

    assert job.time_passes(60).settles().new_lines() == [
        "node 0 prints: all workers of this node have exited; still running: n1",
    ]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (("work", "service"), SUCCESS),
        (("service", "work"), "ends with 3: server rank 0 failed"),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_service_fails_as_main_program_ends(
    order: tuple[str, str], reason: str, nodes: int
) -> None:
    """The first report that node 0 gets counts; a later failure is one line."""
    job = running(nodes)
    for what in order:
        if what == "work":
            job.exits(0, 1)
        else:
            job.exits("server 0", code=3)
        node = 0 if what == "work" else nodes - 1
        for _ in range(2):
            job.delivers_from(node)
    printed = job.dies("server 1", by=TERM).settles().new_lines()

    assert {line[7:] for line in printed if " ends with " in line} == {reason}
    notice = f"node 0 prints: server rank 0 on n{nodes - 1} failed after the main program had ended"
    assert (notice in printed) == (order[0] == "work")


# Services that must finish.


def eval_job(**values: Any) -> Job:
    """Return a job of two nodes: the ranks are on node 0, a service that must finish on node 1."""
    services = {
        "eval": {"nodes": {1: 1}, "must_finish": True, **values},
        "server": {"nodes": {0: 1}},
    }
    job = Job(nodes=2, workers=[2, 0], services=services)
    job.new_lines()
    return job


def test_must_finish_service_ends_first() -> None:
    """That is not a failure, and stops nothing."""
    job = eval_job().exits("eval 0").settles()

    assert job.new_lines() == ["node 1 waits for what its ranks have left"]
    assert job.time_passes(1000).settles().new_lines() == [
        "node 1 prints: all workers of this node have exited; still running: n0",
    ]
    assert signals(job.exits(0, 1).settles()) == [
        "node 0 sends SIGTERM to server rank 0 and all they started",
    ]
    assert ends(job.dies("server 0", by=TERM).settles()) == {SUCCESS}
    assert job.report(1) == ["eval rank 0 exited with 0 after 0 s"]


def test_must_finish_service_ends_last() -> None:
    """The other services run until then; one that exits early has failed as before."""
    job, early = eval_job().exits(0, 1).settles(), eval_job().exits(0, 1).settles()

    assert job.time_passes(1000).settles().new_lines() == []
    assert signals(job.exits("eval 0").settles()) == [
        "node 0 sends SIGTERM to server rank 0 and all they started",
    ]
    assert ends(job.dies("server 0", by=TERM).settles()) == {SUCCESS}
    early.exits("server 0").time_passes(5).settles()
    assert ends(early.dies("eval 0", by=TERM).settles()) == {"ends with 1: server rank 0 failed"}


def test_must_finish_service_ends_while_ranks_wait() -> None:
    """They are then alone on their node, and start once all others are ready."""
    services = {
        "prepare": {"nodes": {0: 1}, "must_finish": True},
        "server": {"nodes": {1: 1}, "ready": True},
    }
    job = Job(nodes=2, workers=[2, 0], services=services).exits("prepare 0").settles()
    job.new_lines()

    assert job.is_ready("server 0").settles().new_lines() == ["node 0 starts ranks 0-1"]


def test_must_finish_service_fails() -> None:
    """Even after the main program has exited with 0."""
    job = eval_job().exits(0, 1).settles().exits("eval 0", code=4).settles()

    assert signals(job) == ["node 0 sends SIGTERM to server rank 0 and all they started"]
    assert ends(job.dies("server 0", by=TERM).settles()) == {"ends with 4: eval rank 0 failed"}


def test_must_finish_service_ends_before_it_is_ready() -> None:
    """It can never become ready, so the job ends, 5 s later."""
    job, well = eval_job(ready=True).exits("eval 0").settles(), eval_job(ready=True)

    assert job.time_passes(4.9).settles().new_lines() == []
    job.time_passes(0.1).settles().dies("server 0", by=TERM).settles()
    assert ends(job) == {"ends with 1: eval rank 0 failed"}
    well.is_ready("eval 0").settles().exits("eval 0").time_passes(5).settles()
    assert ends(well.exits(0, 1).settles().exits("server 0").settles()) == {SUCCESS}


# Signals while services end.


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize(("number", "code"), [(TERM, 143), (INT, 130)])
def test_signal_while_services_stop_ends_job(number: int, code: int, node: int) -> None:
    """On the node of the services, or on one that waits for them."""
    job = ending().signalled(number, node=node).settles()

    if job.running(1):
        job.exits("server 0", "server 1").settles()
    assert ends(job) == {f"ends with {code}: it got {signal.Signals(number).name}"}


@pytest.mark.parametrize("nodes", [1, 2])
def test_second_signal_kills_services(nodes: int) -> None:
    """Ctrl-C does so the first time, as after a failure."""
    there = nodes - 1
    kills = f"node {there} sends SIGKILL to server ranks 0-1 and all they started"
    term, ctrl_c = ending(nodes), ending(nodes)

    assert term.signalled(TERM, node=there).settles().new_lines() == []
    assert term.time_passes(2).signalled(TERM, node=there).settles().new_lines() == [kills]
    assert ctrl_c.signalled(INT, node=there).settles().new_lines() == [kills]
    assert ends(term.dies("server 0", "server 1").settles()) == {"ends with 143: it got SIGTERM"}


def test_stop_command_while_services_stop() -> None:
    """With --now it ends at once."""
    job, at_once = ending(), ending()

    assert signals(job.asked_to_stop().settles()) == []
    assert signals(at_once.asked_to_stop(at_once=True).settles()) == [
        "node 1 sends SIGKILL to server ranks 0-1 and all they started",
    ]
    for each in (job, at_once):
        each.dies("server 0", "server 1").settles()
        assert ends(each) == {"ends with 143: it got SIGTERM"}


@pytest.mark.parametrize(
    "grace",
    [
        25,
        0,
    ],
)
def test_signal_after_services_ended_changes_nothing(grace: float) -> None:
    """The job has succeeded."""
    job = ending(1, grace=grace).dies("server 0", "server 1", by=TERM).delivers_all()

    assert ends(job.signalled(TERM).settles()) == {SUCCESS}


# What else is lost.


@pytest.mark.parametrize(
    ("state", "end"),
    [
        (waiting, "5: node 1 is gone"),
        (running, "5: node 1 is gone"),
        (ending, "0: all ranks have succeeded"),
    ],
)
def test_node_of_services_is_lost(state: Callable[[], Job], end: str) -> None:
    """Like any node; once the main program has ended, services may end in any way."""
    job = state().loses_node(1).settles()

    job.dies(*job.running(0), by=TERM).settles()
    assert ends(job) == {f"ends with {end}"}


@pytest.mark.parametrize("state", [waiting, running])
def test_fork_server_of_services_is_lost(state: Callable[[], Job]) -> None:
    """All services of the node end with it, and the job."""
    job = state().loses_fork_server(1).settles()

    job.dies(*job.running(0), by=TERM).settles()
    assert ends(job) == {"ends with 137: its fork server on n1 was killed by SIGKILL"}


@pytest.mark.parametrize("lose", [Job.loses_fork_server, Job.loses_relay])
@pytest.mark.parametrize("nodes", [1, 2])
def test_helper_lost_while_services_stop(lose: Callable[[Job, int], Job], nodes: int) -> None:
    """The main program has succeeded, so the helper is not needed any more."""
    job = lose(ending(nodes), nodes - 1).settles()

    if job.running(nodes - 1):
        job.dies("server 0", "server 1", by=TERM).settles()
    assert ends(job) == {SUCCESS}


def test_node_without_services_is_lost_as_services_start() -> None:
    """It has started nothing."""
    services = {"server": {"nodes": {0: 1}, "ready": True}}
    job = Job(nodes=2, workers=1, services=services).loses_node(1).settles()

    assert signals(job) == ["node 0 sends SIGTERM to server rank 0 and all they started"]
    assert ends(job.dies("server 0", by=TERM).settles()) == {"ends with 5: node 1 is gone"}


# Restarts.


def test_restart_begins_with_services() -> None:
    """All wait again; readiness of the previous attempt does not count. Notices restart as well."""
    job = running(restarts=1).time_passes(100).exits(0, code=3).settles()
    job.dies(1, "server 0", "server 1", by=TERM).settles()

    assert job.new_lines()[-4:] == [
        "node 0 starts nothing yet, attempt 1",
        "node 1 starts server ranks 0-1, attempt 1",
        "node 1 asks whether server rank 0 is ready",
        "node 1 asks whether server rank 1 is ready",
    ]
    assert job.restarted() == "rank 0 failed; restarts: 1, lost nodes: 0"
    assert job.is_ready("server 0").settles().time_passes(10).settles().new_lines()[0] == (
        "node 0 prints: the job has been waiting 10 s for server rank 1 to be ready"
    )
    assert job.is_ready("server 1").settles().new_lines() == ["node 0 starts ranks 0-1"]
    assert ends(job.exits(0, 1).settles().exits("server 0", "server 1").settles()) == {SUCCESS}


def test_service_failure_restarts_all() -> None:
    """Even if it exited early or is not ready; without a restart left the job ends for it."""
    job = waiting(1, restarts=2).is_not_ready("server 1").dies("server 0", by=TERM).settles()

    assert job.restarted() == "server rank 1 failed; restarts: 1, lost nodes: 0"
    job.is_ready("server 0", "server 1").settles().exits("server 0").time_passes(5).settles()
    job.exits(0, 1).dies("server 1", by=TERM).settles()
    assert job.restarted() == "server rank 0 failed; restarts: 2, lost nodes: 0"
    assert ends(job.exits("server 1", code=3).dies("server 0", by=TERM).settles()) == {
        "ends with 3: server rank 1 failed"
    }


def test_orders_of_earlier_attempt_start_and_end_nothing() -> None:
    """They were in transit."""
    job = waiting(1, restarts=1).exits("server 0", code=3).dies("server 1", by=TERM).settles()
    job.new_lines()

    assert job.gets_orders(0).settles().new_lines() == []
    assert job.is_ready("server 0", "server 1").settles().new_lines() == ["node 0 starts ranks 0-1"]


def test_no_restart_after_main_program_succeeded() -> None:
    """The job has succeeded."""
    job = running(restarts=3).exits(0, 1).exits("server 0", code=3).settles()

    assert ends(job.dies("server 1", by=TERM).settles()) == {SUCCESS}


# Hangs.


def test_node_waiting_for_services_is_not_a_hang() -> None:
    """Its time begins when its ranks start. Services alone may be silent forever."""
    job = waiting(finds_hangs=600.0)

    assert job.began[-1] == "node 1 watches whether its ranks move"
    assert job.time_passes(5).is_idle(1, seconds=600).settles().new_lines() == []
    assert job.is_ready("server 0", "server 1").settles().new_lines() == [
        "node 0 starts ranks 0-1",
        "node 0 watches whether its ranks move",
    ]
    assert job.is_idle(0, seconds=600).settles().new_lines()[0] == (
        "node 0 prints: no rank has printed or exited for 600 s: the Python stacks of all ranks"
        " follow; the job keeps running"
    )


def test_ranks_waiting_beside_services_are_not_a_hang() -> None:
    """Their node is watched once they have started."""
    job = waiting(1, finds_hangs=600.0)

    assert "watches" not in job.began[-1]
    assert job.is_ready("server 0", "server 1").settles().new_lines()[1:] == [
        "node 0 watches whether its ranks move",
    ]


def test_hang_report_names_ranks_only() -> None:
    """Ranks do not wait for a server on another node."""
    job = running(on_hang="stop").is_idle(0, 1).settles()
    job.shows_stack(0, 1, at="wait").shows_stack("server 0", "server 1", at="serve").settles()

    assert not [line for line in job.new_lines() if "the other ranks wait" in line]
    job.dies(0, 1, "server 0", "server 1", by=TERM).settles()
    assert ends(job) == {"ends with 7: no rank has moved for 60 s"}


def test_services_that_stop_slowly_are_not_a_hang() -> None:
    """The grace period is their time limit, even if ranks of another node have left-over processes."""
    job = running(on_hang="stop", grace=100).leaves_processes("sh").is_idle(1).settles()
    job.exits(0, 1).settles().new_lines()

    assert job.is_idle(0, 1).settles().new_lines() == []


# Suspensions.


def saving(nodes: int = 2, **values: Any) -> Job:
    """Return a job whose ranks save at step 3; rank 1 has never asked."""
    job = (
        running(nodes, **values)
        .calls_requested(0)
        .settles()
        .signalled(TERM)
        .settles()
        .holds_ranks(3)
    )
    if nodes == 2:
        job.holds_ranks(0, node=1)
    job.settles().new_lines()
    return job


@pytest.mark.parametrize("nodes", [1, 2])
def test_suspension_is_agreed_on_by_ranks_only(nodes: int) -> None:
    """No service is waited for or named; all get SIGTERM, and may fail then."""
    job = saving(nodes).time_passes(5).settles()

    assert job.new_lines()[-1].startswith(
        "node 0 prints: SIGTERM on n0: waiting for rank 0 to save and for rank 1 to call"
        if nodes == 2
        else "node 0 prints: SIGTERM: waiting for rank 0 to save and for rank 1 to call"
    )
    assert signals(job.calls_requested(1).saves(3, 0, 1).settles()) == [
        f"node {nodes - 1} sends SIGTERM to server ranks 0-1 and all they started",
    ]
    job.exits(0, 1).dies("server 0", by=TERM).exits("server 1", code=3).settles()
    by = "SIGTERM on n0" if nodes == 2 else "SIGTERM"
    assert ends(job) == {f"ends with 75: all saved at step 3, as {by} asked"}


def test_silent_rank_gets_sigterm_with_services() -> None:
    """5 s after all others have saved."""
    job = saving(1).saves(3, 0).settles().time_passes(5).settles()

    assert signals(job) == [
        "node 0 sends SIGTERM to rank 1",
        "node 0 sends SIGTERM to server ranks 0-1 and all they started",
    ]
    job.exits(0).dies(1, "server 0", "server 1", by=TERM).settles()
    assert ends(job) == {"ends with 75: all but rank 1 saved at step 3, as SIGTERM asked"}


def test_service_exit_does_not_cancel_suspension() -> None:
    """It is a failure after 5 s, as always."""
    job = saving(1).exits("server 0").settles()

    assert (
        job.calls_requested(1).saves(3, 0, 1).settles().new_lines()[0]
        == "node 0 lets ranks that have saved end"
    )
    late = saving(1).exits("server 0").settles().time_passes(5).settles()
    late.exits(0, 1).dies("server 1", by=TERM).settles()
    assert ends(late) == {"ends with 1: server rank 0 failed"}


def test_suspension_after_ranks_of_a_node_exited_is_refused() -> None:
    """Services still run there."""
    services = {"server": {"nodes": {0: 1}}}
    job = (
        Job(nodes=2, workers=1, services=services)
        .calls_requested(0, 1)
        .settles()
        .exits(0)
        .settles()
    )
    job.new_lines()

    printed = job.asked_to_suspend(SUSPENDS).settles().new_lines()

    assert any(f"{SUSPENDS} on n0: not suspended, since" in line for line in printed)
    assert job.holds_ranks(3, node=1).settles().time_passes(30).settles().new_lines() == []


def test_finished_service_beside_ranks_does_not_prevent_suspension() -> None:
    """They are held as usual."""
    services = {"eval": {"nodes": {0: 1}, "must_finish": True}}
    job = Job(workers=2, services=services).calls_requested(0, 1).exits("eval 0").settles()
    job.signalled(TERM).settles().holds_ranks(3).settles().saves(3, 0, 1).settles()

    assert ends(job.exits(0, 1).settles()) == {
        "ends with 75: all saved at step 3, as SIGTERM asked"
    }


def test_finished_service_on_own_node_does_not_prevent_suspension() -> None:
    """It had a node of its own, and was to finish."""
    job = eval_job().calls_requested(0, 1).exits("eval 0").settles().signalled(TERM).settles()
    job.holds_ranks(3).settles().saves(3, 0, 1).settles()

    job.exits(0, 1).dies("server 0", by=TERM).settles()
    assert ends(job) == {"ends with 75: all saved at step 3, as SIGTERM on n0 asked"}


def test_suspension_waits_for_ranks_that_have_not_started() -> None:
    """A request comes early; ranks of another node have not saved when those of node 0 have."""
    services = {"server": {"nodes": {1: 1}, "ready": True}}
    job = Job(nodes=2, workers=1, services=services).asked_to_suspend(SUSPENDS).settles()
    job.holds_ranks(0).holds_ranks(0, node=1).settles().is_ready("server 0").settles()
    job.calls_requested(0).saves(0, 0)

    assert signals(job.settles().time_passes(1).settles()) == []
    job.calls_requested(1).saves(0, 1).settles()
    job.exits(0, 1).dies("server 0", by=TERM).settles()
    assert ends(job) == {f"ends with 75: all saved at step 0, as {SUSPENDS} on n0 asked"}


def test_suspension_without_answer_names_ranks_only() -> None:
    """No node reports in time where its ranks are."""
    job = running().asked_to_suspend(SUSPENDS).settles().time_passes(30).settles()

    job.dies(0, 1, "server 0", "server 1", by=TERM).settles()
    assert ends(job) == {
        f"ends with 7: the node of ranks 0-1 did not answer, as {SUSPENDS} on n0 asked"
    }


# What ranks leave, and late exits.


def test_only_rank_beside_services_is_killed_if_it_does_not_exit() -> None:
    """Without services no worker waits for it, so it is left alone; services keep their GPUs for it."""
    job = Job(services={"server": {"nodes": {0: 1}}}).hangs_at_exit(0).time_passes(5)
    job.shows_stack(0, at="upload").shows_stack("server 0", at="serve").settles()

    assert job.new_lines()[-1] == (
        "node 0 prints: rank 0 failed 5 s ago and has not exited, in upload at train.py:7: it is"
        " killed 25 s after its failure (--shutdown-timeout gives it longer)"
    )
    assert signals(job.time_passes(20)) == ["node 0 sends SIGKILL to rank 0 and all they started"]
    job.dies(0, since=25, code=1).settles().dies("server 0", by=TERM).settles()
    assert job.report() == [
        'rank 0 exited with 1 after 25 s, hung in File "/train.py", line 7 in upload',
        "server rank 0 was killed by SIGTERM after 25 s, as it was asked to end",
    ]


def test_failed_service_that_does_not_exit_is_killed() -> None:
    """It is the cause, by its name."""
    job = running(1).hangs_at_exit("server 1").time_passes(5)
    job.shows_stack(0, 1, "server 0", "server 1", at="serve").settles()

    assert job.new_lines()[-1].startswith("node 0 prints: server rank 1 failed 5 s ago")
    job.time_passes(20).dies("server 1", since=25, code=1).exits(0, 1).dies("server 0", by=TERM)
    assert ends(job.settles()) == {"ends with 1: server rank 1 failed"}


def test_leftovers_of_ranks_are_waited_for_on_node_without_services() -> None:
    """An upload continues while services stop elsewhere, and after that."""
    job = (
        running()
        .leaves_processes("sh", rank=0)
        .exits(0, 1)
        .settles()
        .dies("server 0", "server 1", by=TERM)
    )

    assert job.time_passes(1).settles().new_lines()[-1] == f"node 1 {SUCCESS}"
    assert ends(job.leftovers_end().settles()) == {SUCCESS}


@pytest.mark.parametrize("services_end", ["after the ranks", "before them"])
def test_leftovers_of_ranks_are_waited_for_beside_services(services_end: str) -> None:
    """They are named as usual. Left-over processes of services are killed at once."""
    job = running(1).leaves_processes("sh", rank=0).leaves_processes("engine", rank=2)
    if services_end == "before them":
        job.exits("server 0", "server 1").settles().exits(0, 1).settles()
    else:
        job.exits(0, 1).settles().exits("server 0", "server 1").settles()

    assert job.new_lines()[-2:] == [
        "node 0 kills what is left of server ranks 0-1",
        "node 0 waits for what its ranks have left",
    ]
    assert job.time_passes(1).settles().new_lines() == [
        (
            "node 0 prints: the ranks have ended; still running: sh (pid 500, of rank 0);"
            " waiting up to 25 s (--shutdown-timeout; Ctrl-C ends them)"
        ),
    ]
    assert ends(job.leftovers_end().settles()) == {SUCCESS}


def test_leftovers_of_must_finish_service_are_waited_for() -> None:
    """They may upload results."""
    job = eval_job().leaves_processes("sh", node=1).exits("eval 0").settles()

    assert job.new_lines() == ["node 1 waits for what its ranks have left"]
    assert (
        "still running: sh (pid 500); waiting up to 25 s"
        in job.time_passes(1).settles().new_lines()[-1]
    )
    job.exits(0, 1).settles().dies("server 0", by=TERM).settles()
    assert ends(job) == {SUCCESS}


def test_late_service_failure_does_not_kill_leftovers_of_ranks() -> None:
    """On another node, where the ranks had ended first."""
    job = running().leaves_processes("sh", rank=0).exits(0, 1).exits("server 0", code=3).settles()
    job.dies("server 1", by=TERM).settles()

    assert "node 0 kills what its ranks have left" not in job.new_lines()
    assert ends(job.leftovers_end().settles()) == {SUCCESS}


def test_all_leftovers_are_killed_after_failure_of_service() -> None:
    """As after any failure."""
    job = running(1).leaves_processes("sh", rank=0).exits(0).settles().exits(1, code=3).settles()
    job.dies("server 0", "server 1", by=TERM).delivers_all()

    assert "node 0 kills what its ranks have left" in job.new_lines()
