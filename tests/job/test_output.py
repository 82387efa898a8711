"""Where log files go, what stands before printed lines, and whether these may have colours."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.command_lines import Flags
from tests.described import PROCESS, describe, mistake
from tests.job.door import Fact

pytestmark = pytest.mark.usefixtures("script")

WRITTEN = "log files go to clusterrun-logs; clusterrun-logs/latest is the last run"
PREFIX = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


@pytest.mark.parametrize(
    ("flags", "place", "origin"),
    [
        ({}, None, "default"),
        ({"log_dir": "logs", "tee": "3"}, "logs", "--log-dir"),
        ({"tee": "3"}, None, "default"),
        ({"tee": "0:1", "redirects": "3"}, "clusterrun-logs", "--redirects"),
        ({"redirects": "0:1"}, "clusterrun-logs", "--redirects"),
        ({"redirects": "0", "tee": "0:0,1:0"}, None, "default"),
        ({"duplicate_stdout_filters": "loss"}, "clusterrun-logs", "--duplicate-stdout-filters"),
        ({"local_ranks_filter": "0", "ranks": "0"}, None, "default"),
        ({"log_dir": "/dev/null", "tee": "3"}, None, "--log-dir"),
    ],
)
def test_the_folder_for_log_files(flags: Flags, place: str | None, origin: str) -> None:
    """The user's; else, where something is to be written, one that people find."""
    resolved = describe("train.py", flags=flags)

    assert resolved.job.fact("log_dir") == Fact(place, origin)
    line = f"{origin} is set, but not --log-dir: {WRITTEN}"
    assert list(resolved.warnings) == ([line] if place == "clusterrun-logs" else [])


def test_a_dry_run_writes_nothing() -> None:
    """The folder stands among the values, with its origin."""
    resolved = describe("train.py", flags={"dry_run": True}, environ={"PET_REDIRECTS": "3"})

    assert resolved.job.fact("log_dir") == Fact("clusterrun-logs", "PET_REDIRECTS")
    assert resolved.warnings == ()


def test_the_same_folder_by_ones_own_choice() -> None:
    """Then there is no notice."""
    environ = {"CLUSTERRUN_LOG_DIR": "clusterrun-logs"}

    assert describe("train.py", flags={"redirects": "3"}, environ=environ).warnings == ()


def test_torchruns_own_variable_for_the_prefix() -> None:
    """Its only way up to 2.14; whatever names clusterrun beats it."""
    environ = {PREFIX: "[${rank}]: "}
    flags = {"log_line_prefix_template": "${host} "}

    by_variable = describe("train.py", environ=environ).job.fact("log_line_prefix_template")
    by_flag = describe("train.py", flags=flags, environ=environ).job.fact(
        "log_line_prefix_template"
    )

    assert by_variable == Fact("[${rank}]: ", PREFIX)
    assert by_flag == Fact("${host} ", "--log-line-prefix-template")
    assert describe("train.py").job.fact("log_line_prefix_template") == Fact(None, "default")


@pytest.mark.parametrize(
    ("template", "warning"),
    [
        ("${rnk}: ", "unknown name ${rnk}; did you mean ${rank}?"),
        ("[$lokal_rank] ", "unknown name ${lokal_rank}; did you mean ${local_rank}?"),
        (
            "${x} ",
            "unknown name ${x}; known names: rank, local_rank, role_name, host, node_rank",
        ),
        ("$$1 ${rank} ", ""),
        ("US$ $rank ", ""),
        ("100 %: ", ""),
    ],
)
def test_a_prefix_with_an_unknown_name(template: str, warning: str) -> None:
    """It is printed as it is, as torchrun does, with a warning."""
    resolved = describe("train.py", flags={"log_line_prefix_template": template})

    assert resolved.job.output.log_line_prefix_template == template
    assert resolved.warnings == ((f"--log-line-prefix-template: {warning}",) if warning else ())


def test_a_prefix_is_one_line() -> None:
    """The variable is named that holds another."""
    assert mistake("train.py", environ={PREFIX: "a\nb"}) == (
        f"{PREFIX}: 'a\\nb' is more than one line",
        "leave line breaks out",
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
def test_colours(
    flags: Flags, environ: Mapping[str, str], *, has_terminal: bool, coloured: bool
) -> None:
    """Only where all that is printed goes to a terminal, and to no file."""
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
def test_log_folders_of_a_run_go_on(folder: Path, flags: Flags, called: str, kept: int) -> None:
    """A run id that was made up for this job is new, and so are torchrun's folders."""
    for name in ("attempt-0", "attempt-2", "attempt-x", "other"):
        (folder / "logs/17" / name).mkdir(parents=True)

    process = replace(PROCESS, called=called, run_id="17")
    job = describe("train.py", flags={"log_dir": "logs", **flags}, process=process).job

    assert job.kept_attempts == kept
