"""A recording of a machine gives the same machine again."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.generated_machines import machines
from tests.machine.door import (
    READ,
    SEEN,
    USED,
    Archive,
    CpuSet,
    Entry,
    Files,
    Folder,
    NvmlGpu,
    Recorder,
    Tree,
    ask_in_child,
    inspect,
)
from tests.machine_trees import (
    CPUS,
    NODES,
    PCI,
    MachineFacts,
    PciDevice,
    two_nodes,
    write_files,
    write_tree,
)
from tests.real_machines import captured
from tests.rounds import in_all_rounds

GPUS = (
    PciDevice("0000:17:00.0", numa_node=0, uuid="GPU-a", minor=0, behind="pci0000:00/0000:00:01.0"),
    PciDevice("0000:99:00.0", numa_node=-1, uuid="GPU-b", minor=1, local_cpulist="4-7"),
)


WHOLE = NvmlGpu("00000000:17:00.0", "GPU-a", "NVIDIA H100", "4-7")
SLICE = WHOLE._replace(uuid="MIG-1", model="MIG 3g.40gb", parent="GPU-a")


def recorded(files: Files | Path) -> Archive:
    """Return what ``inspect`` reads of a machine."""
    recorder = Recorder(Folder(files) if isinstance(files, Path) else files)
    inspect(recorder, {}, None, "node7")
    return Archive(recorder.recorded())


def expect_the_same(files: Files | Path) -> Archive:
    """Record a machine, and record the recording; both must give the same machine."""
    once = recorded(files)
    again = recorded(once)
    machine = inspect(files, {}, None, "node7")

    assert inspect(once, {}, None, "node7") == machine
    assert Recorder(once).recorded() == Recorder(again).recorded()
    assert inspect(again, {}, None, "node7") == machine
    return once


def test_a_machine_is_replayed_as_it_was(tmp_path: Path) -> None:
    """Links, GPUs that the driver lists, and the modes of their files are kept."""
    root = write_tree(tmp_path, two_nodes(GPUS, allowed="0-5"))
    write_files(tmp_path, {"dev/nvidia0": "", "dev/nvidia1": ""})
    (tmp_path / "dev/nvidia1").chmod(0)

    files = expect_the_same(root)

    machine = inspect(files, {}, None, "node7")
    assert [(gpu.uuid, gpu.numa_node) for gpu in machine.gpus] == [("GPU-a", 0)]
    assert str(machine.allowed) == "0-5"


@pytest.mark.parametrize("name", captured())
def test_real_machines_are_replayed_as_they_were(
    real_machine: Callable[[str], Path], name: str
) -> None:
    """This includes trees that were edited to be hostile."""
    expect_the_same(real_machine(name))


def test_this_machine_is_replayed_as_it_is() -> None:
    """The files are those of the running kernel."""
    recorder = Recorder(Folder(Path("/")))
    allowed = CpuSet(os.sched_getaffinity(0))

    machine = inspect(recorder, {}, allowed, "node7")

    assert inspect(Archive(recorder.recorded()), {}, allowed, "node7") == machine


def test_answers_of_a_driver_are_kept() -> None:
    """NVML can't be asked on another machine."""
    recorder = Recorder(Folder(Path("/")))

    answer = Tree(recorder).answer("nvml", lambda: "two GPUs\nend")
    again = Tree(Archive(recorder.recorded())).answer("nvml", lambda: "none")

    assert answer == again == "two GPUs\nend"


class Running(Folder):
    """A folder that counts as this machine, and whose NVML lists a GPU and a slice."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_live = True

    def answer(self, question: str, ask: Callable[[], str]) -> str:
        assert (question, ask) == ("nvml", ask_in_child)
        return ask_in_child(lambda: (WHOLE, SLICE))


def test_gpus_that_nvml_lists_are_replayed(tmp_path: Path) -> None:
    """Models, MIG slices and nodes that only NVML knows survive two recordings."""
    root = write_tree(tmp_path, two_nodes([PciDevice("0000:17:00.0", uuid="GPU-a", minor=0)]))
    recorder = Recorder(Running(root))
    environ = {"CUDA_VISIBLE_DEVICES": SLICE.uuid}

    live = inspect(recorder, environ, CpuSet(range(8)), "node7")
    archive = Archive(recorder.recorded())
    again = recorded(archive)

    (whole, part) = live.gpus
    assert (whole.model, whole.numa_node, whole.node_source) == (
        "NVIDIA H100",
        1,
        "NVML CPU affinity",
    )
    assert (part.uuid, part.parent) == ("MIG-1", "GPU-a")
    assert live.visible == (part,)
    assert inspect(archive, environ, CpuSet(range(8)), "node7") == live
    assert inspect(again, environ, CpuSet(range(8)), "node7") == live


def test_private_lines_are_not_recorded(tmp_path: Path) -> None:
    """User ids, process names and other mounts are private."""
    group = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"
    write_files(
        tmp_path,
        {
            "proc/self/status": "Name:\tx\nUid:\t1000\nCpus_allowed_list:\t0-1\nMems_allowed_list:\t0",
            "proc/self/mountinfo": f"40 1 0:50 / /home/ada rw - nfs4 files:/ada rw\n{group}",
        },
    )
    recorder = Recorder(Folder(tmp_path))
    tree = Tree(recorder)

    tree.text("proc/self/status")
    tree.text("proc/self/mountinfo")

    entries = recorder.recorded()
    assert entries == {
        "proc/self/status": Entry(b"Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0\n", READ),
        "proc/self/mountinfo": Entry(f"{group}\n".encode(), READ),
    }


def test_what_a_process_may_do_with_a_file_is_kept(tmp_path: Path) -> None:
    """The modes are those of files that are seen, read and used."""
    write_files(tmp_path, {"dev/seen": "", "dev/read": "", "dev/used": ""})
    (tmp_path / "dev/seen").chmod(SEEN)
    (tmp_path / "dev/read").chmod(READ)
    recorder = Recorder(Folder(tmp_path))

    for name in ("seen", "read", "used", "missing"):
        recorder.exists(f"dev/{name}")
        recorder.can_open(f"dev/{name}")
        recorder.may_use(f"dev/{name}")

    entries = recorder.recorded()
    assert {path: entry.mode for path, entry in entries.items() if entry} == {
        "dev/seen": SEEN,
        "dev/read": READ,
        "dev/used": USED,
    }


class Vanishing(Folder):
    """A folder whose files all vanish after a number of reads."""

    def __init__(self, root: Path, looks: int) -> None:
        super().__init__(root)
        self._looks = looks

    def _open(self, path: str, flags: int = 0) -> int:
        self._look(path)
        return super()._open(path, flags)

    def names(self, path: str) -> list[str]:
        self._look(path)
        return super().names(path)

    def _look(self, path: str) -> None:
        self._looks -= 1
        if self._looks < 0:
            raise FileNotFoundError(path)


@pytest.mark.parametrize("looks", range(0, 60, 7))
def test_files_that_vanish_end_no_recording(tmp_path: Path, looks: int) -> None:
    """CPUs can be switched off, and GPUs reset, at any time."""
    root = write_tree(tmp_path, two_nodes(GPUS))
    recorder = Recorder(Vanishing(root, looks))

    machine = inspect(recorder, {}, None, "node7")

    assert inspect(Archive(recorder.recorded()), {}, None, "node7") == machine


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _fill(path: Path) -> None:
    path.write_bytes(b"\xff\xfe rubbish")


def _close(path: Path) -> None:
    path.chmod(0)


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


SPOILERS: tuple[Callable[[Path], None], ...] = (
    Path.unlink,
    _empty,
    _fill,
    _close,
    _make_folder,
    _link_nowhere,
    _link_to_itself,
)


@settings(max_examples=in_all_rounds(40), deadline=None)
@given(data=st.data())
def test_missing_odd_and_unreadable_files_are_replayed(data: st.DataObject) -> None:
    """Files are removed, unreadable, empty, or replaced by folders or broken links."""
    folder = Path(tempfile.mkdtemp())
    try:
        root = write_tree(folder, two_nodes(GPUS, allowed="0-5"))
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for path in data.draw(st.sets(st.sampled_from(files), max_size=12)):
            data.draw(st.sampled_from(SPOILERS))(path)

        expect_the_same(root)
    finally:
        shutil.rmtree(folder)


@settings(
    max_examples=in_all_rounds(25), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(facts=machines())
def test_any_machine_is_replayed(facts: MachineFacts) -> None:
    """Hypothesis draws the machine."""
    with tempfile.TemporaryDirectory() as folder:
        expect_the_same(write_tree(Path(folder), facts))


def test_only_what_is_read_is_kept(tmp_path: Path) -> None:
    """Other files below the root are not recorded."""
    root = write_tree(tmp_path, two_nodes(GPUS))
    write_files(tmp_path, {"home/ada/secret": "x", f"{PCI}/devices/0000:17:00.0/serial": "1234"})
    recorder = Recorder(Folder(root))

    inspect(recorder, {}, None, "node7")

    entries = recorder.recorded()
    tops = {path.partition("/")[0] for path in entries}
    assert tops <= {"sys", "proc", "dev"}
    assert not any("serial" in path for path in entries)
    assert f"{CPUS}/online" in entries
    assert f"{NODES}/node0/cpulist" in entries
