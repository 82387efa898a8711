"""Random histories of jobs that are torn apart: never do two attempts train at once."""

from collections.abc import Collection, Sized

import pytest

from tests.coordination.door import restarting
from tests.coordination.succession.parted_job import (
    RESETS_AND_PAUSES,
    RHYTHM,
    TICK,
    USUAL,
    WITHOUT_FAULTS,
    Faults,
    PartedJob,
    Rules,
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


def found(rules: Rules, histories: int, faults: Faults | None = None) -> bool:
    """Return whether one of the histories ends with two attempts that train at once."""
    for seed in range(histories):
        job = PartedJob(seed, rules, faults)
        try:
            job.runs(SECONDS)
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize(
    ("rule", "faults"),
    [
        ("reset_is_no_end", USUAL),
        ("kills_before_claim", RESETS_AND_PAUSES),
        ("own_lease", RESETS_AND_PAUSES),
        ("members_lease", RESETS_AND_PAUSES),
        ("one_lease", RESETS_AND_PAUSES),
        ("waits_out", RESETS_AND_PAUSES),
        ("answers_after_pause", None),
        ("continues_with_lease", None),
    ],
)
def test_each_rule_is_needed(rule: str, faults: Faults | None) -> None:
    """Without it, a history is found in which two attempts train at once."""
    assert found(Rules(**{rule: False}), HISTORIES, faults)


def test_a_majority_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half is not enough."""

    def half(roster: Sized, missing: Collection[int], ended: Collection[int]) -> bool:
        return 2 * (len(roster) - len(missing)) >= len(roster) or set(missing) <= set(ended)

    monkeypatch.setattr(restarting, "may_go_on", half)

    assert found(Rules(), HISTORIES)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rule", ["before", "from_sending", "confirmed", "lease_of_both"])
def test_rules_for_what_is_rare(rule: str) -> None:
    """The last two were found in history 23961."""
    assert found(Rules(**{rule: False}), 3 * LONG_HISTORIES, RESETS_AND_PAUSES)
