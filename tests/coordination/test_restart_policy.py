"""Reasons against another attempt."""

import pytest

from tests.coordination.door import (
    Exited,
    Fate,
    Killed,
    NotStarted,
    RestartRules,
    pause_before,
    rules_of,
    why_no_restart,
)
from tests.plans import job
from tests.rendezvous.nodes import fate

RULES = RestartRules(limit=9)
EARLY = fate(3, 1, tail="Traceback\n  File x\nValueError: no such file\n\n", ran_for=4.0)


def test_usually_there_is_none() -> None:
    """For the first failure, of any kind."""
    assert why_no_restart(RULES, EARLY, None) == ""
    assert why_no_restart(RULES, fate(0, ending=Killed(9)), EARLY) == ""


@pytest.mark.parametrize(
    ("ending", "code"), [(Exited(3), 3), (Exited(7), 7), (Killed(9), 137)], ids=str
)
def test_final_codes(ending: Exited | Killed, code: int) -> None:
    """Of the cause, as the launcher would exit with it."""
    rules = RestartRules(limit=9, final_codes=(3, 5, 6, 7, 137))

    assert why_no_restart(rules, fate(0, ending=ending), None) == (
        f"exit code {code} is one of --no-restart-exit-codes 3,5-7,137"
    )
    assert why_no_restart(rules, fate(0, 4), None) == ""


def test_a_program_that_cannot_be_executed() -> None:
    """The next attempt would fail, too."""
    assert why_no_restart(RULES, fate(0, ending=NotStarted("execute", "no such file")), None) != ""


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (EARLY, True),
        (fate(3, 1, tail="another traceback\nValueError: no such file", ran_for=9.9), True),
        (fate(3, 1, tail=EARLY.tail, ran_for=10.1), False),
        (fate(2, 1, tail=EARLY.tail, ran_for=4.0), False),
        (fate(3, 2, tail=EARLY.tail, ran_for=4.0), False),
        (fate(3, 1, tail="ValueError: another file", ran_for=4.0), False),
    ],
)
def test_the_same_failure_twice_at_once(other: Fate, *, same: bool) -> None:
    """The same rank, with the same last line, soon after its start."""
    twice = why_no_restart(RULES, EARLY, other)

    assert (twice != "") is same
    assert why_no_restart(RestartRules(limit=9, ends_on_repeat=False), EARLY, other) == ""


def test_failures_without_output_may_differ() -> None:
    """Two silent ends are not the same."""
    silent = fate(3, 1, tail=" \n\n", ran_for=0.1)

    assert why_no_restart(RULES, silent, silent) == ""


def test_rules_are_the_jobs() -> None:
    """The rules are set by flags."""
    described = job(max_restarts=2, no_restart_exit_codes=(3,), no_fail_fast=True)

    assert rules_of(job()) == RestartRules()
    assert rules_of(described) == RestartRules(2, (3,), ends_on_repeat=False)


def test_pauses_between_quick_restarts() -> None:
    """The first ones come at once; each pause is then twice the last one, up to half a minute."""
    assert [pause_before(number) for number in range(12)] == [
        *(0.0, 0.0, 0.0),
        *(0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
        *(30.0, 30.0, 30.0),
    ]
    assert pause_before(10**9) == 30.0
