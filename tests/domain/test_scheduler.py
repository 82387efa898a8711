"""The scheduler's job in messages."""

import pytest

from tests.domain.door import (
    SchedulerJob,
)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (SchedulerJob("Slurm", "17", (), ()), "Slurm job 17"),
        (SchedulerJob("Kubernetes", "", (), ()), "Kubernetes"),
    ],
)
def test_it_is_named_with_its_id(job: SchedulerJob, words: str) -> None:
    """If it has one."""
    assert str(job) == words
