"""What follows from the values of a job."""

from typing import Any

import pytest

from tests.domain.door import (
    RankSet,
)
from tests.plans import job


@pytest.mark.parametrize(
    ("values", "seconds", "has_wrappers"),
    [
        ({}, 0.0, False),
        ({"hang_timeout": 60.0}, 60.0, False),
        ({"hang_timeout": 60.0, "debug": 0}, 0.0, True),
        ({"hang_timeout": 60.0, "pdb": True}, 0.0, True),
        ({"hang_timeout": 60.0, "profile": RankSet(((0, 1),))}, 60.0, True),
    ],
)
def test_a_debugged_rank_may_be_stopped_for_hours(
    values: dict[str, Any], seconds: float, has_wrappers: bool
) -> None:
    """No time-out of ours counts then; a rank that is profiled goes on as ever."""
    described = job(**values)

    assert (described.watched_for, described.has_wrappers) == (seconds, has_wrappers)
