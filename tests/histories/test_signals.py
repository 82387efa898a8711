"""What a signal to an agent ends, and what it does not end."""

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
def test_ending_signal_ends_job(number: int, name: str, sent: str, code: int) -> None:
    """All ranks are signalled; the job is interrupted, though they succeed, and not restarted."""
    job = Job(workers=2, restarts=3)

    assert job.signalled(number).new_lines() == [
        (
            f"node 0 prints: {name}: stopping 2 workers (grace 25 s, a second {name} kills at once);"
            f" exit code {code}"
        ),
        f"node 0 sends {sent} to ranks 0-1",
    ]
    assert job.exits(0, 1).settles().new_lines() == [
        CLEANS,
        f"node 0 ends with {code}: it got {name}",
    ]


def test_ctrl_c_is_forwarded_as_sigint() -> None:
    """Users know its tracebacks."""
    job = Job()

    assert job.signalled(signal.SIGINT).new_lines() == [*INTERRUPTED]
    assert job.exits(0, code=1).settles().new_lines()[-1] == "node 0 ends with 130: it got SIGINT"


def test_second_ctrl_c_kills_at_once() -> None:
    """A third one changes nothing."""
    job = Job(workers=2)
    job.signalled(signal.SIGINT).exits(0, code=130).new_lines()

    assert job.time_passes(1.3).signalled(signal.SIGINT).new_lines() == [
        "node 0 sends SIGKILL to rank 1 and all they started",
    ]
    assert job.time_passes(1.3).signalled(signal.SIGINT).new_lines() == []


def test_same_signal_within_a_second_counts_once() -> None:
    """A wrapper forwards what the whole group has got; a closing terminal sends SIGHUP."""
    term, ctrl_c = Job(), Job()
    term.signalled(signal.SIGTERM).new_lines()
    ctrl_c.signalled(signal.SIGINT).new_lines()

    assert term.time_passes(0.9).signalled(signal.SIGTERM).new_lines() == []
    assert term.time_passes(0.2).signalled(signal.SIGTERM).new_lines() == [
        "node 0 sends SIGKILL to rank 0 and all they started",
    ]
    assert ctrl_c.time_passes(0.0001).signalled(signal.SIGINT).new_lines() == []
    assert ctrl_c.time_passes(0.1).signalled(signal.SIGHUP).new_lines() == []


def test_schedulers_sigterm_after_failure_keeps_grace_period() -> None:
    """It is a response to the failure; a much later one counts."""
    job = Job(workers=2)
    job.exits(0, code=1).new_lines()

    assert job.time_passes(1).signalled(signal.SIGTERM).new_lines() == []
    assert job.time_passes(0.9).signalled(signal.SIGTERM).new_lines() == []
    assert job.time_passes(8.1).signalled(signal.SIGTERM).new_lines() == [
        "node 0 sends SIGKILL to rank 1 and all they started",
    ]


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [(0.1, "it got SIGTERM"), (0.9, "it got SIGTERM"), (1.1, "rank 0 failed")],
)
def test_signal_to_whole_job_reaches_a_rank_first(seconds: float, reason: str) -> None:
    """A later one is the scheduler's response to a failure."""
    job = Job(workers=2)
    job.dies(0, by=signal.SIGTERM).new_lines()

    assert job.time_passes(seconds).signalled(signal.SIGTERM).new_lines() == []
    assert job.dies(1, by=signal.SIGTERM).settles().new_lines()[-1] == (
        f"node 0 ends with 143: {reason}"
    )


def test_other_signal_than_the_one_that_killed_the_rank() -> None:
    """SIGKILL came from elsewhere; of two failures the first one counts."""
    killed, failed = Job(workers=2), Job(workers=2)
    killed.dies(0).time_passes(0.1).signalled(signal.SIGTERM)
    failed.exits(0, code=1).dies(1, by=signal.SIGTERM).time_passes(0.1).signalled(signal.SIGTERM)

    killed.dies(1, by=signal.SIGTERM)

    assert killed.settles().new_lines()[-1] == "node 0 ends with 137: rank 0 failed"
    assert failed.settles().new_lines()[-1] == "node 0 ends with 1: rank 0 failed"


@pytest.mark.parametrize(("number", "name"), [(signal.SIGUSR1, "SIGUSR1"), (40, "signal 40")])
def test_other_signals_are_forwarded(number: int, name: str) -> None:
    """To ranks that handle them; the others, which they would kill, are named."""
    job = Job(workers=4)

    assert job.signalled(number).new_lines() == [f"node 0 passes {name} on to ranks that handle it"]
    assert job.lacks_handler(number).new_lines() == []
    assert job.lacks_handler(number, 3, 0, 1).new_lines() == [
        (
            f"node 0 prints: {name} was not passed on to local rank 0-1, 3: it has no handler and would"
            " have been killed"
        ),
    ]


def test_signal_to_fork_server_counts_as_signal_to_agent() -> None:
    """It is the process that ps shows."""
    job = Job(workers=2)

    assert job.signalled(signal.SIGUSR1, by_parent=True).new_lines() == [
        "node 0 passes SIGUSR1 on to ranks that handle it",
    ]
    assert job.signalled(signal.SIGTERM, by_parent=True).new_lines() == [
        (
            "node 0 prints: SIGTERM to the workers' parent process: stopping 2 workers (grace 25 s,"
            " a second SIGTERM kills at once); exit code 143"
        ),
        "node 0 sends SIGTERM to ranks 0-1",
    ]
    assert job.time_passes(0.2).signalled(signal.SIGTERM).new_lines() == []


def test_signal_to_all_processes_arrives_twice() -> None:
    """Each time; from the same source, two within a second are two."""
    passed_on = ["node 0 passes SIGUSR1 on to ranks that handle it"]
    both, one = Job(), Job()

    assert both.signalled(signal.SIGUSR1).new_lines() == passed_on
    assert both.time_passes(0.1).signalled(signal.SIGUSR1, by_parent=True).new_lines() == []
    assert both.time_passes(0.5).signalled(signal.SIGUSR1, by_parent=True).new_lines() == passed_on
    assert both.signalled(signal.SIGUSR1).new_lines() == []
    one.signalled(signal.SIGUSR1).time_passes(0.1).signalled(signal.SIGUSR1)
    assert one.new_lines() == passed_on * 2
    assert one.time_passes(1.1).signalled(signal.SIGUSR1, by_parent=True).new_lines() == passed_on


def test_other_nodes_are_told_of_paused_node() -> None:
    """Once, as are waiting nodes: they do not expect heartbeats of node 0. In a large job only node 0."""
    job, large = Job(nodes=2, spares=1), Job(nodes=9)
    short = "is paused: the job waits until it is continued"
    waits = f"{short}; if that takes longer than 17 s, all workers start again"

    job.signalled(signal.SIGTSTP, node=1).signalled(signal.SIGTSTP, node=1)
    assert job.settles().new_lines()[2:] == [
        f"node 0 prints: node 1 (n1) {waits}",
        f"node 2 prints: node 1 (n1) {waits}",
    ]
    assert job.signalled(signal.SIGCONT, node=1).settles().new_lines()[1:] == [
        "node 0 prints: node 1 (n1) continues",
        "node 2 prints: node 1 (n1) continues",
    ]
    for number, bears, then in (
        (signal.SIGTSTP, "bears", waits),
        (signal.SIGCONT, "no longer bears", "continues"),
    ):
        assert job.signalled(number).settles().new_lines()[1:] == [
            f"node 1 {bears} node 0's silence",
            f"node 1 prints: node 0 (n0) {then}",
            f"node 2 {bears} node 0's silence",
            f"node 2 prints: node 0 (n0) {then}",
        ]
    large.signalled(signal.SIGTSTP, node=1).settles()
    assert large.new_lines()[1:] == [f"node 0 prints: node 1 (n1) {short}"]


def test_repeated_pauses_are_printed_every_ten_seconds() -> None:
    job = Job(nodes=2)
    named = []

    for _ in range(12):
        for number in (signal.SIGTSTP, signal.SIGCONT):
            job.signalled(number, node=1).settles()
        named.append(len([line for line in job.new_lines() if "node 1 (n1)" in line]))
        job.time_passes(0.98)

    assert named == [2, *[0] * 9, 2, 0]


def test_ctrl_c_reaches_foreground_rank_directly() -> None:
    """It is not a failure, and no restart follows; an exit code of the rank is its response."""
    job, answered = Job(terminal=True, restarts=3), Job(terminal=True)

    assert job.dies(0, by=signal.SIGINT).settles().new_lines() == [
        "node 0 prints: interrupted: exit code 130",
        CLEANS,
        "node 0 ends with 130: it got SIGINT",
    ]
    answered.exits(0, code=1)
    assert answered.settles().new_lines()[-1] == "node 0 ends with 1: rank 0 failed"


def test_sigint_from_elsewhere_is_a_failure() -> None:
    """A user has run kill."""
    job = Job()

    job.dies(0, by=signal.SIGINT)

    assert job.settles().new_lines()[-1] == "node 0 ends with 130: rank 0 failed"


def test_ctrl_z_stops_agent_with_foreground_rank() -> None:
    """Other ranks are stopped by a debugger."""
    terminal, elsewhere = Job(terminal=True), Job()

    assert terminal.is_stopped(0).new_lines() == ["node 0 stops with its ranks"]
    assert elsewhere.is_stopped(0).new_lines() == []


def test_stop_command_ends_job_like_sigterm() -> None:
    """With --now at once, even after a stop in order; a second command changes nothing."""
    job, at_once = Job(nodes=2), Job(nodes=2)

    assert job.asked_to_stop(node=1).settles().new_lines() == [
        (
            "node 1 prints: clusterrun stop: stopping 1 worker (grace 25 s, clusterrun stop --now kills"
            " at once); exit code 143"
        ),
        "node 1 sends SIGTERM to rank 1",
        "node 0 prints: n1 got SIGTERM: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
    ]
    assert job.asked_to_stop(node=1).settles().new_lines() == []
    for each in (job, at_once):
        for _ in range(2):
            each.asked_to_stop(at_once=True).settles()
        assert each.new_lines() == [
            "node 0 prints: clusterrun stop --now: killing 1 worker; exit code 143",
            "node 0 sends SIGKILL to rank 0 and all they started",
            "node 1 prints: n0 got SIGTERM: killing 1 worker on this node",
            "node 1 sends SIGKILL to rank 1 and all they started",
        ]
        assert each.dies(0, 1).settles().new_lines()[-1] == "node 1 ends with 143: it got SIGTERM"


def test_second_signal_kills_ranks_of_its_node() -> None:
    """Even while they stop for another reason; the signal's meaning is decided for all nodes."""
    job = Job(nodes=2)
    job.exits(1, code=3).settles().signalled(signal.SIGTERM).settles().new_lines()

    assert job.time_passes(1.5).signalled(signal.SIGTERM).settles().new_lines() == [
        "node 0 sends SIGKILL to rank 0 and all they started",
    ]
    assert job.dies(0).settles().new_lines()[-1] == "node 1 ends with 3: rank 1 failed"
