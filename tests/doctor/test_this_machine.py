"""Checks of a machine, on captured values."""

import resource
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from clusterrun.clients.doctor import this_machine
from clusterrun.clients.doctor.this_machine import Finding, Level
from clusterrun.cpuset import CpuSet
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Gpu, Machine
from clusterrun.machine.tree import Tree
from msgspec.structs import replace

OWN = {"lo": ("127.0.0.1", "::1"), "eth0": ("10.0.0.5",), "eth1": ("10.1.0.5",)}
INFINITE = resource.RLIM_INFINITY

WITH_CUDA = {"__version__": "2.13.0+cu128", "cuda": "12.8", "hip": None}
WITHOUT_GPUS = {"__version__": "2.9.1", "cuda": None, "hip": None}


def levels(findings: Sequence[Finding]) -> dict[str, Level]:
    """Return the level of each finding by its subject."""
    return {finding.what: finding.level for finding in findings}


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
def test_host_name_resolution(addresses: tuple[str, ...] | None, level: Level) -> None:
    """The name must resolve to an address of this machine that other nodes can use."""
    finding = this_machine.check_name("n0", addresses, OWN)

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
def test_interface_variables(variable: str, value: str, level: Level) -> None:
    """NCCL's variable has prefixes, gloo's has whole names."""
    [finding] = this_machine.check_interfaces({variable: value}, tuple(OWN))

    assert (finding.what, finding.level) == (variable, level)


def test_empty_interface_variable_is_not_checked() -> None:
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
def test_resource_limits(
    tmp_path: Path,
    files: int,
    processes: int,
    locked: int,
    *,
    infiniband: bool,
    bad: dict[str, Level],
) -> None:
    """Locked memory matters only with InfiniBand."""
    if infiniband:
        (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    limits = {
        resource.RLIMIT_NOFILE: files,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_MEMLOCK: locked,
    }

    found = this_machine.check_limits(Tree(tmp_path), lambda number: (limits[number], INFINITE))

    assert {
        what: level for what, level in levels(list(found)).items() if level is not Level.OK
    } == bad


@pytest.mark.parametrize(("available", "level"), [(5000, Level.OK), (500, Level.WARNING)])
def test_available_memory(tmp_path: Path, available: int, level: Level) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 10000 kB\nMemAvailable: {available} kB\n")

    assert this_machine.check_memory(Tree(tmp_path)).level is level


@pytest.fixture(scope="module")
def machine(eight_gpus: Path) -> Machine:
    """Return a healthy machine with eight GPUs."""
    return inspect(Tree(eight_gpus), {}, None, "n0")


@pytest.mark.parametrize(
    ("quota", "level"), [(None, Level.OK), (4.0, Level.WARNING), (8.0, Level.OK)]
)
def test_cpu_quota(machine: Machine, quota: float | None, level: Level) -> None:
    """A container may see all CPUs, but have a quota for fewer."""
    limited = replace(machine, cpu_quota=quota, allowed=CpuSet(range(8)))

    assert this_machine.check_quota(limited).level is level


@pytest.mark.parametrize(
    ("governor", "driver", "level"),
    [
        ("performance", "acpi-cpufreq", Level.OK),
        ("powersave", "acpi-cpufreq", Level.WARNING),
        ("powersave", "intel_pstate", Level.OK),
        ("", "", Level.OK),
    ],
)
def test_cpu_governor(tmp_path: Path, governor: str, driver: str, level: Level) -> None:
    """Powersave is slow with some drivers only; virtual machines show no governor."""
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_governor").write_text(governor)
    (folder / "scaling_driver").write_text(driver)

    assert this_machine.check_governor(Tree(tmp_path)).level is level


def test_cpu_load_names_busiest_processes() -> None:
    calm = this_machine.check_load(0.1, ["python (1)"])
    busy = this_machine.check_load(0.5, ["python (1)", "ffmpeg (2)"])

    assert calm.level is Level.OK
    assert busy.level is Level.WARNING
    assert "ffmpeg (2)" in busy.found


def test_healthy_gpus_give_one_finding(tmp_path: Path, machine: Machine) -> None:
    [finding] = this_machine.check_gpus(Tree(tmp_path), machine, WITH_CUDA)

    assert (finding.level, finding.found) == (Level.OK, "8 visible of 8")


def test_machine_without_gpus_is_ok(tmp_path: Path, machine: Machine) -> None:
    bare = replace(machine, gpus=())

    for checked, expected in ((bare, "none"), (replace(bare, accelerators="4 TPU"), "4 TPU")):
        [finding] = this_machine.check_gpus(Tree(tmp_path), checked, WITHOUT_GPUS)
        assert (finding.level, finding.found) == (Level.OK, expected)


def test_gpu_problems_are_separate_findings(tmp_path: Path, machine: Machine) -> None:
    """A narrow PCI link, an unknown NUMA node, a CPU build of torch, an incomplete list of GPUs."""
    first: Gpu = machine.gpus[0]
    link = tmp_path / "sys/bus/pci/devices" / first.bdf
    link.mkdir(parents=True)
    (link / "current_link_width").write_text("8\n")
    (link / "max_link_width").write_text("16\n")
    gpus = (first, *(replace(gpu, numa_node=None) for gpu in machine.gpus[1:]))
    faulty = replace(machine, gpus=gpus, visible_warning="CUDA_VISIBLE_DEVICES is cut short at 9")

    found = list(this_machine.check_gpus(Tree(tmp_path), faulty, WITHOUT_GPUS))

    assert levels(found) == {
        "GPUs": Level.WARNING,
        "torch": Level.FAILURE,
        "NUMA node of GPUs": Level.WARNING,
        f"link of GPU {first.index}": Level.FAILURE,
    }
    assert found[-1].found == "x8 of x16"


def test_missing_folder_fails_unless_it_is_a_new_log_folder(tmp_path: Path) -> None:
    """The parent of a new log folder is checked."""
    missing = tmp_path / "missing"

    assert this_machine.check_folder("logs", missing, "advice").level is Level.FAILURE
    assert this_machine.check_shared_memory(missing).level is Level.FAILURE
    assert [each.what for each in this_machine.check_folders(tmp_path, missing / "logs")] == [
        f"temporary files ({tmp_path})",
        f"logs ({tmp_path})",
    ]


def test_log_folder_that_cannot_be_searched_for(tmp_path: Path) -> None:
    """As with a folder that this user may not search, stat() fails."""
    found = this_machine.check_folders(tmp_path, tmp_path / ("x" * 300) / "logs")

    assert [each.what for each in found] == [f"temporary files ({tmp_path})", f"logs ({tmp_path})"]


def test_variable_that_names_gpus_on_a_machine_without(machine: Machine, tmp_path: Path) -> None:
    """As in a container that was started without GPUs, but with the variable."""
    why = "CUDA_VISIBLE_DEVICES=0, but this process can't open any GPU"
    bare = replace(machine, gpus=(), visible_warning=why)

    [finding] = this_machine.check_gpus(Tree(tmp_path), bare, WITHOUT_GPUS)

    assert (finding.level, finding.found) == (Level.WARNING, why)


def test_slices_are_not_counted_as_gpus(machine: Machine, tmp_path: Path) -> None:
    whole = replace(machine.gpus[0], numa_node=None)
    slices = [replace(whole, uuid=f"MIG-{number}", parent=whole.uuid) for number in range(7)]
    split = replace(machine, gpus=(whole, *slices), visible=tuple(slices[:2]))

    counted, unknown = this_machine.check_gpus(Tree(tmp_path), split, WITH_CUDA)

    assert (counted.found, unknown.found) == ("1 visible of 1", "unknown for GPU 0")


def test_npu_needs_no_build_of_torch(machine: Machine, tmp_path: Path) -> None:
    """torch_npu, another package, adds them."""
    npus = replace(machine, gpus=tuple(replace(gpu, vendor="huawei") for gpu in machine.gpus))

    assert levels(list(this_machine.check_gpus(Tree(tmp_path), npus, WITHOUT_GPUS))) == {
        "GPUs": Level.OK
    }


def test_build_of_torch_is_read_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch-2.9.1.dist-info").mkdir()
    (tmp_path / "torch-2.9.1.dist-info/METADATA").write_text("Name: torch\nVersion: 2.9.1\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("1 / 0")
    version = "__version__ = '2.9.1'\nfrom typing import Optional\ncuda: Optional[str] = '12.8'\n"
    (tmp_path / "torch/version.py").write_text(version)
    monkeypatch.syspath_prepend(tmp_path)

    found = this_machine.torch_build()

    assert (found["__version__"], found["cuda"]) == ("2.9.1", "12.8")


def test_cpu_load_with_offline_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load is that of the allowed CPUs, by their numbers."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu 1 2\ncpu0 1 2\ncpu2 1 2\ncpu4 1 2\nintr 7\n")
    monkeypatch.setattr(psutil, "cpu_percent", lambda *_, **__: [100.0, 10.0, 30.0])

    load, _ = this_machine.cpu_load(Tree(tmp_path), CpuSet({2, 4}))

    assert load == pytest.approx(0.2)
