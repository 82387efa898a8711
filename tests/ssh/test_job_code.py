"""The exit code of a job, from those of its agents."""

import pytest

from tests.ssh.door import (
    ExitCode,
    job_code,
)


@pytest.mark.parametrize(
    ("codes", "outlives_nodes", "expected"),
    [
        ([0, 0, 0], False, 0),
        ([3, 3, 3], False, 3),
        # The agent of the first host was killed, and the others have lost it.
        ([137, 5, 5], False, 5),
        ([137, 5], False, 137),
        # No failure is outvoted.
        ([0, 0, 2], False, 2),
        # The job went on without the first host.
        ([137, 0, 0], True, 0),
        ([], False, ExitCode.NODE_LOST),
    ],
)
def test_the_code_of_most_agents(codes: list[int], *, outlives_nodes: bool, expected: int) -> None:
    """The agents agree, apart from those that were lost."""
    assert job_code(codes, outlives_nodes=outlives_nodes) == expected
