"""The fields of a job, and that a new option needs only one field."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import clusterrun
import pytest

from tests.plans import job

FIELD = """\
    grace_of_a_test: Annotated[values.Seconds, Option("A number for a test")] = 7.5
"""


def test_setting_of_an_option_or_field() -> None:
    found = job(max_restarts=2, resumed=1, nnodes=3)

    assert str(found.setting("max_restarts")) == "2 (the test)"
    assert str(found.setting("resumed")) == "1 (the test)"
    assert str(found.setting("nnodes")) == "3 (the test)"
    assert str(found.setting("spares")) == "0 (default)"


def test_new_option_needs_one_field(tmp_path: Path) -> None:
    """The command line, variables, the dry run and --help have it without other changes."""
    package = tmp_path / "clusterrun"
    shutil.copytree(Path(clusterrun.__file__).parent, package)
    options = package / "job/options.py"
    title = '    title: ClassVar = "When a worker fails"\n'
    options.write_text(options.read_text().replace(title, f"{title}\n{FIELD}"))
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "CLUSTERRUN_GRACE_OF_A_TEST": "3"}

    def clusterrun_prints(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-P", "-m", "clusterrun", *words],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    dry_run = ("--no-python", "--dry-run", "--json", "true")
    by_flag = json.loads(clusterrun_prints("--grace-of-a-test", "0.5", *dry_run))["job"]
    by_variable = json.loads(clusterrun_prints(*dry_run))["job"]

    assert by_flag["grace_of_a_test"] == {"value": 0.5, "origin": "--grace-of-a-test"}
    assert by_variable["grace_of_a_test"]["origin"] == "CLUSTERRUN_GRACE_OF_A_TEST"
    assert "--grace-of-a-test SECONDS" in clusterrun_prints("--help", "failing")


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({}, 0.0),
        ({"hang_timeout": 60.0}, 60.0),
        ({"hang_timeout": 60.0, "pdb": True}, 0.0),
    ],
)
def test_pdb_disables_hang_detection(values: dict[str, Any], seconds: float) -> None:
    assert job(**values).active_hang_timeout == seconds
