"""--check: a node whose check fails does not participate; the job continues without it, or ends with 3."""

import signal

import pytest

from tests.histories.job_history import Job
from tests.histories.join_history import JoinHistory
from tests.histories.worlds import starts, stops

FAULT = '"./check" exited with code 1: GPU 3 is lost'
SPARES_OR_ELASTIC = pytest.mark.parametrize(
    ("nodes", "spares", "least"), [(3, 1, None), (4, 0, 3)], ids=["spares", "elastic"]
)


def fails(rank: int, others: tuple[int, ...], *, nodes: int = 2, **options: object) -> Job:
    """Return a job with a rank that has failed first: all have ended, and its node checks itself."""
    job = Job(nodes, check="./check", restarts=9, **options)  # type: ignore[arg-type]
    job.exits(rank, code=7).settles().dies(*others, by=signal.SIGTERM)
    assert job.settles().new_lines()[-1] == f"node {rank} checks itself"
    return job


# Before the job begins.


@SPARES_OR_ELASTIC
def test_job_begins_without_node_that_fails_check(
    nodes: int, spares: int, least: int | None
) -> None:
    """Node 0 prints its name and keeps waiting for the others; the highest ranks move up."""
    job = JoinHistory(nodes, spares=spares, least=least, endpoint=True)

    assert job.joins(rank=1, fault=FAULT).settles().new_lines() == [
        f"node 0 prints: refused n1 (pid 11) at 10.0.0.1: it fails its check: {FAULT}",
        f"node 1 may not work: n1 (pid 11) fails its check: {FAULT}",
    ]
    assert job.joins(rank=2).joins(rank=3).settles().new_lines() == [
        "node 0 prints: starting with 3 of 4 nodes: n0, n2, n3; without 1 node",
        "node 0 starts rank 0, attempt 0",
        "node 2 starts rank 1, attempt 0",
        "node 3 starts rank 2, attempt 0",
    ]


def test_last_node_that_fails_check_is_not_waited_for() -> None:
    """All other nodes have joined, so the last call ends."""
    job = JoinHistory(nodes=2, spares=1)

    assert "node 0 starts rank 0, attempt 0" in job.joins().joins(fault=FAULT).settles().new_lines()


@SPARES_OR_ELASTIC
def test_too_few_nodes_pass_check(nodes: int, spares: int, least: int | None) -> None:
    """The job ends at once on all nodes, and on nodes that fail later as well."""
    job = JoinHistory(nodes, spares=spares, least=least)
    job.joins().joins(fault=FAULT).settles().new_lines()

    why = f"may not work: n3 (pid 13) fails its check: {FAULT}"
    assert job.joins(fault=FAULT).settles().new_lines() == [
        f"node 0 {why}",
        f"node 1 {why}",
        f"node 3 {why}",
    ]
    assert job.all_are_informed


def test_first_failed_check_ends_job_without_spares() -> None:
    """A node that joins later is told why; then all have been told."""
    job = JoinHistory(nodes=3)

    why = f"may not work: n1 (pid 11) fails its check: {FAULT}"
    assert job.joins(fault=FAULT).settles().new_lines() == [f"node 0 {why}", f"node 1 {why}"]
    assert not job.all_are_informed
    assert job.joins().settles().new_lines() == [f"node 2 {why}"]
    assert job.all_are_informed


@SPARES_OR_ELASTIC
def test_failed_check_of_node_0_ends_job(nodes: int, spares: int, least: int | None) -> None:
    """Its agent runs the coordinator."""
    job = JoinHistory(nodes, spares=spares, least=least, fault=FAULT)

    why = f"may not work: n0 (pid 10) fails its check: {FAULT}"
    assert job.time_passes(0.0).settles().new_lines() == [f"node 0 {why}"]
    assert job.joins().settles().new_lines() == [f"node 1 {why}"]


@SPARES_OR_ELASTIC
def test_node_that_passes_a_later_check_is_counted_once(
    nodes: int, spares: int, least: int | None
) -> None:
    """Others are waited for as if it had not failed."""
    job = JoinHistory(nodes, spares=spares, least=least)
    job.joins(rank=1, fault=FAULT).joins(rank=1).settles().new_lines()

    assert job.joins(rank=2, fault=FAULT).settles().new_lines()[1:] == [
        f"node 3 may not work: n3 (pid 13) fails its check: {FAULT}"
    ]
    assert "node 0 starts rank 0, attempt 0" in job.joins(rank=3).settles().new_lines()


def test_repeated_failed_check_counts_once() -> None:
    """A scheduler may start the node again and again."""
    job = JoinHistory(nodes=2, spares=1)

    for _ in range(3):
        job.joins(rank=1, host="n1", fault=FAULT)
    assert "node 4 starts rank 1, attempt 0" in job.joins().settles().new_lines()


def test_late_node_that_fails_check_is_refused() -> None:
    """It does not replace a lost node of a running job."""
    job = Job(nodes=2, rejoin=60)

    assert job.joins(fault=FAULT).settles().new_lines() == [
        f"node 0 prints: refused n2 (pid 12) at 10.0.0.2: it fails its check: {FAULT}",
        f"node 2 may not work: n2 (pid 12) fails its check: {FAULT}",
    ]
    assert stops(job.loses_node(1), 0) == []


# Before the next attempt.


def test_node_of_first_failed_rank_is_checked_again() -> None:
    """The others are not; the next attempt begins once the check has passed, however long it takes."""
    job = fails(1, (0, 2), nodes=3)

    assert job.time_passes(300).settles().new_lines() == []
    assert job.is_checked(1).settles().new_lines() == starts(0, 1, 2)


def test_node_is_silent_during_a_check() -> None:
    """A spare takes its place, even if --rejoin-timeout is shorter than others may be silent unnoticed."""
    job = fails(1, (0, 2), nodes=3, spares=1, rejoin=1)
    job.goes_silent(2).is_checked(1).settles().new_lines()

    assert job.time_passes(1).settles().new_lines() == []
    assert job.time_passes(0.5).settles().new_lines() == starts(0, 1, 3)


def test_job_on_one_node_is_checked() -> None:
    good, bad = fails(0, (), nodes=1), fails(0, (), nodes=1)

    assert good.is_checked(0).settles().new_lines() == starts(0)
    [end] = bad.is_checked(0, FAULT).settles().new_lines()
    assert end == (
        "node 0 ends with 3: rank 0 failed, and its node is unfit"
        f" (no restart: node 0 (n0) fails its check: {FAULT})"
    )


def test_no_check_without_option_or_restart() -> None:
    without, last = Job(2, restarts=1), Job(2, check="./check")

    assert stops(without.exits(1, code=7), 0) == starts(0, 1)
    assert stops(last.exits(1, code=7), 0) == [
        "node 0 ends with 7: rank 1 failed",
        "node 1 ends with 7: rank 1 failed",
    ]


def test_no_check_after_node_loss() -> None:
    job = Job(nodes=2, spares=1, check="./check")

    assert stops(job.loses_node(1), 0) == starts(0, 2)


def test_spare_replaces_node_that_fails_check() -> None:
    """The node ends with 3, and the failure of its rank counts as a restart."""
    job = fails(1, (0,), spares=1)

    start, end, *others = job.is_checked(1, FAULT).settles().new_lines()
    assert end == (
        "node 1 ends with 3: rank 1 failed, and its node is unfit"
        f" (no restart: node 1 (n1) fails its check: {FAULT})"
    )
    assert [start, *others] == starts(0, 2)
    assert job.restarted() == (
        "rank 1 failed, and its node is unfit; restarts: 1, lost nodes: 1;"
        f" node 1 (n1) fails its check: {FAULT}: n2 has its place"
    )
    assert stops(job.exits(1, code=7), 0)[-1] == "node 2 checks itself"


def test_elastic_job_continues_without_node_that_fails_check() -> None:
    job = fails(1, (0, 2), nodes=3, least=2)

    saw = job.is_checked(1, FAULT).settles().new_lines()
    assert [line for line in saw if "starts" in line] == starts(0, 2)


@pytest.mark.parametrize(
    ("rank", "options", "rest"),
    [
        pytest.param(1, {}, "", id="world keeps its size"),
        pytest.param(0, {"spares": 1}, "", id="node 0"),
        pytest.param(1, {"least": 2}, "; 1 node left, and the minimum is 2", id="elastic world"),
    ],
)
def test_failed_check_ends_job(rank: int, options: dict[str, int], rest: str) -> None:
    """All nodes end with 3 and name the node, if no other node can replace it or it is node 0."""
    job = fails(rank, (1 - rank,), **options, **({"most": 3} if "least" in options else {}))

    end = (
        f"ends with 3: rank {rank} failed, and its node is unfit"
        f" (no restart: node {rank} (n{rank}) fails its check: {FAULT}"
    )
    saw = job.is_checked(rank, FAULT).settles().new_lines()
    assert f"node {1 - rank} {end}{rest})" in saw
    assert [line[:28] for line in saw if line.startswith(f"node {rank} ")] == [
        f"node {rank} {end}"[:28]
    ]


def test_rejoin_timeout_begins_after_check() -> None:
    """The job waits for another node only once the check has failed."""
    comes, waits = (fails(1, (0,), rejoin=60) for _ in range(2))
    for job in (comes, waits):
        job.time_passes(90).is_checked(1, FAULT).settles().new_lines()

    saw = comes.time_passes(59).joins().settles().new_lines()
    assert [line for line in saw if "starts" in line] == starts(0, 2)
    [end] = waits.time_passes(61).settles().new_lines()
    assert end == (
        "node 0 ends with 3: rank 1 failed, and its node is unfit (no restart: node 1 (n1) fails its"
        f" check: {FAULT}; no other node has taken the place of node 1 (n1) within 60 s"
        " (--rejoin-timeout))"
    )


def test_node_lost_during_check() -> None:
    """The spare replaces it at once. The late result of the check is ignored."""
    job = fails(1, (0,), spares=1)

    assert job.loses_node(1).settles().new_lines() == starts(0, 2)
    assert job.is_checked(0, FAULT).settles().new_lines() == []


def test_signal_during_check_ends_job() -> None:
    job = fails(1, (0,))

    assert job.signalled(signal.SIGTERM).settles().new_lines()[1:] == [
        "node 0 ends with 143: it got SIGTERM",
        "node 1 ends with 143: it got SIGTERM",
    ]
