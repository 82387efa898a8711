"""Popular packages at the top of a script: a program finds the same with each start method.

The table in docs/reference/packages.md has the results of these tests.
"""

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from clusterrun.workers.fork_server.preloading.packages import (
    FORK_SAFE,
    LEFT_TO_WORKERS,
)

from tests.contract.leading_names import leading_names
from tests.contract.preloading.package_environment import (
    FOLDER,
    RANKS,
    REQUIREMENTS,
    ROOT,
    SECONDS_TO_INSTALL,
    SECONDS_TO_RUN,
    python_with_packages,
    run_alone,
    run_launched,
)

TABLE = ROOT / "docs/reference/packages.md"

WAYS = ("auto", "named", "spawn")

OF_NO_CONSEQUENCE = {
    "value joblib._multiprocessing_helpers.name": "of a semaphore that is removed at once",
    "value spacy.lang.tokenizer_exceptions.orth": "the last of a set, by hashes; in docs/binding.md",
    "value transformers.utils.hub.SESSION_ID": "drawn at the import; in docs/workers.md",
}
"""Facts that a fork may change, and their meaning."""

Facts = Mapping[str, str]


class Package(NamedTuple):
    """The module that a script imports, and the requirement that is installed for it."""

    module: str
    requirement: str


def packages() -> list[Package]:
    """Return the packages of the requirements file, in its order."""
    lines = REQUIREMENTS.read_text().splitlines()
    rows = [line.partition("  # import ") for line in lines if line and not line.startswith("#")]
    return [Package(module, requirement) for requirement, _, module in rows if module]


@pytest.fixture(scope="module")
def python() -> str:
    """Return an interpreter with all packages."""
    return python_with_packages()


class Compared(NamedTuple):
    """The result of one set of options: start method, reason, and what differs from Python alone."""

    chosen: str
    differences: list[str]


class Comparison:
    """One package with all sets of options."""

    def __init__(self, package: Package, python: str, folder: Path) -> None:
        self.python = python
        self.folder = folder
        text = (FOLDER / "probe.py").read_text().replace("PACKAGE", package.module)
        (folder / "probe.py").write_text(text)
        self.options = {
            "auto": (),
            "named": ("--preload", ",".join(leading_names(text))),
            "spawn": ("--start-method", "spawn"),
        }

    @functools.cached_property
    def alone(self) -> list[Facts]:
        """Return the facts of each rank under Python alone.

        From the second run: at its first import, matplotlib reads all fonts and caches a list.
        """
        for _ in range(2):
            run_alone(self.python, ["probe.py"], self.folder, self._file("alone"))
        return self._facts("alone")

    def compare(self, way: str) -> Compared:
        """Run the package's script with one set of options and compare."""
        # First: it keeps what a package makes at its first import.
        alone = self.alone
        words = [*self.options[way], "probe.py"]
        ended = run_launched(self.python, words, self.folder, self._file(way))
        return Compared(_choice(ended.err), differences(alone, self._facts(way)))

    def _file(self, way: str) -> dict[str, str]:
        return {"PROBE_FILE": str(self.folder / way)}

    def _facts(self, way: str) -> list[Facts]:
        return read_facts(self.folder / way)


def read_facts(start: Path) -> list[Facts]:
    """Return the facts of each rank from their files, whose names are ``start`` and the rank."""
    files = [Path(f"{start}{rank}") for rank in range(RANKS)]
    return [json.loads(file.read_text().replace(str(start), "FILE")) for file in files]


def _choice(err: str) -> str:
    """Return the start method and its reason, as ``-v`` prints them."""
    spawned = re.search(r"workers are spawned: (.*)", err)
    if spawned:
        # An address, a file, or the first of several threads follows it; then what it costs.
        return "spawn: " + re.sub(r"( \(|; all ).*", "", spawned[1])
    if "workers are forked" not in err:
        each_itself = re.search(r"clusterrun: (.*), so each of ", err)
        return f"spawn: {each_itself[1]}" if each_itself else "spawn, as asked for"
    left = re.search(r"left to each worker: (.*)", err)
    return "fork" + (f"; left to each worker: {left[1]}" if left else "")


def differences(alone: list[Facts], launched: list[Facts]) -> list[str]:
    """Return the facts that differ, with both values; both must agree whether ranks differ."""
    found = []
    for name in dict.fromkeys(name for facts in (*alone, *launched) for name in facts):
        before = {facts.get(name, "") for facts in alone}
        now = {facts.get(name, "") for facts in launched}
        if len(before) > 1 and not name.startswith(("each ", "value ")):
            # A thread of the package may still be importing, so that ranks differ.
            continue
        if name in OF_NO_CONSEQUENCE or (
            len(before) == len(now) and (len(now) > 1 or before == now)
        ):
            continue
        found.append(f"{name}: {_shortest(before, now)}")
    return found


def _shortest(before: set[str], now: set[str]) -> str:
    one, other = min(before), min(now)
    if len(before) != len(now):
        return f"{len(before)} values on {RANKS} ranks alone, {len(now)} launched: {one[:80]}"
    start = next(
        (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0
    )
    return f"{one[max(0, start - 30) :][:120]} became {other[max(0, start - 30) :][:120]}"


def row(package: Package, found: Mapping[str, Compared]) -> str:
    """Return a package's row of the table.

    Of the differences, only the names are the same each time; and of several reasons against a
    fork with these imports, any may be found first.
    """
    names = [difference.partition(": ")[0] for difference in found["named"].differences]
    differ = ", ".join(names) or "equal"
    named, _, _ = found["named"].chosen.partition(":")
    cells = [f"`{package.module}`", package.requirement, found["auto"].chosen, named, differ]
    return f"| {' | '.join(cells)} |"


@pytest.mark.packages
@pytest.mark.timeout(SECONDS_TO_INSTALL + 5 * SECONDS_TO_RUN)
@pytest.mark.parametrize("package", packages(), ids=lambda package: package.module)
def test_facts_equal_plain_python(python: str, package: Package, tmp_path: Path) -> None:
    """About sixty facts of its process; with ``--preload MODULE``, the table lists the differences."""
    comparison = Comparison(package, python, tmp_path)

    found = {way: comparison.compare(way) for way in WAYS}

    assert found["auto"].differences == found["spawn"].differences == []
    assert row(package, found) in TABLE.read_text().splitlines()


def test_each_package_has_a_row() -> None:
    """At least sixty, and none that is no longer compared."""
    names = re.findall(r"^\| `(\S+)` ", TABLE.read_text(), re.MULTILINE)

    assert names == [package.module for package in packages()]
    assert len(names) >= 60


def test_verified_list_has_rows() -> None:
    """A package is on the list only if it is in the table."""
    compared = {package.module.partition(".")[0] for package in packages()}
    parts_of_lightning = {"lightning_fabric", "pytorch_lightning"}

    assert compared >= FORK_SAFE
    assert compared | parts_of_lightning >= LEFT_TO_WORKERS.keys()
