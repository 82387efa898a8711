"""Real machines: captures, and from files outside this repository trees and recommended masks."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from clusterrun.machine.capture import open_capture
from clusterrun.machine.tree import Tree

CAPTURES = Path(__file__).parent / "captures"
"""What ``clusterrun topo --capture`` wrote; UUIDs and names of control groups are made up."""
MACHINES = Path(__file__).parents[2] / "shared/machines"
WITHOUT_MACHINES = "needs the recorded machines, which a clone lacks: docs/contributing.md"
MODES = ("node", "near", "socket", "exclusive")
"""The modes of the table that we have; ``near-exclusive`` is none of ours."""


def each(names: tuple[str, ...], values: Sequence[Sequence[object]]) -> pytest.MarkDecorator:
    """Return the mark for a test of each of these values; it is skipped where machines are missing."""
    missing = pytest.param(*names, marks=pytest.mark.skip(WITHOUT_MACHINES), id="missing")
    return pytest.mark.parametrize(names, values or [missing])


def recommended() -> list[tuple[str, str, list[str]]]:
    """Return machine, mode and the masks of its ranks; [] if the files are missing."""
    table = MACHINES / "recommended-masks.txt"
    if not table.exists():
        return []
    # A row has name, mode, "idle", a share, and the masks with "|" between them.
    rows = [line.split(None, 4) for line in table.read_text().splitlines()]
    return [
        # Some have a remark in parentheses.
        (row[0], row[1], [mask.partition("(")[0].strip() for mask in row[4].split("|")])
        for row in rows
        if len(row) == 5 and row[1] in MODES
    ]


def tree_of(name: str, root: Path) -> Path:
    """Write the tree of a machine and return its root."""
    script, facts = MACHINES / "mkmachines.py", MACHINES / f"json/{name}.json"
    subprocess.run([sys.executable, script, "sysfs", root, facts], timeout=60, check=True)
    return root


def captured() -> list[str]:
    """Return the names of the captures, and of the trees that were copied from machines."""
    files = (*CAPTURES.glob("*.json"), *MACHINES.glob("sysfs/*.tar.xz"))
    return sorted(file.name for file in files)


def tree_at(place: Path) -> Tree:
    """Return the machine of a capture, or of a tree's root."""
    return Tree(place) if place.is_dir() else open_capture(place, "the test", {})[0]


def unpacked(name: str, root: Path) -> Path:
    """Unpack a copied tree below ``root`` and return its own root."""
    archive = MACHINES / "sysfs" / name
    # Some entries are links to nowhere, or devices: tar goes on, as they do not matter here.
    subprocess.run(["tar", "-xJf", archive, "-C", root], timeout=60, check=False)
    (top,) = root.iterdir()
    return top
