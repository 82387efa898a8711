"""The oldest and the newest version of each dependency that pyproject.toml allows."""

import tomllib
from pathlib import Path

import pytest

from tests.contract.launched import plain_environment
from tests.distribution.environments import ROOT, SECONDS_TO_INSTALL, build, environment, run

SECONDS_TO_TEST = 900.0

PACKAGES = ("cli", "job", "machine/test_capture.py", "report", "network")
"""Their tests use every dependency."""

CONTRACTS = ("test_jobs.py", "test_binding.py")
"""Real jobs, with workers."""

CHOSEN = ("-m", "not long and not hosts", "-k", "not those_of_torchrun")
"""Without the tests that need torchrun, which is not installed there."""


@pytest.mark.long
@pytest.mark.timeout(SECONDS_TO_INSTALL + SECONDS_TO_TEST)
@pytest.mark.parametrize("versions", ["oldest", "newest"])
def test_tests_pass_with_dependency_versions(versions: str, tmp_path: Path) -> None:
    """Test the installed wheel, without other packages of this repository."""
    (wheel,) = build(tmp_path).glob("*.whl")
    pins = oldest() if versions == "oldest" else dependencies()
    tools = ["pytest>=8.4", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.100"]
    binaries = environment(tmp_path / "environment", [str(wheel), *pins, *tools])
    tests = [f"tests/{package}" for package in PACKAGES]
    tests += [f"tests/contract/{name}" for name in CONTRACTS]

    # With the checkout's sources on the path, the wheel would not be tested.
    run(
        [str(binaries / "python"), "-m", "pytest", "-q", *CHOSEN, *tests],
        ROOT,
        SECONDS_TO_TEST,
        {**plain_environment(), "PATH": f"{binaries}:{plain_environment()['PATH']}"},
    )


def dependencies() -> list[str]:
    """Return the requirements of pyproject.toml, with lower bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["dependencies"])


def oldest() -> list[str]:
    """Return each dependency at its lower bound."""
    return [dependency.replace(">=", "==") for dependency in dependencies()]


def test_every_dependency_has_a_lower_bound() -> None:
    """A range without a lower bound can't be tested."""
    assert [name for name in dependencies() if ">=" not in name] == []
