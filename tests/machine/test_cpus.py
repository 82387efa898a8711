"""CPUs, cores, packages and caches, from /sys."""

from pathlib import Path

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.machine.cpus import Processors, read_processors
from clusterrun.machine.tree import Tree

from tests.machine_trees import CPUS, MachineFacts, cache_files, write_files, write_tree


def read(root: Path, facts: MachineFacts, allowed: str | None = None) -> Processors:
    affinity = None if allowed is None else CpuSet.parse(allowed)
    return read_processors(Tree(write_tree(root, facts)), affinity)


def lists(sets: tuple[CpuSet, ...]) -> list[str]:
    """Return sets of CPUs in list form."""
    return [str(cpus) for cpus in sets]


@pytest.mark.parametrize(
    ("facts", "allowed", "cores", "packages"),
    [
        # With SMT a core has several CPUs, whose numbers may be far apart.
        (MachineFacts(cores=("0,2", "1,3"), packages=("0-3",)), "0-3", "0,2 1,3", "0-3"),
        # A core has only its CPUs that are online.
        (MachineFacts(online="1-3", cores=("0-1", "2-3"), offline="0"), "1-3", "1 2-3", "1 2-3"),
        # The firmware of some machines does not know the package.
        (MachineFacts(packages=()), "0-3", "0 1 2 3", ""),
        # Ids of packages are only labels: the order is that of their lowest CPUs.
        (MachineFacts(packages=("2-3", "0-1")), "0-3", "0 1 2 3", "0-1 2-3"),
        # A captured process could use these CPUs, of which CPU 9 is not online.
        (MachineFacts(allowed="1-2,9"), "1-2", "0 1 2 3", "0-1 2-3"),
    ],
)
def test_cpus_form_cores_and_packages(
    tmp_path: Path, facts: MachineFacts, allowed: str, cores: str, packages: str
) -> None:
    """Without the affinity of a process, all CPUs that are online are allowed."""
    found = read(tmp_path, facts)

    assert str(found.allowed) == allowed
    assert lists(found.cores) == cores.split()
    assert lists(found.packages) == packages.split()


def test_overlapping_siblings_are_split(tmp_path: Path) -> None:
    """Tables of virtual machines may be inconsistent."""
    write_tree(tmp_path, MachineFacts())
    write_files(
        tmp_path,
        {
            f"{CPUS}/cpu0/topology/thread_siblings_list": "0-1",
            f"{CPUS}/cpu2/topology/thread_siblings_list": "1-2",
        },
    )

    found = read_processors(Tree(tmp_path), None)

    assert lists(found.cores) == ["0-1", "2", "3"]


def test_affinity_adds_to_online_cpus(tmp_path: Path) -> None:
    """Lxcfs may number a container's CPUs from 0."""
    found = read(tmp_path, MachineFacts(online="0-1", nodes={}), allowed="1,6")

    assert str(found.allowed) == "1,6"
    assert str(found.online) == "0-1,6"


@pytest.mark.parametrize(
    ("files", "online"),
    [
        ({}, "0-7"),
        ({"present": "0-7", "offline": "8-63"}, "0-7"),
        ({"present": "0-7", "offline": "6,8-63"}, "0-5,7"),
        ({"present": "0-5", "offline": ""}, "0-5"),
        ({"cpu7/online": "0"}, "0-6"),
    ],
    ids=["list of nodes alone", "all online", "one offline", "absent", "offline by its file"],
)
def test_cpus_hidden_by_lxcfs_are_online(
    tmp_path: Path, files: dict[str, str], online: str
) -> None:
    """Lxcfs shortens the list of online CPUs; lists of nodes are the host's, and may be outdated."""
    write_files(tmp_path, {f"{CPUS}/{name}": text for name, text in files.items()})
    facts = MachineFacts(online="2-3", nodes={0: "0-3", 1: "4-7"})

    found = read(tmp_path, facts)

    assert (str(found.online), str(found.allowed)) == (online, "2-3")


def test_one_cpu_lists_its_whole_package(tmp_path: Path) -> None:
    """The files of most cores need not be read."""
    write_tree(tmp_path, MachineFacts(packages=("0,2", "1,3")))
    for cpu in range(2):
        write_files(
            tmp_path, {f"{CPUS}/cpu{cpu}/topology/core_siblings_list": f"{cpu},{cpu + 2},{cpu + 4}"}
        )
    for cpu in range(2, 4):
        (tmp_path / f"{CPUS}/cpu{cpu}/topology/physical_package_id").unlink()

    found = read_processors(Tree(tmp_path), None)

    assert lists(found.packages) == ["0,2", "1,3"]


def test_cores_are_known_if_any_cpu_lists_its_siblings(tmp_path: Path) -> None:
    """A directory without lists is not enough, as on s390; old kernels have masks only."""
    write_files(tmp_path, {f"{CPUS}/online": "0-3", f"{CPUS}/cpu0/topology/core_id": "0"})
    unknown = read_processors(Tree(tmp_path), None)
    write_files(tmp_path, {f"{CPUS}/cpu1/topology/thread_siblings": "0000000a"})

    known = read_processors(Tree(tmp_path), None)

    assert (unknown.cores_known, lists(unknown.cores)) == (False, ["0", "1", "2", "3"])
    assert unknown.packages == ()
    assert (known.cores_known, lists(known.cores)) == (True, ["0", "1,3", "2"])


def test_l3_is_found_by_level_and_type(tmp_path: Path) -> None:
    """The number of the directory is not the level: s390 has an instruction cache before L3."""
    write_tree(tmp_path, MachineFacts())
    for cpu in range(4):
        half = range(cpu // 2 * 2, cpu // 2 * 2 + 2)
        write_files(
            tmp_path,
            cache_files(cpu, 0, (cpu,), level=1, kind="Data")
            | cache_files(cpu, 3, (cpu,), level=2, kind="Instruction")
            | cache_files(cpu, 4, half)
            | cache_files(cpu, 5, range(4), level=4),
        )

    found = read_processors(Tree(tmp_path), None)

    assert lists(found.caches) == ["0-1", "2-3"]


@pytest.mark.parametrize(
    ("affinity", "isolated", "allowed", "left_out", "excluded_cpus"),
    [
        ("0-3", "2-3", "0-1", "2-3", "2-3"),
        # Only isolated CPUs were asked for.
        ("2-3", "2-3", "2-3", "", "0-1"),
        ("2", "2-3", "2", "", "0-1"),
        # These are of other processes.
        ("0-1", "2-3", "0-1", "", "2-3"),
        (None, "1,9", "0,2-3", "1", "1"),
        ("0-3", "", "0-3", "", ""),
    ],
)
def test_isolated_cpus_are_used_only_if_affinity_has_no_others(
    tmp_path: Path,
    affinity: str | None,
    isolated: str,
    *,
    allowed: str,
    left_out: str,
    excluded_cpus: str,
) -> None:
    """The kernel does not balance threads over them; they are online, and have their cores."""
    write_files(tmp_path, {f"{CPUS}/isolated": isolated})

    found = read(tmp_path, MachineFacts(), affinity)

    assert (str(found.allowed), str(found.isolated)) == (allowed, left_out)
    assert str(found.excluded_cpus) == excluded_cpus
    assert str(found.online) == "0-3"
    assert len(found.cores) == 4


def test_cpus_without_l3_are_in_no_cache(tmp_path: Path) -> None:
    """The low-power cores of Intel's Arrow Lake have an L2 cache, on another die."""
    write_files(tmp_path, cache_files(2, 3, (2, 3), level=2) | cache_files(3, 3, (2, 3), level=2))

    found = read(tmp_path, MachineFacts(packages=("0-3",), caches=("0-1",)))

    assert lists(found.caches) == ["0-1"]


SIBLINGS = ("thread_siblings_list", "thread_siblings", "core_cpus_list", "core_cpus")
AROUND = ("core_siblings_list", "core_siblings", "package_cpus_list", "package_cpus")


@pytest.mark.parametrize(("siblings", "around"), [*zip(SIBLINGS, AROUND, strict=True)])
def test_any_topology_file_name_is_enough(tmp_path: Path, siblings: str, around: str) -> None:
    """Kernels before 5.3 have the first two only; the list was added to the mask in 2.6.26."""
    for cpu in range(4):
        first = cpu // 2 * 2
        core = f"{first}-{first + 1}" if siblings.endswith("_list") else f"{3 << first:08x}"
        package = "0-3" if around.endswith("_list") else "0000000f"
        topology = f"{CPUS}/cpu{cpu}/topology"
        write_files(tmp_path, {f"{topology}/{siblings}": core, f"{topology}/{around}": package})
    # The package of the other CPUs is not asked for.
    write_files(tmp_path, {f"{CPUS}/cpu0/topology/physical_package_id": "0"})
    write_files(tmp_path, {f"{CPUS}/online": "0-3"})

    found = read_processors(Tree(tmp_path), None)

    assert lists(found.cores) == ["0-1", "2-3"]
    assert found.cores_known
    assert lists(found.packages) == ["0-3"]


def test_cache_with_only_a_mask(tmp_path: Path) -> None:
    """There is no shared_cpu_list in trees of old kernels."""
    for cpu in range(4):
        cache = f"{CPUS}/cpu{cpu}/cache/index3"
        mask = "3" if cpu < 2 else "c"
        files = {"level": "3", "type": "Unified", "shared_cpu_map": mask}
        write_files(tmp_path, {f"{cache}/{name}": text for name, text in files.items()})

    found = read(tmp_path, MachineFacts())

    assert lists(found.caches) == ["0-1", "2-3"]
