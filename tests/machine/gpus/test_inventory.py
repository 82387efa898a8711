"""Which GPUs there are, by each source that may tell it."""

import os
import shutil
import tarfile
from pathlib import Path

import pytest
from clusterrun.machine.captures.packing import read_archive
from clusterrun.machine.gpus.devices import NO_GPUS, Listing
from clusterrun.machine.gpus.inventory import list_addresses, list_gpus
from clusterrun.machine.gpus.nvml import HUNG
from clusterrun.machine.gpus.pci import in_bus_order, normalised
from clusterrun.machine.tree import Files, Tree

from tests.machine_trees import PCI, MachineFacts, PciDevice, write_files, write_tree


def listing(root: Path, *devices: PciDevice) -> Listing:
    """Return what is found on a machine with these devices, which are of one vendor."""
    return listed(write_tree(root, MachineFacts(devices=devices)))


def listed(files: Path | Files) -> Listing:
    """Return what is found in a tree of one vendor's GPUs."""
    found = list_gpus(Tree(files))
    assert len(found) <= 1
    return found[0] if found else NO_GPUS


def pci_gpus(root: Path) -> tuple[str, ...]:
    return list_addresses(Tree(root), list_gpus(Tree(root)))


def addresses(found: Listing) -> list[str]:
    return [device.bdf for device in found.devices]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:17:00.0", "0000:17:00.0"),
        ("00000000:17:00.0", "0000:17:00.0"),
        ("0000:AF:00.1", "0000:af:00.1"),
        ("00010000:e1:00.0", "10000:e1:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("bind", None),
        ("17:00.0", None),
        ("0000:17:00.8", None),
        ("", None),
    ],
)
def test_addresses_match_by_value(text: str, expected: str | None) -> None:
    """NVML writes eight digits of domain, /sys four or more."""
    assert normalised(text) == expected


def test_addresses_sort_by_value() -> None:
    """A domain of five digits is above all of four."""
    shuffled = ["10000:01:00.0", "000a:01:00.0", "0002:ff:1f.1", "0002:ff:1f.0"]

    assert sorted(shuffled, key=in_bus_order) == shuffled[::-1]


def test_the_driver_lists_gpus_with_uuids(tmp_path: Path) -> None:
    """In order of address, whatever their minors are."""
    found = listing(
        tmp_path,
        PciDevice("0000:99:00.0", uuid="GPU-b", minor=0),
        PciDevice("0000:17:00.0", uuid="GPU-a", minor=1),
    )

    assert found.source == "/proc/driver/nvidia"
    assert addresses(found) == ["0000:17:00.0", "0000:99:00.0"]
    assert [device.uuid for device in found.devices] == ["GPU-a", "GPU-b"]


def test_a_gpu_that_may_not_be_opened_is_not_ours(tmp_path: Path) -> None:
    """A container sees all GPUs of its host in /proc, and has /dev/nvidiaN of its own only."""
    write_files(tmp_path, {"dev/nvidia1": ""})

    found = listing(
        tmp_path, PciDevice("0000:17:00.0", minor=0), PciDevice("0000:99:00.0", minor=1)
    )

    assert addresses(found) == ["0000:99:00.0"]


def test_where_nvml_hangs_no_gpu_is_opened(tmp_path: Path) -> None:
    """Opening one might hang us too; the mode of its file has to do."""
    write_files(tmp_path, {"dev/nvidia0": "", "dev/nvidia1": "", "answers/none": ""})
    (tmp_path / "answers/nvml").write_text(HUNG)
    for number, mode in enumerate((0o444, 0o666)):
        (tmp_path / f"dev/nvidia{number}").chmod(mode)

    found = listing(
        tmp_path, PciDevice("0000:17:00.0", minor=0), PciDevice("0000:99:00.0", minor=1)
    )

    assert found.source == "/proc/driver/nvidia (NVML does not answer)"
    assert addresses(found) == ["0000:99:00.0"]


def test_a_driver_without_any_gpu_of_ours_is_the_last_word(tmp_path: Path) -> None:
    """/sys would show the host's GPUs again."""
    write_files(tmp_path, {"dev/null": ""})

    found = listing(tmp_path, PciDevice("0000:17:00.0", minor=0))

    assert addresses(found) == []


def test_all_that_windows_shows_of_a_gpu_is_its_own_device(tmp_path: Path) -> None:
    """WSL 2 has neither the driver nor the bus: NVML alone knows of two GPUs, or of none."""
    write_files(tmp_path, {"dev/dxg": "", "answers/none": ""})
    assert listed(tmp_path) == NO_GPUS
    answer = "".join(f"00000000:0{bus}:00.0\tGPU-{bus}\tRTX 4090\t\t\t\t\n" for bus in (1, 2))
    (tmp_path / "answers/nvml").write_text(f"{answer}end")

    found = listed(tmp_path)

    assert found.source == "NVML"
    assert [device.uuid for device in found.devices] == ["GPU-1", "GPU-2"]
    assert pci_gpus(tmp_path) == ("0000:01:00.0", "0000:02:00.0")


@pytest.mark.parametrize(
    ("vendor", "driver"),
    [("0x1002", "amdgpu"), ("0x10de", "nvidia"), ("0x8086", "xe")],
)
def test_hwloc_keeps_no_more_of_drivers_than_links_to_them(
    tmp_path: Path, vendor: str, driver: str
) -> None:
    """Its archives are packed by bzip2, and have neither the folder of drivers nor KFD's."""
    write_tree(
        tmp_path / "machine",
        MachineFacts(
            devices=[
                PciDevice(bdf, behind="pci0000:00", vendor=vendor, driver=driver)
                for bdf in ("0000:63:00.0", "0000:43:00.0")
            ]
        ),
    )
    drivers = tmp_path / "machine" / PCI / "drivers"
    for link in drivers.glob("*/*"):
        device = link.resolve()
        (device / "driver").symlink_to(os.path.relpath(link.parent, device))
    shutil.rmtree(drivers)
    write_files(tmp_path / "machine", {"proc/driver/nvidia": ""})
    with tarfile.open(tmp_path / "machine.tar.bz2", "w:bz2") as archive:
        archive.add(tmp_path / "machine", "machine")

    for files in (tmp_path / "machine", read_archive(tmp_path / "machine.tar.bz2")):
        found = listed(files)

        assert found.source == "sysfs"
        assert addresses(found) == ["0000:43:00.0", "0000:63:00.0"]


def test_a_driver_that_tells_no_details_names_addresses(tmp_path: Path) -> None:
    """The directory's name is the address."""
    write_files(tmp_path, {"proc/driver/nvidia/gpus/0004:05:00.0/numa_status": "Node: 255"})

    assert addresses(listed(tmp_path)) == ["0004:05:00.0"]


def test_a_tree_of_sys_alone_has_the_driver_s_devices(tmp_path: Path) -> None:
    """What else is in the driver's directory is no device."""
    write_files(tmp_path, {f"{PCI}/drivers/nvidia/bind": "", f"{PCI}/drivers/nvidia/uevent": ""})

    found = listing(tmp_path, PciDevice("0000:99:00.0"), PciDevice("0000:17:00.0"))

    assert found.source == "sysfs"
    assert addresses(found) == ["0000:17:00.0", "0000:99:00.0"]


@pytest.mark.parametrize("pci_class", ["0x040300", "0x0c0330"])
def test_a_gpu_s_audio_and_usb_are_no_gpus(tmp_path: Path, pci_class: str) -> None:
    """Consumer cards carry such devices under the same driver."""
    found = listing(tmp_path, PciDevice("0000:17:00.1", pci_class=pci_class))

    assert addresses(found) == []


@pytest.mark.parametrize("pci_class", ["0x030000", "0x030200", "0x038000", "0x120000"])
def test_amd_gpus_come_by_their_driver(tmp_path: Path, pci_class: str) -> None:
    """Their class varies by model and mode."""
    device = PciDevice("0000:63:00.0", pci_class=pci_class, vendor="0x1002", driver="amdgpu")

    assert addresses(listing(tmp_path, device)) == ["0000:63:00.0"]


def test_without_compute_amd_graphics_are_no_gpus(tmp_path: Path) -> None:
    """A desktop's graphics chip has amdgpu, but no /dev/kfd."""
    write_files(tmp_path, {"dev/null": ""})

    found = listing(tmp_path, PciDevice("0000:63:00.0", vendor="0x1002", driver="amdgpu"))

    assert addresses(found) == []


@pytest.mark.parametrize(
    "device",
    [
        PciDevice("0000:65:00.0", pci_class="0x030000", vendor="0x1a03", driver="ast"),
        PciDevice("0000:65:00.0", pci_class="0x030000", vendor="0x102b", driver=""),
        PciDevice("0000:65:00.0", pci_class="0x030000", vendor="0x1002", driver="radeon"),
        PciDevice("0000:65:00.0", pci_class="0x030200", vendor="0x10de", driver="vfio-pci"),
        PciDevice("0000:65:00.0", pci_class="0x0b4000", vendor="0x8086", driver="qat"),
        PciDevice("0000:65:00.0", pci_class="0x030000", vendor=None, driver=""),
    ],
    ids=["aspeed", "matrox", "old-ati", "lent-to-a-guest", "accelerator", "vendor-unknown"],
)
def test_what_is_no_gpu_to_compute_on_is_none(tmp_path: Path, device: PciDevice) -> None:
    """Management controllers have a VGA, and a GPU may be lent to a virtual machine."""
    assert addresses(listing(tmp_path, device)) == []


@pytest.mark.parametrize("pci_class", ["0x030200", "0x038000", "0x120000"])
def test_a_tree_without_vendors_goes_by_class(tmp_path: Path, pci_class: str) -> None:
    """Topology files of clouds hold no more; no kernel leaves the vendor out."""
    device = PciDevice("0001:00:00.0", pci_class=pci_class, vendor=None, driver="")

    assert addresses(listing(tmp_path, device)) == ["0001:00:00.0"]


def test_models_come_from_the_driver_or_the_bus(tmp_path: Path) -> None:
    """The driver has the product's name, the bus its number."""
    a100 = PciDevice("0000:17:00.0", minor=0, model="NVIDIA A100-SXM4-80GB")
    bare = PciDevice("0000:17:00.0", device="0x20b2")

    named, numbered = listing(tmp_path / "a", a100), listing(tmp_path / "b", bare)

    assert named.devices[0].model == "NVIDIA A100-SXM4-80GB"
    assert numbered.devices[0].model == "10de:20b2"


def test_gpus_of_several_vendors_are_listed_apart(tmp_path: Path) -> None:
    """Each vendor counts its own from 0; NVIDIA's come first."""
    devices = [
        PciDevice("0000:05:00.0", vendor="0x1002", driver="amdgpu"),
        PciDevice("0000:17:00.0", minor=0),
        PciDevice("0000:4d:00.0", vendor="0x8086", driver="xe", pci_class="0x038000"),
        PciDevice(
            "0000:81:00.0", vendor="0x19e5", driver="devdrv_device_driver", pci_class="0x120000"
        ),
    ]

    found = list_gpus(Tree(write_tree(tmp_path, MachineFacts(devices=devices))))

    assert [
        (device.vendor, device.number, device.bdf)
        for listing in found
        for device in listing.devices
    ] == [
        ("nvidia", 0, "0000:17:00.0"),
        ("amd", 0, "0000:05:00.0"),
        ("intel", 0, "0000:4d:00.0"),
        ("huawei", 0, "0000:81:00.0"),
    ]
    assert pci_gpus(tmp_path) == ("0000:05:00.0", "0000:17:00.0", "0000:4d:00.0", "0000:81:00.0")


def test_sites_are_there_for_gpus_that_are_hidden_from_us(tmp_path: Path) -> None:
    """A container sees its host's bus; parts of a GPU and its audio are no GPUs."""
    write_files(tmp_path, {"dev/nvidia1": ""})
    devices = [
        PciDevice("0000:99:00.0", minor=0),
        PciDevice("0000:17:00.0", minor=1),
        PciDevice("0000:17:00.1", pci_class="0x040300"),
        PciDevice("0000:17:00.4", virtual=True),
    ]

    found = listing(tmp_path, *devices)

    assert addresses(found) == ["0000:17:00.0"]
    assert pci_gpus(tmp_path) == ("0000:17:00.0", "0000:99:00.0")


def test_intel_s_cards_count_by_tile(tmp_path: Path) -> None:
    """Level Zero makes each tile a device; built-in graphics don't count."""
    found = listing(
        tmp_path,
        PciDevice("0000:00:02.0", vendor="0x8086", driver="i915", pci_class="0x030000"),
        PciDevice(
            "0000:9a:00.0",
            vendor="0x8086",
            driver="xe",
            pci_class="0x038000",
            device="0x0bd5",
            tiles=2,
        ),
        PciDevice("0000:4d:00.0", vendor="0x8086", driver="xe", pci_class="0x038000"),
    )

    assert [(device.number, device.bdf) for device in found.devices] == [
        (0, "0000:4d:00.0"),
        (1, "0000:9a:00.0"),
        (2, "0000:9a:00.0"),
    ]
    assert found.devices[2].model == "8086:0bd5"
    assert pci_gpus(tmp_path) == ("0000:4d:00.0", "0000:9a:00.0")


def test_intel_s_cards_are_ours_by_their_render_node(tmp_path: Path) -> None:
    """A container has those of its own cards only."""
    write_files(tmp_path, {"dev/dri/renderD129": ""})
    cards = [
        PciDevice(
            f"0000:{bus}:00.0",
            vendor="0x8086",
            driver="i915",
            pci_class="0x038000",
            drm=(f"card{number}", f"renderD{128 + number}"),
        )
        for number, bus in enumerate(("4d", "9a"))
    ]

    assert addresses(listing(tmp_path, *cards)) == ["0000:9a:00.0"]


def test_npus_are_ours_by_their_number_on_the_bus(tmp_path: Path) -> None:
    """A container counts its own from 0."""
    write_files(tmp_path, {"dev/davinci1": "", "dev/davinci3": ""})
    cards = [
        PciDevice(
            f"0000:{bus}:00.0",
            vendor="0x19e5",
            driver="devdrv_device_driver",
            pci_class="0x120000",
        )
        for bus in ("01", "02", "81", "82")
    ]

    found = listing(tmp_path, *cards)

    assert [(device.number, device.bdf) for device in found.devices] == [
        (0, "0000:02:00.0"),
        (1, "0000:82:00.0"),
    ]
