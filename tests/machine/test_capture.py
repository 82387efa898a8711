"""A capture restores the same machine, has nothing private, and is untrusted input."""

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.errors import UsageError
from clusterrun.machine.capture import MAX_SIZE, encode_capture, open_capture
from clusterrun.machine.gpus.nvml import run_query
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Hints, Machine, PciGpu
from clusterrun.machine.tree import KernelAnswers, Tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from tests.generated_machines import machines
from tests.machine.nvml_answers import part, whole
from tests.machine_trees import MachineFacts, PciDevice, two_nodes, write_files, write_tree
from tests.real_machines import captured, tree_at
from tests.rounds import in_all_rounds

GPUS = (
    PciDevice("0000:17:00.0", numa_node=0, uuid="GPU-a", minor=0, behind="pci0000:00/0000:00:01.0"),
    PciDevice("0000:99:00.0", numa_node=-1, uuid="GPU-b", minor=1, local_cpulist="4-7"),
)
WHOLE = whole(0, "GPU-a", "0000:17:00.0", "NVIDIA H100", Hints("4-7"))
SLICE = replace(part(WHOLE, "MIG-1"), model="MIG 3g.40gb")


def opened(
    root: Path, environ: Mapping[str, str] | None = None
) -> tuple[Tree, CpuSet | None, Mapping[str, str]]:
    return open_capture(root, "--machine-root", environ or {})


def replayed(content: bytes) -> Tree:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        Path(file.name).write_bytes(content)
        return opened(Path(file.name))[0]


def expect_the_same(
    tree: Tree, allowed: CpuSet | None = None, environ: Mapping[str, str] | None = None
) -> Machine:
    """Capture a machine, and capture its replay; both are the same machine, and the same file."""
    machine = inspect(tree, environ or {}, allowed, "node7")
    once = encode_capture(tree, {}, CpuSet())
    again = replayed(once)

    assert inspect(again, environ or {}, allowed, "node7") == machine
    assert encode_capture(again, {}, CpuSet()) == once
    return machine


def test_captured_tree_is_replayed(tmp_path: Path) -> None:
    """Links, GPUs that the driver lists, and whether their files could be opened are kept."""
    root = write_tree(tmp_path, two_nodes(GPUS, allowed="0-5"))
    write_files(tmp_path, {"dev/nvidia0": "", "dev/nvidia1": ""})
    (tmp_path / "dev/nvidia1").chmod(0)

    machine = expect_the_same(Tree(root))

    assert [(gpu.uuid, gpu.numa_node) for gpu in machine.gpus] == [("GPU-a", 0)]
    assert str(machine.allowed) == "0-5"


@pytest.mark.parametrize("name", captured())
def test_recorded_machines_are_replayed(real_machine: Callable[[str], Path], name: str) -> None:
    """This includes trees that were edited to be hostile."""
    expect_the_same(tree_at(real_machine(name)))


def test_this_machine_is_replayed() -> None:
    """The files are those of the running kernel, which is noted with the architecture."""
    tree = Tree(Path("/"))

    expect_the_same(tree, CpuSet(os.sched_getaffinity(0)))

    assert tree.answers.answer["kernel"] == os.uname().release
    assert tree.answers.answer["architecture"] == os.uname().machine


def test_capture_has_kernel_version() -> None:
    """Where there are GPUs, no question about the machine needs it."""
    capture = json.loads(encode_capture(Tree(Path("/")), {}, CpuSet()))

    kernel, architecture = os.uname().release, os.uname().machine
    assert capture["answers"]["answer"] == {"architecture": architecture, "kernel": kernel}


def test_gpus_that_nvml_lists_are_replayed(tmp_path: Path) -> None:
    """Models, MIG slices and nodes that only NVML knows are in its answer."""
    root = write_tree(tmp_path, two_nodes([PciDevice("0000:17:00.0", uuid="GPU-a", minor=0)]))
    nvml = run_query(lambda: (WHOLE, SLICE))
    tree = Tree(root, KernelAnswers(answer={"nvml": nvml}))

    live = expect_the_same(tree, CpuSet(range(8)), {"CUDA_VISIBLE_DEVICES": SLICE.uuid})

    (gpu, its_slice) = live.gpus
    assert (gpu.model, gpu.numa_node, gpu.node_source) == (
        "NVIDIA H100",
        1,
        "NVML CPU affinity",
    )
    assert (its_slice.uuid, its_slice.parent, its_slice.numa_node) == ("MIG-1", "GPU-a", 1)
    assert live.pci_gpus == (PciGpu("0000:17:00.0", 1),)
    assert live.visible == (its_slice,)


class Vanishing(Tree):
    """A machine whose files are all gone after a number of questions."""

    def __init__(self, root: Path, looks: int) -> None:
        super().__init__(root)
        self._root, self._looks = root, looks

    def text(self, path: str) -> str:
        self._look()
        return super().text(path)

    def names(self, path: str) -> tuple[str, ...]:
        self._look()
        return super().names(path)

    def _look(self) -> None:
        self._looks -= 1
        if self._looks < 0:
            shutil.rmtree(self._root, ignore_errors=True)


@pytest.mark.parametrize("looks", range(0, 60, 7))
def test_vanishing_files_do_not_fail_a_capture(tmp_path: Path, looks: int) -> None:
    """CPUs can be switched off, and GPUs reset, at any time."""
    expect_the_same(Vanishing(write_tree(tmp_path / "machine", two_nodes(GPUS)), looks))


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link_to(target: str) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        path.unlink()
        path.symlink_to(target or path.name)

    return link


SPOILERS: tuple[Callable[[Path], object], ...] = (
    Path.unlink,
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"\xff\xfe rubbish"),
    lambda path: path.chmod(0),
    lambda path: path.with_name(os.fsdecode(b"cpu\xff")).touch(),
    _make_folder,
    _link_to("nowhere"),
    _link_to(""),
)


@settings(
    max_examples=in_all_rounds(30), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(machines(), st.data())
def test_drawn_machines_are_replayed(facts: MachineFacts, data: st.DataObject) -> None:
    """Files are removed, unreadable, empty, or replaced by folders or broken links."""
    with tempfile.TemporaryDirectory() as folder:
        root = write_tree(Path(folder), facts)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for path in data.draw(st.sets(st.sampled_from(files), max_size=12)):
            data.draw(st.sampled_from(SPOILERS))(path)

        expect_the_same(Tree(root))


def test_capture_has_only_what_was_read(tmp_path: Path) -> None:
    """Private lines of two files are removed: user ids, names of processes, other mounts."""
    group = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"
    status = "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0"
    root = write_tree(tmp_path, two_nodes(GPUS))
    write_files(
        root,
        {
            "home/ada/secret": "x",
            "sys/bus/pci/devices/0000:99:00.0/serial": "1234",
            "proc/self/status": f"Name:\tx\nUid:\t1000\n{status}",
            "proc/self/mountinfo": f"40 1 0:50 / /home/ada rw - nfs4 files:/ada rw\n{group}",
        },
    )
    tree = Tree(root)
    inspect(tree, {}, None, "node7")

    content = encode_capture(tree, {"HOME": "/root", "CUDA_VISIBLE_DEVICES": "1"}, CpuSet())

    text = json.loads(content)["answers"]["text"]
    assert text["proc/self/status"] == status
    assert text["proc/self/mountinfo"] == group
    assert {path.partition("/")[0] for path in text} == {"sys", "proc"}
    assert not any(word in content for word in (b"secret", b"serial", b"ada", b"/root", b"node7"))


def test_capture_is_deterministic(tmp_path: Path) -> None:
    """The order of the questions, and the time, are not in it."""
    tree = Tree(write_tree(tmp_path, two_nodes(GPUS)))
    inspect(tree, {}, None, "node7")
    backwards = {
        name: dict(reversed(known.items())) for name, known in asdict(tree.answers).items()
    }

    again = Tree(None, KernelAnswers(**backwards))

    assert encode_capture(again, {}, CpuSet()) == encode_capture(tree, {}, CpuSet())


def test_capture_has_no_host_or_user_names(tmp_path: Path) -> None:
    """In /dev, as of volume groups; in the mounts of a chroot, which has a /proc of its own."""
    root = write_tree(tmp_path, two_nodes())
    mounts = "22 1 0:21 / /proc rw - proc proc rw\n23 1 0:22 / /home/alice/root/proc rw - proc p rw"
    write_files(
        root,
        {
            "proc/self/mountinfo": mounts,
            "sys/bus/pci/drivers/neuron-driver/bind": "",
            "dev/vg-of-alice": "",
            "dev/neuron0": "",
        },
    )
    tree = Tree(root)
    inspect(tree, {}, None, "")
    tree.text("proc/self/mountinfo")

    content = encode_capture(tree, {}, CpuSet()).decode()

    assert "alice" not in content
    assert "/ /proc rw" in content
    assert "neuron0" in content


def test_replay_uses_captured_variables(tmp_path: Path) -> None:
    """The variables for GPUs are those of the captured process; no other is set by a file."""
    tree = Tree(write_tree(tmp_path / "machine", two_nodes()))
    content = encode_capture(tree, {"CUDA_VISIBLE_DEVICES": "1,0"}, CpuSet.parse("0-3"))
    document = json.loads(content)
    document["variables"]["LD_PRELOAD"] = "evil.so"
    (tmp_path / "m.json").write_text(json.dumps(document))
    mine = {"CUDA_VISIBLE_DEVICES": "7", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "HOME": "/root"}

    _, allowed, variables = opened(tmp_path / "m.json", mine)

    assert str(allowed) == "0-3"
    assert variables == {"CUDA_VISIBLE_DEVICES": "1,0", "HOME": "/root"}


def test_folder_uses_our_variables(tmp_path: Path) -> None:
    """Another tool captured it: the CPUs are read from its /proc."""
    root = write_tree(tmp_path, two_nodes(allowed="0-5"))

    tree, allowed, variables = opened(root, {"CUDA_VISIBLE_DEVICES": "1"})

    assert allowed is None
    assert str(inspect(tree, variables, allowed, "n").allowed) == "0-5"
    assert variables == {"CUDA_VISIBLE_DEVICES": "1"}


GOOD: dict[str, Any] = {
    "format": 2,
    "clusterrun": "1.0",
    "allowed_cpus": "0-3",
    "variables": {},
    "answers": {"text": {"sys/devices/system/cpu/online": "0-3"}},
}


WRONG: dict[str, tuple[bytes | dict[str, Any], str]] = {
    "empty": (b"", "Expecting value"),
    "binary": (b"\x7fELF\xff", "can't decode"),
    "script": (b"print('hello')", "Expecting value"),
    "list": (b"[]", "Expected `object`, got `array`"),
    "deep": (b"[" * 100_000, "recursion"),
    "digits": (b"9" * 10_000, "4300 digits"),
    "foreign": (b'{"a": 1}', "missing required field `format`"),
    "older": (
        {"format": 1},
        "clusterrun 1.0 wrote it, in a format that this version does not know",
    ),
    "newer": ({"format": 3, "answers": []}, "clusterrun 1.0 wrote it, in a format"),
    "format": ({"format": True}, "Expected `int`, got `bool`"),
    "cpus": ({"allowed_cpus": "many"}, "invalid literal"),
    "range": ({"allowed_cpus": "0-99999999"}, "is not a range of CPUs"),
    "variable": ({"variables": {"A": 1}}, "Expected `str`, got `int` - at `$.variables[...]`"),
    "text": ({"answers": {"text": {"a": 1}}}, "at `$.answers.text[...]`"),
    "names": ({"answers": {"names": {"a": "b"}}}, "Expected `array`, got `str`"),
    "exists": ({"answers": {"exists": {"a": None}}}, "Expected `bool`, got `null`"),
    "escape": ({"format": 3, "clusterrun": "\x1b[2J"}, "clusterrun ?[2J wrote it"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_capture_is_an_error(tmp_path: Path, name: str) -> None:
    """It may be damaged, edited, foreign, or of a newer version."""
    content, why = WRONG[name]
    path = tmp_path / "m.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(GOOD | content).encode())

    with pytest.raises(UsageError) as caught:
        opened(path)

    assert caught.value.message.startswith(f"--machine-root: {path} is not a captured machine: ")
    assert why in caught.value.message
    assert "clusterrun topo --capture machine.json" in caught.value.hint
    assert caught.value.exit_code == 2


@settings(max_examples=in_all_rounds(100), deadline=None)
@given(data=st.data())
def test_damaged_capture_is_read_or_rejected(data: st.DataObject) -> None:
    """After any change of bytes, opening and inspecting it raises only ``UsageError``."""
    content = bytearray(capture_of_two_nodes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.just(len(content)) | st.integers(0, len(content)))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        Path(file.name).write_bytes(content[:end])

        try:
            damaged, allowed, variables = opened(Path(file.name))
        except UsageError:
            return
        assert inspect(damaged, variables, allowed, "node7").host == "node7"


@functools.cache
def capture_of_two_nodes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(write_tree(Path(folder), two_nodes(GPUS, allowed="0-5")))
        inspect(tree, {}, None, "node7")
        return encode_capture(tree, {"CUDA_VISIBLE_DEVICES": "0"}, CpuSet((0, 1)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("sys/devices/system/node/node0/cpumap", ",".join(["ffffffff"] * 3000)),
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", 400 * "9"),
        ("answer nvml", '[{"index":0,"bdf":"\ud800"}]'),
        ("variable CUDA_VISIBLE_DEVICES", 5000 * "1"),
    ],
)
def test_hostile_values_are_ignored(path: str, text: str) -> None:
    """Numbers, masks and characters that no kernel, driver or user writes."""
    gpu = {"index": 0, "bdf": "0000:17:00.0", "vendor": "nvidia", "listed_by": "NVML"}
    files = {
        "proc/self/cgroup": "4:cpu:/",
        "proc/self/mountinfo": "33 32 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }
    kind, _, name = path.partition(" ")
    said = {"nvml": text if kind == "answer" else json.dumps([gpu])}
    tree = Tree(
        None,
        KernelAnswers(
            text=files | ({} if name else {path: text}),
            exists={"proc/driver/nvidia": True},
            answer=said,
        ),
    )

    found = inspect(tree, {name: text} if kind == "variable" else {}, CpuSet(range(4)), "n")

    assert found.cpu_quota is None
    assert found.visible == () or kind not in {"answer", "variable"}


def test_huge_file_is_rejected(tmp_path: Path) -> None:
    """No more than the limit of it is."""
    path = tmp_path / "m.json"
    with path.open("wb") as file:
        file.truncate(MAX_SIZE * 1000)

    with pytest.raises(
        UsageError, match=r"m\.json is not a captured machine: it has more than 64 MiB"
    ):
        opened(path)


def test_valid_capture_is_accepted(tmp_path: Path) -> None:
    """The changes of the test above are all that is wrong there."""
    (tmp_path / "m.json").write_text(json.dumps(GOOD))

    tree, allowed, _ = opened(tmp_path / "m.json")

    assert str(inspect(tree, {}, allowed, "n").allowed) == "0-3"


@pytest.mark.parametrize("kind", ["tar", "gztar", "bztar", "xztar"])
def test_archive_is_rejected_with_a_hint(tmp_path: Path, kind: str) -> None:
    """Archives of hwloc's gather-topology have a folder that can be read."""
    write_tree(tmp_path / "in/machine", two_nodes())
    path = Path(shutil.make_archive(str(tmp_path / "m"), kind, tmp_path / "in"))

    with pytest.raises(UsageError) as caught:
        opened(path)

    assert caught.value.message == f"--machine-root: {path} is an archive"
    assert caught.value.hint.startswith("unpack it with tar -xf, and give the folder that has ")
    assert caught.value.hint.endswith("\n  clusterrun topo --capture machine.json")


def test_unreadable_path_is_rejected(tmp_path: Path) -> None:
    """It is a folder without a machine, or a file that has gone meanwhile."""
    with pytest.raises(UsageError, match="it has neither sys nor proc"):
        opened(tmp_path)
    with pytest.raises(UsageError, match=r"gone\.json can't be read: No such file"):
        opened(tmp_path / "gone.json")
