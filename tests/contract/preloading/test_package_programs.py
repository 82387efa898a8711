"""Programs that pass functions of the script to other processes, as popular packages do."""

import re
import shutil
from pathlib import Path

import pytest

from tests.contract.preloading.package_environment import (
    FOLDER,
    ROOT,
    SECONDS_TO_INSTALL,
    SECONDS_TO_RUN,
    python_with_packages,
    run_alone,
    run_launched,
)
from tests.workers.interpreters import environment_without_pth

pytestmark = [pytest.mark.packages, pytest.mark.timeout(SECONDS_TO_INSTALL + 3 * SECONDS_TO_RUN)]

RECIPE_FOR_JAX = ROOT / "docs/workers.md"

PROGRAMS = sorted((FOLDER / "programs").glob("*.py"))

OFFLINE = {"HF_HUB_OFFLINE": "1", "RAY_AUTH_MODE": "disabled", "ACCELERATE_USE_CPU": "true"}
"""Without the last one, each rank would be a job of its own on a machine without GPUs."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter with all packages, where no code runs before a script."""
    return environment_without_pth(
        python_with_packages(), tmp_path_factory.mktemp("without_pth") / "environment"
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program_prints_the_same_as_plain_python(
    python: str, program: Path, tmp_path: Path
) -> None:
    """By default, with forked ranks: results, and fingerprints of what it has computed."""
    shutil.copy(program, tmp_path)

    by_python = run_alone(python, [program.name], tmp_path, OFFLINE)
    by_us = run_launched(python, [program.name], tmp_path, OFFLINE)

    assert "workers are forked" in by_us.err
    assert sorted(found(by_us.out)) == sorted(
        line for printed in by_python for line in found(printed)
    )


def test_jax_recipe_makes_one_job_of_two_ranks(python: str, tmp_path: Path) -> None:
    """The program of docs/workers.md, as it is."""
    (program,) = re.findall(r"```python\n(.*?)```", RECIPE_FOR_JAX.read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(program)

    ended = run_launched(python, ["train.py"], tmp_path, {"JAX_PLATFORMS": "cpu"})

    assert sorted(re.findall(r"process .*", ended.out)) == [
        "process 0 of 2: 2 devices",
        "process 1 of 2: 2 devices",
    ]


def found(printed: str) -> list[str]:
    """Return the results that a program printed, without prefix."""
    lines: list[str] = re.findall(r"found .*", printed)
    assert lines, printed
    return lines
