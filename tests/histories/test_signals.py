"""What a signal to an agent ends, and what it does not."""

import signal

import pytest

from tests.histories.job_history import Job

CLEANS = "node 0 kills what its ranks have left"
INTERRUPTED = (
    (
        "node 0 prints: interrupted: stopping 1 worker (grace 25 s, a second Ctrl-C kills at once);"
        " exit code 130"
    ),
    "node 0 sends SIGINT to rank 0",
)


@pytest.mark.parametrize(
    ("number", "name", "sent", "code"),
    [
        (signal.SIGTERM, "SIGTERM", "SIGTERM", 143),
        # Other shells' children would not outlive it either.
        (signal.SIGHUP, "SIGHUP", "SIGTERM", 129),
    ],
)
def test_it_ends_the_job(number: int, name: str, sent: str, code: int) -> None:
    """All ranks are asked to end; the job is interrupted, though they end well, and not restarted."""
    job = Job(workers=2, restarts=3)

    assert job.signalled(number).saw() == [
        (
            f"node 0 prints: {name}: stopping 2 workers (grace 25 s, a second {name} kills at once);"
            f" exit code {code}"
        ),
        f"node 0 sends {sent} to ranks 0-1",
    ]
    assert job.exits(0, 1).settles().saw() == [
        CLEANS,
        f"node 0 ends with {code}: it got {name}",
    ]


def test_ctrl_c_is_passed_on_as_itself() -> None:
    """Its tracebacks are known."""
    job = Job()

    assert job.signalled(signal.SIGINT).saw() == [*INTERRUPTED]
    assert job.exits(0, code=1).settles().saw()[-1] == "node 0 ends with 130: it got SIGINT"


def test_a_second_ctrl_c_kills_at_once() -> None:
    """What has not ended; a third one changes nothing."""
    job = Job(workers=2)
    job.signalled(signal.SIGINT).exits(0, code=130).saw()

    assert job.passes(1.3).signalled(signal.SIGINT).saw() == [
        "node 0 sends SIGKILL to rank 1 and all they started",
    ]
    assert job.passes(1.3).signalled(signal.SIGINT).saw() == []


def test_one_that_comes_twice_within_a_second_came_once() -> None:
    """A wrapper passes it on that the whole group has got; a terminal that closes sends SIGHUP."""
    term, ctrl_c = Job(), Job()
    term.signalled(signal.SIGTERM).saw()
    ctrl_c.signalled(signal.SIGINT).saw()

    assert term.passes(0.9).signalled(signal.SIGTERM).saw() == []
    assert term.passes(0.2).signalled(signal.SIGTERM).saw() == [
        "node 0 sends SIGKILL to rank 0 and all they started",
    ]
    assert ctrl_c.passes(0.0001).signalled(signal.SIGINT).saw() == []
    assert ctrl_c.passes(0.1).signalled(signal.SIGHUP).saw() == []


def test_a_schedulers_sigterm_does_not_shorten_the_grace_period_after_a_failure() -> None:
    """It answers the failure; one that comes much later is meant."""
    job = Job(workers=2)
    job.exits(0, code=1).saw()

    assert job.passes(1).signalled(signal.SIGTERM).saw() == []
    assert job.passes(0.9).signalled(signal.SIGTERM).saw() == []
    assert job.passes(8.1).signalled(signal.SIGTERM).saw() == [
        "node 0 sends SIGKILL to rank 1 and all they started",
    ]


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [(0.1, "it got SIGTERM"), (0.9, "it got SIGTERM"), (1.1, "rank 0 failed")],
)
def test_one_to_the_whole_job_may_reach_a_rank_first(seconds: float, reason: str) -> None:
    """One that comes later is the scheduler's answer to a failure."""
    job = Job(workers=2)
    job.dies(0, by=signal.SIGTERM).saw()

    assert job.passes(seconds).signalled(signal.SIGTERM).saw() == []
    assert job.dies(1, by=signal.SIGTERM).settles().saw()[-1] == (f"node 0 ends with 143: {reason}")


def test_one_that_has_not_killed_the_first_rank_has_nothing_to_do_with_it() -> None:
    """SIGKILL came from elsewhere; and of two failures the first one counts."""
    killed, failed = Job(workers=2), Job(workers=2)
    killed.dies(0).passes(0.1).signalled(signal.SIGTERM)
    failed.exits(0, code=1).dies(1, by=signal.SIGTERM).passes(0.1).signalled(signal.SIGTERM)

    killed.dies(1, by=signal.SIGTERM)

    assert killed.settles().saw()[-1] == "node 0 ends with 137: rank 0 failed"
    assert failed.settles().saw()[-1] == "node 0 ends with 1: rank 0 failed"


@pytest.mark.parametrize(("number", "name"), [(signal.SIGUSR1, "SIGUSR1"), (40, "signal 40")])
def test_one_that_ends_nothing_is_passed_on(number: int, name: str) -> None:
    """To ranks that handle it: the others, which it would kill, are named."""
    job = Job(workers=4)

    assert job.signalled(number).saw() == [f"node 0 passes {name} on to ranks that handle it"]
    assert job.handles_not(number).saw() == []
    assert job.handles_not(number, 3, 0, 1).saw() == [
        (
            f"node 0 prints: {name} was not passed on to local rank 0-1, 3: it has no handler and would"
            " have been killed"
        ),
    ]


def test_one_to_the_parent_of_the_ranks_is_one_to_us() -> None:
    """It is what ps shows."""
    job = Job(workers=2)

    assert job.signalled(signal.SIGUSR1, by_parent=True).saw() == [
        "node 0 passes SIGUSR1 on to ranks that handle it",
    ]
    assert job.signalled(signal.SIGTERM, by_parent=True).saw() == [
        (
            "node 0 prints: SIGTERM to the workers' parent process: stopping 2 workers (grace 25 s,"
            " a second SIGTERM kills at once); exit code 143"
        ),
        "node 0 sends SIGTERM to ranks 0-1",
    ]
    assert job.passes(0.2).signalled(signal.SIGTERM).saw() == []


def test_one_to_all_processes_of_the_job_comes_by_two_ways() -> None:
    """Each time; two within a second are two where they come by one way."""
    passed_on = ["node 0 passes SIGUSR1 on to ranks that handle it"]
    both, one = Job(), Job()

    assert both.signalled(signal.SIGUSR1).saw() == passed_on
    assert both.passes(0.1).signalled(signal.SIGUSR1, by_parent=True).saw() == []
    assert both.passes(0.5).signalled(signal.SIGUSR1, by_parent=True).saw() == passed_on
    assert both.signalled(signal.SIGUSR1).saw() == []
    one.signalled(signal.SIGUSR1).passes(0.1).signalled(signal.SIGUSR1)
    assert one.saw() == passed_on * 2
    assert one.passes(1.1).signalled(signal.SIGUSR1, by_parent=True).saw() == passed_on


def test_the_other_nodes_hear_of_one_that_is_paused() -> None:
    """Once, also those that wait for a place: they bear node 0's silence. In a large job only node 0."""
    job, large = Job(nodes=2, spares=1), Job(nodes=9)
    short = "is paused: the job waits until it is continued"
    waits = f"{short}; if that takes longer than 17 s, all workers start again"

    job.signalled(signal.SIGTSTP, node=1).signalled(signal.SIGTSTP, node=1)
    assert job.settles().saw()[2:] == [
        f"node 0 prints: node 1 (n1) {waits}",
        f"node 2 prints: node 1 (n1) {waits}",
    ]
    assert job.signalled(signal.SIGCONT, node=1).settles().saw()[1:] == [
        "node 0 prints: node 1 (n1) continues",
        "node 2 prints: node 1 (n1) continues",
    ]
    for number, bears, then in (
        (signal.SIGTSTP, "bears", waits),
        (signal.SIGCONT, "no longer bears", "continues"),
    ):
        assert job.signalled(number).settles().saw()[1:] == [
            f"node 1 {bears} node 0's silence",
            f"node 1 prints: node 0 (n0) {then}",
            f"node 2 {bears} node 0's silence",
            f"node 2 prints: node 0 (n0) {then}",
        ]
    large.signalled(signal.SIGTSTP, node=1).settles()
    assert large.saw()[1:] == [f"node 0 prints: node 1 (n1) {short}"]


def test_a_node_that_is_paused_again_and_again_is_named_each_ten_seconds() -> None:
    job = Job(nodes=2)
    named = []

    for _ in range(12):
        for number in (signal.SIGTSTP, signal.SIGCONT):
            job.signalled(number, node=1).settles()
        named.append(len([line for line in job.saw() if "node 1 (n1)" in line]))
        job.passes(0.98)

    assert named == [2, *[0] * 9, 2, 0]


def test_ctrl_c_goes_from_the_terminal_straight_to_the_one_rank() -> None:
    """It is no failure, and is followed by no restart; an exit code of the rank's own is its answer."""
    job, answered = Job(terminal=True, restarts=3), Job(terminal=True)

    assert job.dies(0, by=signal.SIGINT).settles().saw() == [
        "node 0 prints: interrupted: exit code 130",
        CLEANS,
        "node 0 ends with 130: it got SIGINT",
    ]
    answered.exits(0, code=1)
    assert answered.settles().saw()[-1] == "node 0 ends with 1: rank 0 failed"


def test_elsewhere_a_sigint_that_we_did_not_send_is_a_failure() -> None:
    """Somebody has typed kill."""
    job = Job()

    job.dies(0, by=signal.SIGINT)

    assert job.settles().saw()[-1] == "node 0 ends with 130: rank 0 failed"


def test_ctrl_z_stops_us_with_the_rank_that_has_the_terminal() -> None:
    """Elsewhere a debugger stops ranks."""
    terminal, elsewhere = Job(terminal=True), Job()

    assert terminal.is_stopped(0).saw() == ["node 0 stops with its ranks"]
    assert elsewhere.is_stopped(0).saw() == []


def test_a_command_ends_the_job_as_sigterm_does() -> None:
    """At once, if that is typed, also after a stop in order; typed again, it changes nothing."""
    job, at_once = Job(nodes=2), Job(nodes=2)

    assert job.asked_to_stop(node=1).settles().saw() == [
        (
            "node 1 prints: clusterrun stop: stopping 1 worker (grace 25 s, clusterrun stop --now kills"
            " at once); exit code 143"
        ),
        "node 1 sends SIGTERM to rank 1",
        "node 0 prints: n1 got SIGTERM: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
    ]
    assert job.asked_to_stop(node=1).settles().saw() == []
    for each in (job, at_once):
        for _ in range(2):
            each.asked_to_stop(at_once=True).settles()
        assert each.saw() == [
            "node 0 prints: clusterrun stop --now: killing 1 worker; exit code 143",
            "node 0 sends SIGKILL to rank 0 and all they started",
            "node 1 prints: n0 got SIGTERM: killing 1 worker here",
            "node 1 sends SIGKILL to rank 1 and all they started",
        ]
        assert each.dies(0, 1).settles().saw()[-1] == "node 1 ends with 143: it got SIGTERM"


def test_a_second_one_kills_the_ranks_of_its_node_at_once() -> None:
    """Also while they are stopped for another reason; what it means is decided for all nodes."""
    job = Job(nodes=2)
    job.exits(1, code=3).settles().signalled(signal.SIGTERM).settles().saw()

    assert job.passes(1.5).signalled(signal.SIGTERM).settles().saw() == [
        "node 0 sends SIGKILL to rank 0 and all they started",
    ]
    assert job.dies(0).settles().saw()[-1] == "node 1 ends with 3: rank 1 failed"
