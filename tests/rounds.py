"""How often what is random runs: ``pytest --rounds``.

A round is what runs by default: so many drawn cases of a test. Round 7 draws other cases than round 0,
and the same ones each time; Hypothesis draws other ones each time.
"""

from dataclasses import dataclass

import pytest
from _pytest.mark.structures import ParameterSet


@dataclass
class _Chosen:
    """The options of this run of pytest: conftest.py sets them before it imports a test."""

    rounds: int = 1
    first: int = 0


CHOSEN = _Chosen()


def numbers(of_a_round: int) -> range:
    """Return the numbers of the cases to draw, which are seeds as well."""
    return range(CHOSEN.first * of_a_round, (CHOSEN.first + CHOSEN.rounds) * of_a_round)


def in_all_rounds(of_a_round: int) -> int:
    """Return how many there are in all rounds: examples, or seconds until a time-out."""
    return CHOSEN.rounds * of_a_round


def mostly_long(of_a_round: int) -> list[ParameterSet]:
    """Return ``numbers`` for ``parametrize``, all but the first of which are marked ``long``."""
    first, *others = numbers(of_a_round)
    return [pytest.param(first), *(pytest.param(it, marks=pytest.mark.long) for it in others)]
