"""Nodes whose machines are bad: they are left out in favour of others, and work if there are none."""

import signal

import pytest

from tests.histories.told_job import Job
from tests.histories.told_joining import Joining
from tests.histories.worlds import starts, stops

LEFT_OUT = "prints: this node is left out (--exclude-after), and waits until it is needed"
SPARES_OR_ELASTIC = pytest.mark.parametrize(
    ("nodes", "spares", "least"), [(3, 1, None), (4, 0, 3)], ids=["spares", "elastic"]
)


def breaks(job: Job, rank: int, others: tuple[int, ...]) -> list[str]:
    """Let a rank fail by its machine, and the others end."""
    return stops(job.dies(rank, by=signal.SIGBUS), *others)


def test_a_node_that_fails_twice_by_its_machine_is_left_out() -> None:
    """A spare takes its place. Each failure is a restart, none a loss."""
    job = Job(nodes=2, spares=1, restarts=9, most_faults=2)

    assert breaks(job, 1, (0,)) == starts(0, 1)
    assert breaks(job, 1, (0,)) == [
        "node 0 starts rank 0, attempt 2",
        f"node 1 {LEFT_OUT}",
        "node 2 starts rank 1, attempt 2",
    ]
    assert job.restarted() == (
        "rank 1 failed; restarts: 2, lost nodes: 0; node 1 (n1) is left out after 2 failures by its"
        " machine (SIGBUS): n2 has its place"
    )


def test_a_bad_node_is_better_than_none() -> None:
    """It takes the place of a lost one, unless a better one waits, however much later that came."""
    alone, better = (Job(nodes=2, spares=1, restarts=9, most_faults=1) for _ in range(2))
    for job in (alone, better):
        breaks(job, 1, (0,))

    assert stops(alone.loses_node(2), 0) == starts(0, 1, attempt=2)
    assert stops(better.joins().loses_node(2), 0) == starts(0, 3, attempt=2)


def test_a_bad_node_without_a_substitute_works_on() -> None:
    """One that comes takes the place of a lost node first, then of the first bad one."""
    bad, lost = (Job(nodes=3, restarts=9, most_faults=1, rejoin=60) for _ in range(2))
    assert breaks(lost, 1, (0, 2)) == starts(0, 1, 2)
    assert stops(lost.joins().loses_node(2), 0, 1) == starts(0, 1, 3, attempt=2)

    breaks(bad, 2, (0, 1))
    breaks(bad, 1, (0, 2))
    assert stops(bad.joins().passes(20).exits(0, code=1), 1, 2) == [
        "node 0 starts rank 0, attempt 3",
        f"node 1 {LEFT_OUT}",
        "node 2 starts rank 2, attempt 3",
        "node 3 starts rank 1, attempt 3",
    ]


def test_bad_nodes_do_not_take_each_others_places() -> None:
    """But one that waits takes that of a lost one."""
    job = Job(nodes=3, spares=1, restarts=9, most_faults=1)
    breaks(job, 1, (0, 2))

    assert breaks(job, 2, (0, 1)) == starts(0, 3, 2, attempt=2)
    assert stops(job.loses_node(3), 0, 2) == starts(0, 1, 2, attempt=3)


def test_an_elastic_job_leaves_a_bad_node_out_if_enough_are_left() -> None:
    """Otherwise it works on."""
    job = Job(nodes=3, least=2, most=4, restarts=9, most_faults=1)

    assert breaks(job, 1, (0, 2)) == [
        "node 0 starts rank 0, attempt 1",
        f"node 1 {LEFT_OUT}",
        "node 2 starts rank 1, attempt 1",
    ]
    assert stops(job.loses_node(2), 0) == starts(0, 1, attempt=2)
    assert stops(job.joins().exits(0, code=1), 1) == [
        "node 0 starts rank 0, attempt 3",
        f"node 1 {LEFT_OUT}",
        "node 3 starts rank 1, attempt 3",
    ]


def test_node_0_is_not_left_out() -> None:
    """Its agent leads the job."""
    job = Job(nodes=2, spares=1, restarts=9, most_faults=1)

    assert breaks(job, 0, (1,)) == starts(0, 1)


@pytest.mark.parametrize(
    ("by", "machine_fault", "out_of_memory", "is_bad"),
    [
        (0, "", "", False),
        (0, "GPU 3 is lost", "", True),
        (signal.SIGKILL, "", "", False),
        (signal.SIGKILL, "no memory left", "one", True),
        (0, "no memory left", "one", False),
    ],
)
def test_what_points_to_a_bad_machine(
    by: int, machine_fault: str, out_of_memory: str, *, is_bad: bool
) -> None:
    """An exit code does not, nor does the OOM killer if it struck something else."""
    job = Job(nodes=2, spares=1, restarts=9, most_faults=1)

    job.machine_shows(1, machine_fault, out_of_memory)
    failed = job.dies(1, by=by) if by else job.exits(1, code=1)

    assert (f"node 1 {LEFT_OUT}" in stops(failed, 0)) is is_bad


@pytest.mark.parametrize(("most_faults", "again"), [(2, True), (0, False)])
def test_another_node_may_do_better(most_faults: int, *, again: bool) -> None:
    """Where faults are counted, the same failure twice ends no job that leaves its node out."""
    job = Job(nodes=2, spares=1, restarts=9, most_faults=most_faults)

    for _ in range(2):
        job.machine_shows(1, "GPU 3 is lost").exits(1, code=1, last="CUDA error").settles()
        seen = stops(job, 0)

    assert ("node 2 starts rank 1, attempt 2" in seen) is again


@SPARES_OR_ELASTIC
def test_a_node_that_fails_its_check_does_not_work(
    nodes: int, spares: int, least: int | None
) -> None:
    """--check-nodes: the others do, with the highest ranks moving up; so does one that comes later."""
    job = Joining(nodes, spares=spares, least=least, endpoint=True)

    assert job.joins(fault="GPU 3 is lost").joins().joins().settles().saw() == [
        "node 0 prints: n1 (pid 11) is left out, as it fails its check: GPU 3 is lost",
        "node 0 starts rank 0, attempt 0",
        "node 1 waits for a place",
        "node 2 starts rank 1, attempt 0",
        "node 3 starts rank 2, attempt 0",
    ]
    later = stops(job.joins().loses_node(2), 0, 2)
    assert [line[:13] for line in later] == ["node 0 starts", "node 3 starts", "node 4 starts"]


def test_a_node_that_fails_its_check_is_better_than_none() -> None:
    """It takes the place of a lost one, until another can have it."""
    job = Joining(nodes=2, spares=1, restarts=9)
    job.joins(fault="GPU 3 is lost").joins()

    assert stops(job.loses_node(2), 0) == starts(0, 1)
    assert (
        "node 1 prints: this node is left out (--check-nodes), and waits until it is needed"
        in stops(job.joins().exits(0, code=1), 1)
    )
    assert job.restarted().partition("; ")[2] == (
        "restarts: 1, lost nodes: 1; node 1 (n1) is left out, as it fails its check: GPU 3 is lost:"
        " n3 has its place"
    )


@SPARES_OR_ELASTIC
def test_too_few_nodes_pass_their_check(nodes: int, spares: int, least: int | None) -> None:
    """The job does not begin; nor does it without node 0, which leads it."""
    first = Joining(nodes, spares=spares, least=least, fault="GPU 3 is lost")
    two = Joining(nodes, spares=spares, least=least)
    first.joins().joins().joins()
    two.joins(fault="GPU 3 is lost").joins(fault="GPU 3 is lost").joins()

    why = "fails its check (--check-nodes): GPU 3 is lost"
    assert first.settles().saw() == [
        f"node {each} gives up: n0 (pid 10) {why}" for each in range(4)
    ]
    assert two.settles().saw() == [
        f"node {each} gives up: n1 (pid 11) {why} (1 other node fails, too)" for each in range(4)
    ]
