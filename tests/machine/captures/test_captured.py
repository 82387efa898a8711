"""Opening captured machines: the CPUs and variables of their process, and errors."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.machine.door import (
    FILE,
    CpuSet,
    Entry,
    Fact,
    Source,
    Tree,
    UsageError,
    compress,
    open_captured,
    pack,
    read_notes,
    take_notes,
    write_notes,
)
from tests.machine_trees import CPUS, two_nodes, write_files, write_tree


def opened(root: Path, environ: Mapping[str, str] | None = None) -> Source:
    return open_captured(Fact(root, "--machine-root"), environ or {})


def complaint(root: Path) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        opened(root)
    return caught.value.message, caught.value.hint


def noted(root: Path, environ: dict[str, str], allowed: str) -> Path:
    """Write the tree of a machine that clusterrun captured, with notes on such a process."""
    write_tree(root, two_nodes())
    notes = take_notes(Tree(root), environ, CpuSet.parse(allowed))
    (root / FILE).write_bytes(write_notes(notes))
    return root


def test_a_tree_of_another_tool_has_no_notes(tmp_path: Path) -> None:
    """The CPUs are read from its /proc; the variables for GPUs are those of this process."""
    found = opened(write_tree(tmp_path, two_nodes()), environ={"CUDA_VISIBLE_DEVICES": "1"})

    assert found.allowed is None
    assert found.variables == {"CUDA_VISIBLE_DEVICES": "1"}


def test_a_capture_is_replayed_with_its_own_variables(tmp_path: Path) -> None:
    """The variables for GPUs are those of the captured process; no other variable is captured."""
    mine = {"CUDA_VISIBLE_DEVICES": "7", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "HOME": "/root"}

    root = noted(tmp_path, {"CUDA_VISIBLE_DEVICES": "1,0", "TOKEN": "x"}, "0-3")

    found = opened(root, environ=mine)

    assert str(found.allowed) == "0-3"
    assert found.variables == {"CUDA_VISIBLE_DEVICES": "1,0", "HOME": "/root"}
    assert "TOKEN" not in (tmp_path / FILE).read_text()


def test_notes_survive_being_captured_again(tmp_path: Path) -> None:
    """They describe the machine, not the process that captures it again."""
    tree = Tree(noted(tmp_path, {}, "0-3"))
    first = read_notes(tree)

    assert first is not None
    assert take_notes(tree, {}, CpuSet.parse("0-3")) == first


def test_notes_on_this_machine() -> None:
    """They have its kernel and architecture, and the CPUs of the process."""
    notes = take_notes(Tree(Path("/")), {}, CpuSet((0,)))

    assert notes.kernel
    assert notes.architecture
    assert notes.allowed_cpus == "0"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        (json.dumps({"clusterrun": "9.0"}), "missing required field"),
    ],
)
def test_notes_that_are_damaged(tmp_path: Path, text: str, why: str) -> None:
    """A user may have edited the file."""
    write_tree(tmp_path, two_nodes())
    write_files(tmp_path, {FILE: text})

    message, hint = complaint(tmp_path)

    assert message.startswith(f"--machine-root: {FILE} in {tmp_path} can't be understood: ")
    assert why in message
    assert "clusterrun topo --capture machine.tar.xz" in hint


def test_notes_of_another_version(tmp_path: Path) -> None:
    """The error names that version."""
    noted(tmp_path, {}, "0-3")
    known = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(known | {"format": 2, "clusterrun": "9.0"}))

    assert "it is of clusterrun 9.0" in complaint(tmp_path)[0]


def test_a_folder_without_a_machine(tmp_path: Path) -> None:
    """The user has probably given the wrong folder."""
    message, hint = complaint(tmp_path)

    assert message == (
        f"--machine-root: {tmp_path} is no captured machine: it has neither sys nor proc"
    )
    assert "clusterrun topo --capture machine.tar.xz" in hint


def test_an_archive_without_a_machine(tmp_path: Path) -> None:
    """The archive contains other files."""
    path = tmp_path / "m.tar.gz"
    path.write_bytes(compress(pack("machine", {"home": None}), path.name))

    assert complaint(path)[0].startswith(f"--machine-root: {path} is no captured machine")


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    """The error gives the reason, and the hint the forms of archives."""
    path = tmp_path / "m.tar.xz"
    path.write_text("hello")

    message, hint = complaint(path)

    assert message.startswith(f"--machine-root: {path} is not an archive of a machine: ")
    assert hint.startswith("give a .tar.xz, .tar.gz, .tar.bz2 or .tar, or a folder; to capture ")


def test_an_archive_is_as_good_as_its_folder(tmp_path: Path) -> None:
    """Both give the same texts."""
    path = tmp_path / "m.tar.xz"
    files = {f"{CPUS}/online": "0-3"}
    write_files(tmp_path, files)
    entries = {name: Entry((tmp_path / name).read_bytes()) for name in files}
    path.write_bytes(compress(pack("m", entries), path.name))

    assert Tree(opened(path).files).text(f"{CPUS}/online") == "0-3"
