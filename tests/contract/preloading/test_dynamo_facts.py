"""With torch._dynamo imported before the fork, a program finds the same once it has made an optimizer.

The figures of docs/binding.md are from these tests.
"""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from clusterrun.workers.fork_server.preloading.torch_variables import dynamo_reads

from tests.contract.preloading.package_environment import (
    FOLDER,
    RANKS,
    SECONDS_TO_INSTALL,
    SECONDS_TO_RUN,
    python_with_packages,
    run_alone,
    run_launched,
)

pytestmark = [pytest.mark.packages, pytest.mark.timeout(SECONDS_TO_INSTALL + 4 * SECONDS_TO_RUN)]

HARMLESS = {
    r"torch\.distributed\.nn\.(functional\.)?\w+": "a default: the group as it is at the import",
    r"torch\.distributed\._shard\.\S+\.\w*(all_to_all|all_gather|reduce)\w*": "the same functions",
    r"torch\.distributed\._composable\.contract\.(REGISTRY|STATE)_KEY": "drawn at the import",
    r"sympy\.core\.symbol\.Dummy\._base_dummy_index": "drawn at the import",
    r"torch\.cuda\._queued_calls": "where torch was imported, for a message about a lost GPU",
    r"torch\._dynamo\.variables\.torch_function\.banned_attrs": "a set's order, by addresses",
    r"torch\.\S+\.__warningregistry__": "how often the filters of warnings were changed",
}
"""Values that differ, with an explanation. A default of None means the group at the call."""

DIFFERS_BEFORE = {
    *("environment", "exit functions", "libraries", "loggers", "modules", "warning filters"),
    "threads",
}
"""Facts that differ before a program makes its first optimizer or DDP. Threads are those of OpenBLAS: with
several CPUs per rank, they start again when numpy computes."""

Facts = Mapping[str, str]


@pytest.fixture(scope="module")
def python() -> str:
    """Return an interpreter with torch."""
    return python_with_packages()


def program() -> str:
    """Return a program that trains, and records facts before and after."""
    probe = (FOLDER / "probe.py").read_text().partition("import torch\n")[2]
    facts = probe.partition("\nwith open(os.environ")[0].replace("PACKAGE", "torch")
    return (FOLDER / "trains.py").read_text().replace("# PROBE\n", facts)


def test_training_facts_equal_plain_python(python: str, tmp_path: Path) -> None:
    """All values in modules, forked by default and spawned; before training, a few facts differ."""
    (tmp_path / "trains.py").write_text(program())
    fixed = {"PYTHONHASHSEED": "0"}
    run_alone(python, ["trains.py"], tmp_path, {**fixed, "PROBE_FILE": str(tmp_path / "alone")})
    ended = {
        way: run_launched(
            python, [*words, "trains.py"], tmp_path, {**fixed, "PROBE_FILE": str(tmp_path / way)}
        )
        for way, words in {"auto": (), "spawn": ("--start-method", "spawn")}.items()
    }

    before, after = (
        {way: different(tmp_path, "alone", way, when) for way in ended}
        for when in ("before", "after")
    )

    assert re.search(r"preloaded: .*torch\._dynamo \(", ended["auto"].err)
    assert after == {"auto": set(), "spawn": set()}
    assert before["spawn"] == set()
    assert {name.partition(" torch.")[0] for name in before["auto"]} <= {*DIFFERS_BEFORE, "value"}
    assert len(facts_of(tmp_path, "auto", "after", 0)) > 100_000


def different(folder: Path, one: str, other: str, when: str) -> set[str]:
    """Return the facts that differ on any rank, unless they differ by rank in both or are harmless."""
    found = set[str]()
    ranks = range(RANKS)
    ones, others = ([facts_of(folder, way, when, rank) for rank in ranks] for way in (one, other))
    for name in {name for facts in (*ones, *others) for name in facts}:
        values, now = ({facts.get(name) for facts in each} for each in (ones, others))
        by_rank = len(values) == len(now) > 1
        is_harmless = any(re.fullmatch(f"value {it}", name) for it in HARMLESS)
        if values != now and not by_rank and not is_harmless:
            found.add(name)
    return found


def facts_of(folder: Path, way: str, when: str, rank: int) -> Facts:
    """Return what a rank has recorded."""
    file = folder / f"{way}_{when}_{rank}"
    facts: Facts = json.loads(file.read_text().replace(str(folder / way), "FILE"))
    return facts


READS_OF = """
import os, sys
import torch

class Watched(type(os.environ)):
    def __getitem__(self, name):
        used.add(name)
        return super().__getitem__(name)

    def __setitem__(self, name, value):
        used.add(name)
        super().__setitem__(name, value)

    def __delitem__(self, name):
        used.add(name)
        super().__delitem__(name)

    def __iter__(self):
        used.add("all of them")
        return super().__iter__()

used = set()
os.environ.__class__ = Watched
import torch._dynamo
os.environ.__class__ = Watched.__mro__[1]
print("\\n".join(sorted(used)))
"""


def test_dynamo_import_uses_only_listed_variables(python: str) -> None:
    """If a script sets one of these, each worker imports torch._dynamo."""
    done = subprocess.run(
        [python, "-c", READS_OF], check=True, capture_output=True, text=True, timeout=SECONDS_TO_RUN
    )

    used = done.stdout.split("\n")[:-1]

    assert len(used) > 100
    assert [name for name in used if not dynamo_reads(name)] == []
