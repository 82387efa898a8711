"""An option and the job's field of its name: what must agree, and that nothing else is needed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import clusterrun
import pytest

from tests.job.door import OPTIONS, Row
from tests.sources.door import JobSpec

WITH_FIELD = [
    row
    for row in OPTIONS.values()
    if row.name in JobSpec.__struct_fields__
    # A job has all variables by name, and the numbers of nodes apart.
    and row.name not in {"env", "nnodes"}
]

FIELD = """\
    grace_of_a_test: Annotated[values.Seconds, Option("A number for a test")] = 7.5
"""


@pytest.mark.parametrize("row", WITH_FIELD, ids=[row.name for row in WITH_FIELD])
def test_the_field_has_the_type_of_the_option(row: Row) -> None:
    """What the subject's field holds is what mypy takes the job's to hold."""
    (field,) = get_args(get_type_hints(JobSpec)[row.name])

    assert field == get_type_hints(row.subject)[row.name]


def test_a_new_option_is_two_fields(tmp_path: Path) -> None:
    """The command line, variables, the dry run and --help know it without another line of code."""
    package = tmp_path / "clusterrun"
    shutil.copytree(Path(clusterrun.__file__).parent, package)
    options = package / "job/options.py"
    title = '    title: ClassVar = "When a worker fails"\n'
    options.write_text(options.read_text().replace(title, f"{title}\n{FIELD}"))
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
