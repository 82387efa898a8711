"""The script that plants faults: which it finds in code, and what it prints of the tests."""

import json
import subprocess
import sys
import venv
from itertools import pairwise
from pathlib import Path

import pytest
from plant_faults import named_faults

ROOT = Path(__file__).parents[1]

ROOM = '''"""How many people a room takes: 12."""

from typing import Literal, assert_never

__all__ = ["is_full"]


def is_full(seats: int, guests: int) -> Literal[0, 1] | bool:
    """Return whether all seats are taken."""
    return guests >= seats


def is_late(minutes: int) -> bool:
    if not minutes:
        assert_never(minutes)
    return minutes > 10
'''

TEST = """
from room import is_full

def test_the_last_seat():
    assert is_full(seats=2, guests=2) and not is_full(seats=2, guests=1)
"""

LONG_TEST = """
import pytest
from room import is_late

@pytest.mark.long
def test_ten_minutes():
    assert is_late(11) and not is_late(10)

@pytest.mark.hosts
def test_eleven_minutes():
    assert is_late(11) and not is_late(1)
"""

FAULTS = """
[[fault]]
name = "counts for ever"
path = "launcher/room.py"
before = "    return guests >= seats"
after = "    while guests >= seats: pass"
"""


AS_SOMEBODY = ("-c", "user.name=somebody", "-c", "user.email=somebody@localhost")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return the root of one module and its test, which says nothing of ``is_late``."""
    root = tmp_path / "checkout"
    for name, text in {"launcher/room.py": ROOM, "tests/test_room.py": TEST}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["hosts", "long"]\n')
    return root


def run(
    checkout: Path, *words: str, python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, ROOT / "scripts/plant_faults.py", "--root", checkout, *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def plant(checkout: Path, *words: str, python: str | Path = sys.executable) -> str:
    """Return what the script prints."""
    done = run(checkout, *words, python=python)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path, line: str) -> Path:
    """Return the interpreter of an environment with what this one has, and one more line of a .pth."""
    venv.create(folder, symlinks=True)
    [site_packages] = folder.glob("lib/python*/site-packages")
    for packages in (Path(path) for path in sys.path if path.endswith("-packages")):
        for entry in packages.iterdir():
            link = site_packages / entry.name
            is_ours = entry.name.startswith("clusterrun") or entry.suffix == ".pth"
            if not is_ours and not link.exists():
                link.symlink_to(entry)
    (site_packages / "a_checkout.pth").write_text(f"{line}\n")
    return folder / "bin/python"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(it): it.read_bytes() for it in folder.rglob("*") if it.is_file()}


@pytest.mark.long
def test_a_fault_is_noticed_by_the_test_of_its_line_only(checkout: Path) -> None:
    """Each is planted alone, and in a copy: the checkout stays as it is."""
    before = contents(checkout)

    printed = plant(checkout, "--source=launcher/{room,r*}.py", "--faults=9", "--tests=all=tests")

    lines = [line.strip() for line in printed.splitlines()]
    noticed = {line: "by" in then for line, then in pairwise(lines) if line.startswith("->")}
    assert noticed == {
        "-> return guests > seats": True,
        "-> return minutes >= 10": False,
        "-> return minutes > 11": False,
        "-> if (minutes):": False,
    }
    assert "all: noticed by tests/test_room.py::test_the_last_seat" in printed
    assert "| all | 1 |" in printed
    assert contents(checkout) == before


@pytest.mark.long
def test_a_checkout_in_the_environment_does_not_hide_the_copy(
    checkout: Path, tmp_path: Path
) -> None:
    """As an editable install lists its own in a .pth file; all faults would go unnoticed."""
    python = environment(tmp_path / "venv", str(checkout / "launcher"))

    printed = plant(
        checkout, "--source=launcher/room.py", "--faults=9", "--tests=all=tests", python=python
    )

    assert "all: noticed by tests/test_room.py::test_the_last_seat" in printed


def test_a_copy_that_is_hidden_is_an_error(checkout: Path, tmp_path: Path) -> None:
    """Not a table that says that no test notices anything."""
    launcher = checkout / "launcher"
    line = f"import sys; sys.path.insert(0, {str(launcher)!r})"

    done = run(
        checkout,
        *("--source=launcher/room.py", "--faults=1", "--tests=all=tests"),
        python=environment(tmp_path / "venv", line),
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"room is imported from {launcher}/room.py, where no fault is planted: take that folder"
        f" out of the environment {tmp_path / 'venv'}\n"
    )


def test_a_seed_draws_the_same_faults_again(checkout: Path) -> None:
    """Another one draws others."""
    first, again, other = (
        plant(checkout, "--source=**/room.py", "--faults=3", f"--seed={seed}") for seed in (1, 1, 2)
    )

    assert first == again != other


@pytest.mark.long
def test_results_in_a_file_are_not_tried_again(checkout: Path, tmp_path: Path) -> None:
    """Unless the checkout has changed."""
    file = tmp_path / "results"
    words = ("--source=launcher/room.py", "--faults=2", "--tests=all=tests", f"--results={file}")
    for git in (["init", "-q"], ["add", "."], [*AS_SOMEBODY, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", checkout, *git], check=True, timeout=60)
    plant(checkout, *words)
    results = [json.loads(line) for line in file.read_text().splitlines()]
    remembered = [[fault, {"all": "what the file says"}] for fault, _ in results]
    file.write_text("".join(f"{json.dumps(each)}\n" for each in remembered))

    again = plant(checkout, *words)
    (checkout / "tests/test_room.py").write_text(f"{TEST}\n")
    changed = plant(checkout, *words)

    assert len(results) == again.count("all: noticed by what the file says") == 2
    assert "what the file says" not in changed


@pytest.mark.long
def test_kinds_of_tests_that_run_only_if_they_are_named(checkout: Path) -> None:
    """What the other tests do not notice may be noticed by one that takes long."""
    words = ("--source=launcher/room.py", "--faults=9", "--tests=all=tests")
    (checkout / "tests/test_long.py").write_text(LONG_TEST)

    without, together = plant(checkout, *words), plant(checkout, *words, "--with=long,hosts")

    assert ("| all | 1 |" in without, "| all | 4 |" in together) == (True, True)
    assert "all: noticed by tests/test_long.py::test_ten_minutes" in together
    refused = run(checkout, *words, "--with=longer")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--with longer: choose from hosts, long, wheel, packages" in refused.stderr


@pytest.mark.long
def test_tests_that_take_too_long_have_noticed(checkout: Path, tmp_path: Path) -> None:
    """A fault may be named, too."""
    (tmp_path / "faults.toml").write_text(FAULTS)
    named = f"--named={tmp_path / 'faults.toml'}"

    printed = plant(checkout, named, "--faults=0", "--seconds=15", "--tests=all=tests")

    assert "noticed by tests/test_room.py::test_the_last_seat, not over after 15 s" in printed


@pytest.mark.parametrize("listed", ["faults_of_forking", "faults_of_policy"])
def test_the_faults_that_a_file_lists_stand_in_the_code(listed: str) -> None:
    """Each exactly once: code that was edited takes its faults along."""
    faults = list(named_faults(ROOT, ROOT / f"scripts/{listed}.toml"))

    assert len({fault.place for fault in faults}) == len(faults)
