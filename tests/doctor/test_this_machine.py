"""Checks of a machine, on captured values."""

import resource
from collections.abc import Sequence
from pathlib import Path

import pytest
from clusterrun.clients.doctor import this_machine
from clusterrun.clients.doctor.this_machine import Finding, Level
from clusterrun.cpuset import CpuSet
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Gpu, Machine
from clusterrun.machine.tree import Tree
from msgspec.structs import replace

from tests.machine_trees import dgx_a100, write_tree

OWN = {"lo": ("127.0.0.1", "::1"), "eth0": ("10.0.0.5",), "eth1": ("10.1.0.5",)}
INFINITE = resource.RLIM_INFINITY


def levels(findings: Sequence[Finding]) -> dict[str, Level]:
    """Return how bad each thing is."""
    return {finding.what: finding.level for finding in findings}


def test_no_loopback_interface() -> None:
    """Ranks of one node could not meet."""
    [finding] = this_machine.check_loopback("unreachable")

    assert (finding.level, finding.advice) == (Level.FAILURE, "as root: ip link set lo up")
    assert list(this_machine.check_loopback("")) == []


@pytest.mark.parametrize(
    ("addresses", "level"),
    [
        (None, Level.FAILURE),
        ((), Level.WARNING),
        (("127.0.1.1",), Level.WARNING),
        (("10.9.9.9",), Level.FAILURE),
        (("10.0.0.5",), Level.OK),
        (("127.0.0.1", "10.0.0.5"), Level.OK),
    ],
)
def test_the_name_of_the_host(addresses: tuple[str, ...] | None, level: Level) -> None:
    """It must lead to this machine, by an address that other nodes can use."""
    [finding] = this_machine.check_name("n0", addresses, OWN)

    assert finding.level is level
    assert bool(finding.advice) == (level is not Level.OK)


@pytest.mark.parametrize(
    ("variable", "value", "level"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", Level.OK),
        ("NCCL_SOCKET_IFNAME", "=eth0", Level.OK),
        ("NCCL_SOCKET_IFNAME", "=eth", Level.FAILURE),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", Level.OK),
        ("NCCL_SOCKET_IFNAME", "^lo,eth", Level.FAILURE),
        ("NCCL_SOCKET_IFNAME", "ib", Level.FAILURE),
        ("GLOO_SOCKET_IFNAME", "eth0", Level.OK),
        ("GLOO_SOCKET_IFNAME", "eth", Level.FAILURE),
        ("TP_SOCKET_IFNAME", "eth1", Level.OK),
    ],
)
def test_variables_that_name_interfaces(variable: str, value: str, level: Level) -> None:
    """NCCL takes the beginning of a name; gloo takes names."""
    [finding] = this_machine.check_interfaces({variable: value}, tuple(OWN))

    assert (finding.what, finding.level) == (variable, level)


def test_variables_that_are_not_set_are_not_checked() -> None:
    """Libraries find an interface themselves."""
    assert list(this_machine.check_interfaces({"NCCL_SOCKET_IFNAME": ""}, tuple(OWN))) == []


@pytest.mark.parametrize(
    ("files", "processes", "locked", "infiniband", "bad"),
    [
        (1 << 20, INFINITE, INFINITE, True, {}),
        (256, INFINITE, INFINITE, True, {"open files": Level.FAILURE}),
        (1000, 1000, 65536, False, {"open files": Level.WARNING, "processes": Level.WARNING}),
        (1 << 20, INFINITE, 65536, True, {"locked memory": Level.FAILURE}),
    ],
)
def test_limits(
    tmp_path: Path,
    files: int,
    processes: int,
    locked: int,
    *,
    infiniband: bool,
    bad: dict[str, Level],
) -> None:
    """Locked memory matters where there is InfiniBand."""
    if infiniband:
        (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    set_to = {
        resource.RLIMIT_NOFILE: files,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_MEMLOCK: locked,
    }

    found = this_machine.check_limits(Tree(tmp_path), lambda number: (set_to[number], INFINITE))

    assert {
        what: level for what, level in levels(list(found)).items() if level is not Level.OK
    } == bad


@pytest.mark.parametrize(("available", "level"), [(5000, Level.OK), (500, Level.WARNING)])
def test_memory(tmp_path: Path, available: int, level: Level) -> None:
    """Others may have taken it."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 10000 kB\nMemAvailable: {available} kB\n")

    [finding] = this_machine.check_memory(Tree(tmp_path))

    assert finding.level is level


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a healthy machine with eight GPUs, generated below ``tmp_path``."""
    write_tree(tmp_path, dgx_a100())
    return inspect(Tree(tmp_path), {}, None, "n0")


@pytest.mark.parametrize(("quota", "level"), [(None, Level.OK), (4.0, Level.WARNING)])
def test_the_quota_of_cpus(machine: Machine, quota: float | None, level: Level) -> None:
    """A container may see all CPUs and get the time of a few."""
    [finding] = this_machine.check_quota(
        replace(machine, cpu_quota=quota, allowed=CpuSet(range(8)))
    )

    assert finding.level is level


@pytest.mark.parametrize(
    ("governor", "driver", "level"),
    [
        ("performance", "acpi-cpufreq", Level.OK),
        ("powersave", "acpi-cpufreq", Level.WARNING),
        ("powersave", "intel_pstate", Level.OK),
        ("", "", Level.OK),
    ],
)
def test_the_governor(tmp_path: Path, governor: str, driver: str, level: Level) -> None:
    """It is slow with some drivers only; virtual machines show none."""
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_governor").write_text(governor)
    (folder / "scaling_driver").write_text(driver)

    [finding] = this_machine.check_governor(Tree(tmp_path))

    assert finding.level is level


def test_cpus_that_others_use() -> None:
    """The busiest processes are named."""
    [calm] = this_machine.check_load(0.1, ["python (1)"])
    [busy] = this_machine.check_load(0.5, ["python (1)", "ffmpeg (2)"])

    assert calm.level is Level.OK
    assert busy.level is Level.WARNING
    assert "ffmpeg (2)" in busy.found


def test_healthy_gpus(tmp_path: Path, machine: Machine) -> None:
    """One line for all."""
    [finding] = this_machine.check_gpus(Tree(tmp_path), machine, "2.13.0+cu128")

    assert (finding.level, finding.found) == (Level.OK, "8 visible of 8")


def test_a_machine_without_gpus(tmp_path: Path, machine: Machine) -> None:
    """Is none that is ill."""
    bare = replace(machine, gpus=())

    for here, expected in ((bare, "none"), (replace(bare, accelerators="4 TPU"), "4 TPU")):
        [finding] = this_machine.check_gpus(Tree(tmp_path), here, "2.13.0+cpu")
        assert (finding.level, finding.found) == (Level.OK, expected)


def test_faulty_gpus(tmp_path: Path, machine: Machine) -> None:
    """A narrow link, an unknown place, a torch that can't use them, a list cut short."""
    first: Gpu = machine.gpus[0]
    link = tmp_path / "sys/bus/pci/devices" / first.bdf
    (link / "current_link_width").write_text("8\n")
    (link / "max_link_width").write_text("16\n")
    gpus = (first, *(replace(gpu, numa_node=None) for gpu in machine.gpus[1:]))
    ill = replace(machine, gpus=gpus, visible_warning="CUDA_VISIBLE_DEVICES is cut short at 9")

    found = list(this_machine.check_gpus(Tree(tmp_path), ill, "2.13.0+cpu"))

    assert levels(found) == {
        "GPUs": Level.WARNING,
        "torch": Level.FAILURE,
        "NUMA node of GPUs": Level.WARNING,
        f"link of GPU {first.index}": Level.FAILURE,
    }
    assert found[-1].found == "x8 of x16"


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    """Nor one that is missing; of a log folder to be made, its parent is checked."""
    missing = tmp_path / "missing"

    assert this_machine.check_folder("logs", missing, "advice").level is Level.FAILURE
    assert this_machine.check_shared_memory(missing).level is Level.FAILURE
    assert [each.what for each in this_machine.check_folders(tmp_path, missing / "logs")] == [
        f"temporary files ({tmp_path})",
        f"logs ({tmp_path})",
    ]
