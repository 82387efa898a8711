"""The interpreter of the active environment runs the workers if only that environment has torch."""

import os
from pathlib import Path

import clusterrun
import pytest
from clusterrun.job.declarations import Setting
from clusterrun.job.this_process import ThisProcess
from msgspec.structs import replace

from tests.command_lines import Flags
from tests.described import PROCESS, describe

pytestmark = pytest.mark.usefixtures("script")


def environment(folder: Path, *packages: str, version: str = "python3.12") -> Path:
    """Create an environment with an interpreter and packages, given relative to its lib/VERSION."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").touch(mode=0o755)
    for package in packages:
        path = folder / "lib" / version / package
        path.mkdir(parents=True)
        (path / "__init__.py").touch()
    return folder


@pytest.fixture
def ours(folder: Path) -> ThisProcess:
    """Return a process whose own environment has no torch."""
    made = environment(folder / "ours")
    return replace(PROCESS, python=f"{made}/bin/python", has_torch=lambda: False)


VENV, CONDA = "VIRTUAL_ENV", "CONDA_PREFIX"

TORCH = "site-packages/torch"

PYVENV_CFG = "home = {}/base/bin\ninclude-system-site-packages = true\nversion = 3.12.3\n"


def python_of(process: ThisProcess, words: str = "train.py", **environ: str) -> Setting[str]:
    """Return the interpreter of the workers; there is no warning."""
    described = describe(*words.split(), environ=environ, process=process)
    assert described.warnings == ()
    return described.job.setting("python")


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("name", [VENV, CONDA])
def test_active_environment_with_torch_runs_workers(
    folder: Path, ours: ThisProcess, name: str, slash: str
) -> None:
    active = environment(folder / "active", TORCH)

    found = python_of(ours, **{name: f"{active}{slash}"})

    assert found == Setting(f"{active}/bin/python", name)


@pytest.mark.parametrize("innermost", [VENV, CONDA])
def test_first_environment_on_path_runs_workers(
    folder: Path, ours: ThisProcess, innermost: str
) -> None:
    """Conda may be active inside a virtual environment, or the other way round."""
    active = {name: str(environment(folder / name, TORCH)) for name in (VENV, CONDA)}
    order = sorted(active, key=lambda name: name != innermost)
    path = os.pathsep.join(f"{active[name]}/bin" for name in order)

    found = python_of(ours, **active, PATH=f"/usr/bin{os.pathsep}{path}")

    assert found == Setting(f"{active[innermost]}/bin/python", innermost)


@pytest.mark.parametrize(
    "place",
    [
        "lib/python3.12/site-packages",
        "lib64/python3.12/site-packages",
        "local/lib/python3.12/dist-packages",
        "lib/python3/dist-packages",
    ],
)
def test_environment_with_system_site_packages(folder: Path, ours: ThisProcess, place: str) -> None:
    """The packages of the base Python count, also in the folders of Debian and Fedora."""
    active = environment(folder / "active", "site-packages/pip")
    environment(folder / "base", f"../../{place}/torch")
    (active / "pyvenv.cfg").write_text(PYVENV_CFG.format(folder))

    assert python_of(ours, VIRTUAL_ENV=str(active)).origin == VENV
    (active / "pyvenv.cfg").write_text(PYVENV_CFG.format(folder).replace("true", "false"))
    assert describe("train.py", environ={VENV: str(active)}, process=ours).job.setting(
        "python"
    ) == (Setting(ours.python, "default"))


@pytest.mark.parametrize(
    ("packages", "version", "has_torch"),
    [
        ((TORCH,), "python3.12", True),
        ((), "python3.12", False),
        (("site-packages/torchvision",), "python3.12", False),
        ((TORCH,), "python3.7", False),
    ],
)
def test_own_environment_runs_workers(
    folder: Path, ours: ThisProcess, packages: tuple[str, ...], version: str, *, has_torch: bool
) -> None:
    """It has torch, or the active one has none or a Python that is too old; a warning names that."""
    active = environment(folder / "active", *packages, version=version)
    process = replace(ours, has_torch=lambda: has_torch)

    described = describe("train.py", environ={VENV: str(active)}, process=process)

    assert described.job.setting("python") == Setting(ours.python, "default")
    assert described.warnings == (
        (
            f"workers use {ours.python}, as clusterrun does, not the Python of the active"
            f" environment {active} (VIRTUAL_ENV); to use that one, add --python"
            f" {active}/bin/python"
        ),
    )


@pytest.mark.parametrize("active", ["", "ours", "link", "gone", "broken"])
def test_no_active_environment(folder: Path, ours: ThisProcess, active: str) -> None:
    """The active one is our own, perhaps through a link, or has no interpreter."""
    (folder / "link").symlink_to("ours")
    environment(folder / "broken", TORCH).joinpath("bin/python").unlink()

    found = python_of(ours, VIRTUAL_ENV=f"{folder}/{active}" if active else "")

    assert found == Setting(ours.python, "default")


@pytest.mark.parametrize(
    ("flags", "words", "origin"),
    [
        ({"python": "ours/bin/python"}, "train.py", "--python"),
        ({"no_python": True}, "true", "default"),
        ({"module": True}, "clusterrun.clients.doctor.node_program", "default"),
        ({}, "{clusterrun}/clients/python/rank.py", "default"),
    ],
)
def test_active_environment_is_not_used(
    folder: Path, ours: ThisProcess, flags: Flags, words: str, origin: str
) -> None:
    """An option sets the interpreter, no Python runs, or the program is part of clusterrun."""
    active = environment(folder / "active", TORCH)
    words = words.format(clusterrun=Path(clusterrun.__file__).parent)

    described = describe(words, flags=flags, environ={VENV: str(active)}, process=ours)

    assert (described.job.origin("python"), described.warnings) == (origin, ())
