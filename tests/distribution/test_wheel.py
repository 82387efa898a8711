"""``pip install clusterrun`` installs one package, one command, and no torch."""

import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.contract.launched import plain_environment
from tests.distribution.environments import SECONDS_TO_RUN, build, environment, run, run_pip

pytestmark = [pytest.mark.timeout(600), pytest.mark.wheel]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the wheel and the source distribution."""
    return build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def installed(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the ``bin`` of an environment with only the wheel and its dependencies."""
    (wheel,) = distributions.glob("*.whl")
    return environment(tmp_path_factory.mktemp("installed") / "environment", [str(wheel)])


def test_wheel_has_one_top_package(distributions: Path) -> None:
    """Besides the metadata."""
    (wheel,) = distributions.glob("*.whl")

    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"clusterrun"}


def test_wheel_has_all_files(distributions: Path) -> None:
    """Including the fork server, the startup folder and py.typed."""
    (wheel,) = distributions.glob("*.whl")
    (source,) = distributions.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        sources = {
            name.partition("/launcher/")[2]
            for name in archive.getnames()
            if name.endswith((".py", "py.typed"))
        }

    in_wheel = set(zipfile.ZipFile(wheel).namelist())

    assert sources - {""} <= in_wheel
    assert "clusterrun/py.typed" in in_wheel


def test_programs_run_without_torch(installed: Path, tmp_path: Path) -> None:
    """Two workers of any program, and of a Python script."""
    script = tmp_path / "ranks.py"
    script.write_text(
        "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    )
    command = [str(installed / "clusterrun"), "--nproc-per-node", "2"]

    program = run(
        [*command, "--no-python", "echo", "here"], tmp_path, SECONDS_TO_RUN, plain_environment()
    )
    ranks = run([*command, str(script)], tmp_path, SECONDS_TO_RUN, plain_environment())

    assert sorted(program.splitlines()) == ["[rank 0] here", "[rank 1] here"]
    assert sorted(ranks.splitlines()) == ["[rank 0] rank 0 of 2", "[rank 1] rank 1 of 2"]
    assert "torch" not in run_pip(installed, "list", "--format=freeze")


def test_topo_runs_without_torch(installed: Path, tmp_path: Path) -> None:
    drawing = run(
        [str(installed / "clusterrun"), "topo"], tmp_path, SECONDS_TO_RUN, plain_environment()
    )

    assert "NUMA node 0" in drawing or "socket 0" in drawing


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_workers_run_in_active_environment(installed: Path, tmp_path: Path, name: str) -> None:
    """As after ``uv tool install``: torch, here an empty package, is in the environment of the project."""
    active = tmp_path / "active"
    run([sys.executable, "-m", "venv", "--without-pip", str(active)])
    (packages,) = active.glob("lib/python*/site-packages")
    (packages / "torch").mkdir()
    (packages / "torch/__init__.py").touch()
    (tmp_path / "train.py").write_text("import sys, torch; print(sys.prefix)")
    environ = {**plain_environment(), name: str(active)}
    command = [str(installed / "clusterrun"), "--nproc-per-node", "1"]

    ran = run([*command, "train.py"], tmp_path, SECONDS_TO_RUN, environ)
    rows = run([*command, "--dry-run", "train.py"], tmp_path, SECONDS_TO_RUN, environ)

    assert ran == f"{active}\n"
    assert re.search(rf"python +{active}/bin/python +{name}\n", rows)
