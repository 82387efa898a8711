"""Machines that hypothesis draws: reading never fails, and each file changes only its own facts."""

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from tests.generated_machines import OCCUR, machines
from tests.machine.door import (
    CpuSet,
    Gpu,
    Machine,
    Tree,
    inspect,
)
from tests.machine_trees import MachineFacts, write_tree
from tests.rounds import in_all_rounds

FEW = settings(
    max_examples=in_all_rounds(25), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
MANY = settings(FEW, max_examples=in_all_rounds(500))

IN_MEMORY = Path("/dev/shm")
"""A machine has hundreds of files; writing them to a disk would take most of the time."""

ODD = (
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


@pytest.mark.parametrize("name", OCCUR)
def test_what_exists_somewhere_is_among_the_machines(name: str) -> None:
    """A test proves nothing about machines that are never drawn."""
    drawn = settings(max_examples=2000, phases=[Phase.generate], database=None)

    found = find(machines(), OCCUR[name], settings=drawn, random=Random(0))

    assert OCCUR[name](found)


def check_reading(facts: MachineFacts) -> None:
    """Read a machine, and check that its facts are consistent."""
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


@given(machines())
@FEW
def test_what_is_read_fits_together(facts: MachineFacts) -> None:
    """Each CPU has one core, and each GPU's node exists."""
    check_reading(facts)


@pytest.mark.long
@given(machines())
@MANY
def test_what_is_read_fits_together_in_many_machines(facts: MachineFacts) -> None:
    """This repeats the test above with many more machines."""
    check_reading(facts)


def check_file(facts: MachineFacts, choice: Random, change: Callable[[Path], object]) -> None:
    """Change files of a machine one at a time; only the facts of that file may change."""
    with tree_of(facts) as root:
        before = read(root)
        files = files_of(root)
        for file in choice.sample(files, min(6, len(files))):
            content = file.read_bytes()
            change(file)
            after = read(root)
            file.write_bytes(content)
            path = str(file.relative_to(root))
            rest = rest_of(path, before)
            assert rest(after) == rest(before), path


@given(machines(), st.randoms(use_true_random=False))
@FEW
def test_a_missing_file_changes_only_its_own_facts(facts: MachineFacts, choice: Random) -> None:
    """This holds for every file."""
    check_file(facts, choice, Path.unlink)


@pytest.mark.long
@given(machines(), st.randoms(use_true_random=False))
@MANY
def test_a_file_that_is_missing_from_many_machines(facts: MachineFacts, choice: Random) -> None:
    """This repeats the test above with many more machines."""
    check_file(facts, choice, Path.unlink)


@given(machines(), st.randoms(use_true_random=False), st.sampled_from(ODD))
@FEW
def test_a_file_of_nonsense_is_no_error(facts: MachineFacts, choice: Random, text: str) -> None:
    """A captured machine may have been edited, or be incomplete."""
    with tree_of(facts) as root:
        for file in choice.sample(files_of(root), 3):
            file.write_text(text)

        found = read(root)

    assert found.host == "drawn"


Rest = Callable[[Machine], object]


def rest_of(path: str, before: Machine) -> Rest:
    """Return a function that returns the facts of a machine that are not in the file.

    Args:
        path: of the file.
        before: the machine with it: whose core or package a CPU is in, say.

    """
    for pattern, rest in (
        (r"sys/devices/system/cpu/online", _all_but_cpus),
        (r"sys/devices/system/cpu/cpu(\d+)/topology/.*", _other_cores),
        (r"sys/devices/system/cpu/cpu(\d+)/cache/.*", _other_caches),
        (r"sys/devices/system/cpu/cpu(\d+)/online", _all_but_cpus),
        (r"sys/devices/system/node/online", _all_but_places),
        (r"sys/devices/system/node/node(\d+)/(cpulist|distance|meminfo)", _other_nodes),
        (r"sys/bus/pci/devices/([^/]+)/.*", _other_gpus),
        (r"proc/driver/nvidia/gpus/([^/]+)/information", _other_gpus),
        (r"sys/class/kfd/.*", _all_but_amd),
        (r"proc/self/status", _all_but_limits),
        (r"proc/self/cgroup|sys/fs/cgroup/cpu.max", _all_but_quota),
    ):
        found = re.fullmatch(pattern, path)
        if found:
            return lambda machine: rest(machine, before, *found.groups())
    raise AssertionError(path)


def _all_but_cpus(machine: Machine, *_: object) -> object:
    # CPUs that are offline have a directory too, and nodes may list them: they would count.
    return [gpu.uuid for gpu in machine.gpus], machine.cpu_quota


def _other_cores(machine: Machine, before: Machine, number: str) -> object:
    core = _around(before.cores, number)
    package = _around(before.packages, number)
    return (
        {other for other in machine.cores if not other & core},
        {other for other in machine.packages if not other & package},
        [
            machine.allowed,
            machine.nodes,
            machine.caches,
            machine.gpus,
            machine.pci_gpus,
            machine.visible,
            machine.cpu_quota,
        ],
    )


def _other_caches(machine: Machine, before: Machine, number: str) -> object:
    cache = _around(before.caches, number)
    others = {other for other in machine.caches if not other & cache}
    return others, machine.cores, machine.packages, machine.nodes, machine.gpus


def _around(groups: tuple[CpuSet, ...], number: str) -> CpuSet:
    return CpuSet.union_of(group for group in groups if int(number) in group)


def _all_but_places(machine: Machine, *_: object) -> object:
    # Directories of nodes are all there is then, and columns of distances are by online nodes.
    return machine.allowed, machine.cores, machine.packages, machine.caches, _known(machine)


def _other_nodes(machine: Machine, before: Machine, number: str, name: str) -> object:
    others = [node for node in machine.nodes if node.id != int(number)]
    if name == "meminfo":
        return others, _known(machine), [gpu.numa_node for gpu in machine.gpus], machine.cores
    # GPUs may have been there, or may be there now, or may be nowhere else than there.
    elsewhere = [
        gpu.uuid
        for gpu in before.gpus
        if gpu.node_source == "sysfs numa_node" and gpu.numa_node != int(number)
    ]
    placed = [(gpu.uuid, gpu.numa_node) for gpu in machine.gpus if gpu.uuid in elsewhere]
    return others, _known(machine), placed, machine.cores


def _other_gpus(machine: Machine, _before: Machine, bdf: str) -> object:
    others = [
        (gpu.uuid, gpu.bdf, gpu.numa_node, gpu.node_source)
        for gpu in machine.gpus
        if gpu.bdf != bdf
    ]
    pci_gpus = [gpu for gpu in machine.pci_gpus if gpu.bdf != bdf]
    return others, pci_gpus, machine.nodes, machine.cores, machine.packages, machine.allowed


def _all_but_amd(machine: Machine, *_: object) -> object:
    others = [gpu for gpu in machine.gpus if gpu.vendor != "amd"]
    return others, machine.nodes, machine.cores, machine.packages, machine.allowed


def _all_but_limits(machine: Machine, *_: object) -> object:
    # Where only one node was ours, GPUs of unknown place were there.
    nodes = [(node.id, node.cpus, node.distances) for node in machine.nodes]
    return nodes, machine.cores, machine.packages, machine.caches, _known(machine)


def _all_but_quota(machine: Machine, *_: object) -> object:
    return machine.nodes, machine.cores, machine.gpus, machine.pci_gpus, machine.allowed


def _known(machine: Machine) -> list[tuple[str, str, str]]:
    def identity(gpu: Gpu) -> tuple[str, str, str]:
        return gpu.bdf, gpu.uuid, gpu.model

    return [identity(gpu) for gpu in machine.gpus]
