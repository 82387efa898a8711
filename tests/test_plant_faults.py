"""The script that plants faults: which it finds in code, and what it prints of the tests."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

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

FAULTS = """
[[fault]]
name = "counts for ever"
path = "launcher/room.py"
before = "    return guests >= seats"
after = "    while guests >= seats: pass"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return the root of one module and its test, which says nothing of ``is_late``."""
    root = tmp_path / "checkout"
    for name, text in {"launcher/room.py": ROOM, "tests/test_room.py": TEST}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return root


def plant(checkout: Path, *words: str) -> str:
    """Return what the script prints."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/plant_faults.py", "--root", checkout, *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {str(it): it.read_bytes() for it in folder.rglob("*") if it.is_file()}


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


def test_a_seed_draws_the_same_faults_again(checkout: Path) -> None:
    """Another one draws others."""
    first, again, other = (
        plant(checkout, "--source=**/room.py", "--faults=3", f"--seed={seed}") for seed in (1, 1, 2)
    )

    assert first == again != other


@pytest.mark.long
def test_tests_that_take_too_long_have_noticed(checkout: Path, tmp_path: Path) -> None:
    """A fault may be named, too."""
    (tmp_path / "faults.toml").write_text(FAULTS)
    named = f"--named={tmp_path / 'faults.toml'}"

    printed = plant(checkout, named, "--faults=0", "--seconds=15", "--tests=all=tests")

    assert "noticed by tests/test_room.py::test_the_last_seat, not over after 15 s" in printed
