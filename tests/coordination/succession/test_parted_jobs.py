"""Random histories of jobs that are torn apart: never do two attempts train at once."""

import pytest

from tests.coordination.succession.parted_job import (
    RHYTHM,
    TICK,
    WITHOUT_FAULTS,
    PartedJob,
)
from tests.rounds import in_all_rounds, numbers

HISTORIES = 300
LONG_HISTORIES = 10_000

SECONDS = 60.0


def go_on(seeds: range) -> int:
    """Run histories; return how many of them went on after a loss."""
    went_on = 0
    for seed in seeds:
        job = PartedJob(seed)
        job.runs(SECONDS)
        went_on += job.attempts > 0
    return went_on


@pytest.mark.timeout(in_all_rounds(120))
def test_no_two_attempts_train_at_once() -> None:
    """Agents freeze, are paused and are killed, hosts are lost, links are cut, reset and heal."""
    seeds = numbers(HISTORIES)

    assert go_on(seeds) > len(seeds) / 2


@pytest.mark.long
@pytest.mark.timeout(in_all_rounds(1800))
def test_in_ten_thousand_histories() -> None:
    """As above."""
    seeds = numbers(LONG_HISTORIES)

    assert go_on(seeds) > len(seeds) / 2


@pytest.mark.parametrize("seed", range(20))
def test_no_lease_ends_in_a_job_that_is_well(seed: int) -> None:
    """Although each message is up to an interval late, and the timeout is the shortest there is."""
    job = PartedJob(seed, faults=WITHOUT_FAULTS, latency=RHYTHM.interval)

    job.runs(SECONDS)

    assert job.attempts == 0
    assert {agent.fate for agent in job.agents} == {"lives"}
    assert job.shortest > TICK
