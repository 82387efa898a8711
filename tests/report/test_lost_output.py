"""The lines on lost output."""

import pytest

from tests.report.door import (
    LostOutput,
    describe_losses,
)

NO_ROOM = "No space left on device"
NO_TIME = "not enough time at the end"


@pytest.mark.parametrize(
    ("losses", "exit_code", "line"),
    [
        (
            [LostOutput("log file a", 1, NO_ROOM)],
            3,
            f"exit code 3: 1 byte of log file a could not be written: {NO_ROOM}",
        ),
        (
            [LostOutput("log file a", 999_000, NO_ROOM), LostOutput("log file b", 1_000, "")],
            None,
            f"1.0 MB of log file a and 1 other could not be written: {NO_ROOM}",
        ),
        (
            [LostOutput("log file a", 3_000, ""), *[LostOutput("log file b", 1_000, "")] * 2],
            3,
            f"exit code 3: 5 kB of log file a and 2 others could not be written: {NO_TIME}",
        ),
    ],
)
def test_losses(losses: list[LostOutput], exit_code: int | None, line: str) -> None:
    """The line has the total, the files, the reason, and the exit code that follows from it."""
    assert describe_losses(losses, exit_code) == f"clusterrun: {line}"
