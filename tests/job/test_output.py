"""The prefix of lines, colours, and the log folders that an earlier job left."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.command_lines import Flags
from tests.described import PROCESS, describe, mistake

pytestmark = pytest.mark.usefixtures("script")

PREFIX = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


def test_prefix_with_a_line_break_is_an_error() -> None:
    assert mistake("train.py", environ={PREFIX: "a\nb"}) == (
        f"{PREFIX}: 'a\\nb' is more than one line",
        "remove line breaks",
    )


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
def test_colours_only_on_a_terminal(
    flags: Flags, environ: Mapping[str, str], *, has_terminal: bool, coloured: bool
) -> None:
    """Workers print colours only if their output goes to a terminal and to no file."""
    process = replace(PROCESS, has_terminal=has_terminal)

    job = describe("train.py", flags=flags, environ=environ, process=process).job

    assert job.coloured is coloured


@pytest.mark.parametrize(
    ("flags", "called", "kept"),
    [
        ({"run_id": "17"}, "clusterrun", 3),
        ({"run_id": "17"}, "torchrun", 0),
        ({}, "clusterrun", 0),
        ({"run_id": "18"}, "clusterrun", 0),
    ],
)
def test_attempts_continue_after_existing_log_folders(
    folder: Path, flags: Flags, called: str, kept: int
) -> None:
    """Only a given run id may have folders, and with torchrun's names each launch has a new folder.

    A link counts as a folder, because none can have its name; very long numbers are ignored.
    """
    for name in ("attempt-0", "attempt-1", "attempt-x", "other", "attempt-99999999999"):
        (folder / "logs/17" / name).mkdir(parents=True)
    (folder / "logs/17/attempt-2").symlink_to("nowhere")

    process = replace(PROCESS, called=called, run_id="17")
    job = describe("train.py", flags={"log_dir": "logs", **flags}, process=process).job

    assert job.kept_attempts == kept
