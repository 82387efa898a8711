"""An option and the job's field of its name: what must agree, and that nothing else is needed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import NoneType
from typing import get_args, get_type_hints

import clusterrun
import pytest

from tests.sources.door import (
    OPTIONS,
    JobSpec,
    Kind,
    Option,
)

WITH_FIELD = [
    option
    for option in OPTIONS
    if option.name in JobSpec.__struct_fields__
    # Of a repeated option, the job has all values; str has no hints.
    and not (option.kind is Kind.REPEATED or option.parse is str)
]

ROW = """
GRACE = Option(
    "grace_of_a_test",
    parse=numbers.seconds,
    default=7.5,
    metavar="SECONDS",
    help="A number for a test",
)
"""


@pytest.mark.parametrize("option", WITH_FIELD, ids=[option.name for option in WITH_FIELD])
def test_the_field_has_the_type_of_the_value(option: Option[object]) -> None:
    """What the row reads, or None if its default is None, is what mypy takes the field to hold."""
    (field,) = get_args(get_type_hints(JobSpec)[option.name])
    read = get_type_hints(option.parse)["return"]

    assert field == (read | NoneType if option.default is None else read)


def test_a_new_option_is_a_row_and_a_field(tmp_path: Path) -> None:
    """The command line, variables, the dry run and --help know it without another line of code."""
    package = tmp_path / "clusterrun"
    shutil.copytree(Path(clusterrun.__file__).parent, package)
    with (package / "sources/options/rows/failing.py").open("a") as rows:
        rows.write(ROW)
    job = package / "domain/job.py"
    field = "    shutdown_timeout: Fact[float]\n"
    job.write_text(job.read_text().replace(field, f"    grace_of_a_test: Fact[float]\n{field}"))
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
