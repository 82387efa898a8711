"""An archive looks files up as the kernel does, and never outside of itself."""

import pytest

from tests.machine.door import (
    Archive,
    Entry,
    Tree,
)

GPU = "sys/devices/pci0000:00/0000:17:00.0"

FILES = Archive(
    {
        f"{GPU}/numa_node": Entry(b"1\n"),
        "sys/bus/pci/devices/0000:17:00.0": Entry(
            target="../../../devices/pci0000:00/0000:17:00.0"
        ),
        "sys/class/gpu": Entry(target="/sys/bus/pci/devices/0000:17:00.0"),
        "sys/loop": Entry(target="loop"),
        "sys/out": Entry(target="../../etc"),
        "sys/nowhere": Entry(target="devices/missing"),
        "dev/nvidia0": Entry(mode=0o444),
        "dev/nvidia1": Entry(mode=0),
        "dev/kfd": Entry(mode=0o660),
        "proc/driver/nvidia/gpus": None,
    }
)


@pytest.mark.parametrize("place", ["sys/bus/pci/devices/0000:17:00.0", "sys/class/gpu", GPU])
def test_links_are_followed(place: str) -> None:
    """A relative link starts at its own folder, an absolute link at the root of the archive."""
    tree = Tree(FILES)

    assert tree.integer(f"{place}/numa_node") == 1
    assert tree.names(place) == ("numa_node",)
    assert tree.parents(place)[0] == "sys/devices/pci0000:00"


@pytest.mark.parametrize("path", ["sys/loop", "sys/out/passwd", "sys/nowhere", "../etc", "absent"])
def test_what_leads_nowhere_is_missing(path: str) -> None:
    """Such paths are loops, lead out of the archive, or lead to a file that was not captured."""
    tree = Tree(FILES)

    assert tree.text(path) == ""
    assert tree.names(path) == ()
    assert not tree.exists(path)
    assert not tree.can_open(path)
    assert not tree.may_use(path)


def test_names_are_those_of_all_that_is_in_a_folder() -> None:
    """A folder lists files, links and folders; a folder may be empty."""
    tree = Tree(FILES)

    assert tree.names("") == ("dev", "proc", "sys")
    assert tree.names("sys") == ("bus", "class", "devices", "loop", "nowhere", "out")
    assert tree.names("proc/driver/nvidia/gpus") == ()
    assert tree.exists("proc/driver/nvidia/gpus")
    assert tree.can_open("proc")


def test_modes_are_those_of_the_captured_process() -> None:
    """A container shows devices that its processes may not open."""
    tree = Tree(FILES)

    assert [tree.exists(f"dev/nvidia{number}") for number in range(3)] == [True, True, False]
    assert [tree.can_open(f"dev/nvidia{number}") for number in range(3)] == [True, False, False]
    assert [tree.may_use(f"dev/{name}") for name in ("nvidia0", "kfd")] == [False, True]


def test_an_archive_asks_no_driver() -> None:
    """An archive has only the answers of the machine that it was captured on."""
    asked = Archive({"answers/nvml": Entry(b"two GPUs")})

    assert Tree(asked).answer("nvml", lambda: "mine") == "two GPUs"
    assert Tree(FILES).answer("nvml", lambda: "mine") == ""
