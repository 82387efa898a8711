"""Reading facts below a root where files may be missing or odd."""

import os
from pathlib import Path

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.machine.tree import KernelAnswers, Tree, parse_cpus, parse_number
from hypothesis import given
from hypothesis import strategies as st

from tests.machine_trees import write_files


@given(st.sets(st.integers(min_value=0, max_value=4096)))
def test_cpu_list_round_trip(cpus: set[int]) -> None:
    """A set of CPUs prints the list that it is read from."""
    assert parse_cpus(str(CpuSet(cpus))) == CpuSet(cpus)


@pytest.mark.parametrize(
    ("mask", "cpus"),
    [
        ("f", "0-3"),
        ("00000000,000aaaa0", "5,7,9,11,13,15,17,19"),
        ("000000ff,ff000000,00000000", "56-71"),
        ("1,00000000", "32"),
        ("0,00000000", ""),
        ("", ""),
        ("no mask", ""),
    ],
)
def test_cpu_masks_are_words_of_32_bits(tmp_path: Path, mask: str, cpus: str) -> None:
    """The highest word is first; a malformed mask has no CPUs."""
    write_files(tmp_path, {"mask": mask})

    assert str(Tree(tmp_path).cpu_map("mask")) == cpus


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("18446744073709551615", 2**64 - 1), ("-1", None), ("", None)]
)
def test_parse_number(text: str, number: int | None) -> None:
    """Python raises an error for thousands of digits."""
    assert parse_number(text) == number
    assert parse_number("9" * 5000) is None


def test_numbers_skips_malformed_names() -> None:
    """A captured machine may have any."""
    names = ("cpu10", "cpu9", f"cpu{'9' * 5000}", "cpufreq", "x1")

    tree = Tree(None, KernelAnswers(names={"cpus": names}))

    assert tree.numbers("cpus", "cpu") == [9, 10]


def test_overlong_mask_is_ignored(tmp_path: Path) -> None:
    """It would take minutes to read one of some megabytes."""
    write_files(tmp_path, {"long": ",".join(["ffffffff"] * 10_000)})

    assert Tree(tmp_path).cpu_map("long") == CpuSet()


def test_trailing_zero_byte_is_stripped(tmp_path: Path) -> None:
    """Some kernels write a zero byte after a list of nodes."""
    write_files(tmp_path, {"online": "0-7\n\0"})

    assert str(Tree(tmp_path).cpu_list("online")) == "0-7"


def test_each_file_is_read_once(tmp_path: Path) -> None:
    """The facts of a machine stay consistent if it changes while it is read."""
    write_files(tmp_path, {"a/file": "1"})
    tree = Tree(tmp_path)
    before = tree.text("a/file"), tree.names("a"), tree.text("a/none"), tree.exists("a/none")

    write_files(tmp_path, {"a/file": "2", "a/none": "3"})

    after = tree.text("a/file"), tree.names("a"), tree.text("a/none"), tree.exists("a/none")
    assert after == before
    assert Tree(tmp_path).text("a/file") == "2"


def test_file_modes_say_what_the_captured_process_could_do(tmp_path: Path) -> None:
    """A container shows devices that its processes may not open; root may open all."""
    write_files(tmp_path, {f"dev/{name}": "x" for name in ("seen", "read", "used")})
    for name, mode in (("seen", 0), ("read", 0o444)):
        (tmp_path / "dev" / name).chmod(mode)
    names = ("seen", "read", "used", "missing")

    folder = Tree(tmp_path)

    for tree in (folder, Tree(None, folder.answers)):
        assert [tree.exists(f"dev/{name}") for name in names] == [True, True, True, False]
        assert [tree.can_open(f"dev/{name}") for name in names] == [False, True, True, False]
        assert [tree.may_use(f"dev/{name}") for name in names] == [False, False, True, False]
        assert [tree.text(f"dev/{name}") for name in names] == ["", "x", "x", ""]


def test_answer_is_called_on_this_machine_only(tmp_path: Path) -> None:
    """Another machine has the answers that were captured."""
    here, folder = Tree(Path("/")), Tree(tmp_path)

    assert here.answer("nvml", lambda: "two GPUs") == "two GPUs"
    assert here.answer("nvml", lambda: "three GPUs") == "two GPUs"
    assert folder.answer("nvml", lambda: "mine") == ""
    assert Tree(None, here.answers).answer("nvml", lambda: "mine") == "two GPUs"


def test_kernel_version_of_a_tree(tmp_path: Path) -> None:
    """A capture has the kernel of its machine; a tree that another tool copied has none."""
    here, folder = Tree(Path("/")), Tree(tmp_path)

    assert (here.kernel(), folder.kernel()) == (os.uname().release, "")
    assert Tree(None, here.answers).kernel() == os.uname().release
    assert Tree(None, folder.answers).kernel() == ""


def test_missing_files_raise_no_error(tmp_path: Path) -> None:
    """No method raises an error for a missing file."""
    tree = Tree(tmp_path)

    assert tree.text("a/b") == ""
    assert tree.integer("a/b") is None
    assert tree.cpu_list("a/b") == CpuSet()
    assert tree.cpu_map("a/b") == CpuSet()
    assert tree.names("a/b") == ()
    assert not tree.exists("a/b")
    assert not tree.can_open("a/b")


def test_unreadable_files_count_as_missing(tmp_path: Path) -> None:
    """A directory instead of a file, bytes that are not UTF-8, and a malformed list."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    write_files(tmp_path, {"list": "3-1"})
    tree = Tree(tmp_path)

    assert tree.text("directory") == ""
    assert tree.integer("bytes") is None
    assert tree.text("a\0b") == ""
    assert tree.cpu_list("list") == CpuSet()


def test_parents_follow_links(tmp_path: Path) -> None:
    """A device in /sys/bus is a link to its real directory."""
    (tmp_path / "sys/devices/pci0/port/gpu").mkdir(parents=True)
    (tmp_path / "sys/bus").mkdir()
    (tmp_path / "sys/bus/gpu").symlink_to("../devices/pci0/port/gpu")

    found = Tree(tmp_path).parents("sys/bus/gpu")

    assert found == ("sys/devices/pci0/port", "sys/devices/pci0", "sys/devices", "sys")


def test_link_out_of_the_tree_is_ignored(tmp_path: Path) -> None:
    """A captured tree never shows facts of the machine that reads it."""
    (tmp_path / "gpu").symlink_to("/sys/devices")

    assert Tree(tmp_path).parents("gpu") == ()
