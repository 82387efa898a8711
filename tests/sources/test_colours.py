"""Whether workers may print colours."""

from collections.abc import Mapping

import pytest
from clusterrun.sources.settings import Flags
from msgspec.structs import replace

from tests.described import PROCESS, describe

pytestmark = pytest.mark.usefixtures("script")

MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}


@pytest.mark.parametrize(
    ("flags", "environ", "has_terminal", "coloured"),
    [
        ({}, {}, True, True),
        ({}, {}, False, False),
        ({}, {"NO_COLOR": "1"}, True, False),
        ({}, {"NO_COLOR": ""}, True, True),
        ({}, {"TERM": "dumb"}, True, False),
        ({"log_dir": "logs"}, {}, True, False),
        ({}, MPIRUN, True, False),
    ],
    ids=["terminal", "pipe", "no colour", "empty", "dumb", "log files", "mpirun"],
)
def test_colours(
    flags: Flags, environ: Mapping[str, str], *, has_terminal: bool, coloured: bool
) -> None:
    """Only where all that is printed goes to a terminal, and to no file."""
    process = replace(PROCESS, has_terminal=has_terminal)

    job = describe("train.py", flags=flags, environ=environ, process=process).job

    assert job.coloured.value is coloured
