"""Machines that hypothesis draws: reading never fails, and what is read fits together."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from clusterrun.cpuset import CpuSet
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Machine
from clusterrun.machine.tree import Tree
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from tests.generated_machines import OCCUR, machines
from tests.machine_trees import MachineFacts, write_tree
from tests.rounds import in_all_rounds

FEW = settings(
    max_examples=in_all_rounds(25), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
MANY = settings(max_examples=2000, phases=[Phase.generate], database=None)

IN_MEMORY = Path("/dev/shm")
"""A machine has hundreds of files; writing them to a disk would take most of the time."""

ODD = (
    None,
    "",
    "-1",
    "x",
    "0-",
    "9-2",
    "0-99999999999",
    "4294967295",
    "\0\0",
    "é",
    "0 0 0",
    "max 0",
    "9" * 5000,
)
"""Contents that replace those of a file; None: the file is removed."""


@contextmanager
def tree_of(facts: MachineFacts) -> Iterator[Path]:
    """Write the tree of a machine, and remove it at the end."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        yield write_tree(Path(folder), facts)


def read(root: Path) -> Machine:
    """Return the machine as a job without options sees it."""
    return inspect(Tree(root), {}, None, "drawn")


def files_of(root: Path) -> list[Path]:
    """Return all files of a tree in order, without links."""
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def test_strategy_draws_every_kind_of_machine() -> None:
    """A test proves nothing about machines that are never drawn."""
    missing = set(OCCUR)

    def is_the_last(facts: MachineFacts) -> bool:
        missing.difference_update(name for name, occurs in OCCUR.items() if occurs(facts))
        return not missing

    with suppress(NoSuchExample):
        find(machines(), is_the_last, settings=MANY, random=Random(3))

    assert missing == set()


@given(machines())
@FEW
def test_drawn_machines_are_read_consistently(facts: MachineFacts) -> None:
    """Each CPU has one core, and each GPU's node exists."""
    with tree_of(facts) as root:
        found = read(root)
        again = read(root)
    online = CpuSet.parse(facts.online)
    ids = {node.id for node in found.nodes if node.cpus}

    assert found == again
    assert found.allowed
    assert found.allowed <= online
    assert sorted(cpu for core in found.cores for cpu in core) == sorted(online)
    assert all(node.cpus <= online for node in found.nodes)
    assert all(gpu.numa_node is None or gpu.numa_node in ids for gpu in found.gpus)
    assert all(gpu.numa_node is None or gpu.numa_node in ids for gpu in found.pci_gpus)
    assert {gpu.bdf for gpu in found.gpus} <= {gpu.bdf for gpu in found.pci_gpus}
    assert len({gpu.vendor for gpu in found.visible}) <= 1


@given(machines(), st.randoms(use_true_random=False), st.sampled_from(ODD))
@FEW
def test_missing_and_malformed_files_are_ignored(
    facts: MachineFacts, choice: Random, text: str | None
) -> None:
    """A captured machine may have been edited, or be incomplete."""
    with tree_of(facts) as root:
        for file in choice.sample(files_of(root), 3):
            if text is None:
                file.unlink()
            else:
                file.write_text(text)

        found = read(root)

    assert found.host == "drawn"
