"""``clusterrun env``: what a bug report needs."""

import json
from pathlib import Path

import pytest

from tests.cli.door import run_command_line

VARIABLES = {
    "CLUSTERRUN_TOKEN": "hush",
    "NCCL_DEBUG": "INFO",
    "SECRET_OF_MINE": "hush",
    "SLURM_JOB_ID": "17",
}
BROKEN = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "x", "SLURM_NODEID": "y"}


def test_it_names_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    """Versions, the machine, variables; no secret."""
    assert run_command_line(["env"], VARIABLES) == 0

    printed = capsys.readouterr().out
    for wanted in ("clusterrun", "kernel", "/dev/shm", "NUMA nodes", "NCCL_DEBUG", "open files"):
        assert wanted in printed
    assert "hush" not in printed
    assert "SECRET_OF_MINE" not in printed


def test_it_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """The same as JSON, in which a value is what it was set to."""
    assert run_command_line(["env", "--json"], VARIABLES) == 0

    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["python", "packages", "host", "machine", "variables"]
    assert found["variables"]["NCCL_DEBUG"] == "INFO"
    assert found["packages"]["clusterrun"]
    assert (Path(found["python"]["clusterrun is in"]) / "cli/env.py").is_file()
    assert int(found["machine"]["cores"]) > 0


def test_json_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    """A variable may have bytes that are no UTF-8, and standard output any encoding."""
    value = "caf\u00e9 \udce9"

    assert run_command_line(["env", "--json"], {"NCCL_DEBUG": value}) == 0

    printed = capsys.readouterr().out
    assert printed.isascii()
    assert json.loads(printed)["variables"]["NCCL_DEBUG"] == value


def test_a_contradictory_cluster_is_part_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    """That is what the report is about then."""
    assert run_command_line(["env"], BROKEN) == 0

    assert "contradictory: SLURM_" in capsys.readouterr().out
