"""Jobs that are torn apart: never do two attempts train at once, and what can go on does."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.policy.door import Quorum
from tests.policy.parted_job import (
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

PAGE = Path(__file__).parents[2] / "docs" / "lost_nodes.md"

Parts = tuple[tuple[int, ...], ...]
"""Nodes by number; those of one part reach each other and no others."""

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


def test_in_the_end_all_go_on_together_or_have_ended() -> None:
    """Once nothing goes wrong any more: nobody waits for ever, and nobody trains alone."""
    left = 0
    for seed in numbers(HISTORIES // 2):
        job = PartedJob(seed)
        job.runs(SECONDS / 4)
        job.calms()
        job.runs(SECONDS)
        left += bool(job.left())
        has_begun = any(agent.world for agent in job.agents)
        assert job.trained() or not (job.left() and has_begun), seed
    assert left > HISTORIES / 10


def splits(nodes: Sequence[int]) -> Iterator[Parts]:
    """Yield all ways to divide nodes into parts, each part in order."""
    if not nodes:
        yield ()
        return
    first, rest = nodes[0], nodes[1:]
    for others in splits(rest):
        yield ((first,), *others)
        for place, part in enumerate(others):
            yield ((first, *part), *others[:place], *others[place + 1 :])


def line(parts: Parts, *, killed: bool) -> str:
    """Return the line of the page for a job that is split so; ``killed``: node 0 has ended."""
    nodes = sum(map(len, parts)) + killed
    job = PartedJob(0, faults=WITHOUT_FAULTS, nodes=nodes)
    job.runs(1.0)
    job.splits(*[{0, *part} for part in parts] if killed else parts)
    if killed:
        job.kills(0)
    job.runs(SECONDS)
    going = job.left()
    assert going == job.trained()
    sizes = [len(part) for part in parts]
    first, rest = ([], sizes) if killed else (sizes[:1], sizes[1:])
    shown = " + ".join(map(str, [*first, *sorted(rest, reverse=True)]))
    leads = "node 0" if 0 in going else "a successor"
    ends = f"{len(going)} with {leads}" if going else "all end"
    return f"| {nodes} | {'node 0 killed; ' if killed else ''}{shown} | {ends} |"


@pytest.mark.parametrize("killed", [False, True])
def test_who_goes_on_is_what_the_page_says(killed: bool) -> None:
    """For each way to split two to five nodes: more than half of them, or the last one that lives."""
    lines = [it for it in PAGE.read_text().splitlines() if it.startswith("| ")]
    told = {it for it in lines if it[2].isdigit() and ("node 0 killed" in it) == killed}
    seen = {
        line(parts, killed=killed)
        for nodes in range(2, 6)
        for parts in splits(range(killed, nodes))
        if len(parts) > 1 or killed
    }

    assert seen == told


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

    def half(quorum: Quorum) -> bool:
        return 2 * quorum.here >= len(quorum.agents) or quorum.all_missing_have_ended

    monkeypatch.setattr(Quorum, "may_go_on", half)

    assert found(Rules(), HISTORIES)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rule", ["before", "from_sending", "confirmed", "lease_of_both"])
def test_rules_for_what_is_rare(rule: str) -> None:
    """The last two were found in history 23961."""
    assert found(Rules(**{rule: False}), 3 * LONG_HISTORIES, RESETS_AND_PAUSES)
