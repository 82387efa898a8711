"""clusterrun topo on this machine, on captured and on generated machines."""

import json
import os
import pty
import re
import subprocess
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.captured import captured
from tests.contract.launched import COMMAND, Launcher, plain_environment
from tests.machine_trees import CPUS, PciDevice, two_nodes, write_files, write_tree
from tests.real_machines import each, recommended
from tests.typed import typed

GPUS = (
    PciDevice("0000:17:00.0", numa_node=0, uuid="GPU-0", minor=0, behind="pci0000:00/0000:00:01.0"),
    PciDevice("0000:ca:00.0", numa_node=1, uuid="GPU-1", minor=1),
)
MACHINE = two_nodes(GPUS, allowed="1-7")
MEMORY = re.compile(r'"memory": \d+')


def printed(*words: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the standard output of the command, which succeeds."""
    done = typed(words, environ or {}, Path(__file__).parent)

    assert (done.code, done.err) == (0, "")
    return done.out


def json_of(*words: str, environ: Mapping[str, str] | None = None) -> Any:
    """Return the JSON that the command prints."""
    return json.loads(printed(*words, "--json", environ=environ))


def plan_of(*words: str, environ: Mapping[str, str] | None = None) -> Any:
    """Return the JSON of a dry run of this file with these options."""
    return json.loads(
        printed("--dry-run", "--json", "--run-id=x", *words, __file__, environ=environ)
    )


def test_this_machine(clusterrun: Launcher) -> None:
    """There are no colours because standard output is not a terminal."""
    ended = clusterrun.command("topo", workers=2).ended()

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"{os.uname().nodename}: ")
    assert "\x1b" not in ended.out
    assert "\nworkers" in ended.out


@pytest.mark.parametrize(
    ("variables", "warning"),
    [
        ("salloc", "the job's nodes are n[0-1] (SLURM_JOB_NODELIST), but this shell runs on"),
        ("batch", "a batch script runs on the first node only, but the job has 2 nodes"),
    ],
)
def test_allocation_without_srun_has_a_warning(variables: str, warning: str) -> None:
    """A job would fail, but topo shows this machine."""
    environ = captured(variables)
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    done = typed(["topo"], environ, Path(__file__).parent)

    assert (done.code, done.out) == (0, printed("topo"))
    assert done.err.startswith(f"clusterrun: {warning}")
    assert done.err.count("\n") == 1


def test_node_of_a_multi_node_job() -> None:
    """No other node's address is needed."""
    workers = json_of("topo", "--nnodes=2", "--node-rank=1")["workers"]

    assert [worker["rank"] for worker in workers] == [1]


def test_json_of_this_machine(clusterrun: Launcher) -> None:
    """The allowed CPUs are those of the kernel."""
    ended = clusterrun.command("topo", "--json", "--nproc-per-node=2").ended()

    found = json.loads(ended.out)
    allowed = {int(cpu) for core in found["cores"] for cpu in _numbers(core)}
    assert {*_numbers(found["allowed_cpus"])} == os.sched_getaffinity(0) <= allowed
    assert [worker["local_rank"] for worker in found["workers"]] == [0, 1]


def _numbers(cpus: str) -> list[int]:
    spans = (part.partition("-") for part in cpus.split(","))
    return [cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1)]


def test_capture_gives_the_same_output_as_its_machine(clusterrun: Launcher) -> None:
    """The dry run and topo are equal, except for the memory, which may change on a virtual machine."""
    name = "machine.json"
    dry_run = ("--dry-run", "--json", "--run-id=x", "--nproc-per-node=2", __file__)

    written = clusterrun.command("topo", "--capture", name).ended()
    here = [clusterrun.command(*words).ended().out for words in (("topo", "--json"), dry_run)]
    there = [
        clusterrun.command("--machine-root", name, *words).ended().out
        for words in (("topo", "--json"), dry_run)
    ]

    assert (written.code, written.err) == (0, "")
    assert f"clusterrun topo --machine-root {name}" in written.out
    assert [MEMORY.sub("", text) for text in here] == [MEMORY.sub("", text) for text in there]


def test_capture_has_no_private_data(clusterrun: Launcher) -> None:
    """Host name, user name and variables are missing, except variables for GPUs."""
    secrets = {"SECRET": "open-sesame", "USER": "ada-lovelace", "CUDA_VISIBLE_DEVICES": "1"}
    clusterrun.command("topo", "--capture", "machine.json", environ=secrets).ended()

    everything = (clusterrun.folder / "machine.json").read_text()
    capture = json.loads(everything)
    assert "sesame" not in everything
    assert "lovelace" not in everything
    assert f'"{os.uname().nodename}"' not in everything
    assert capture["variables"] == {"CUDA_VISIBLE_DEVICES": "1"}
    paths = [*capture["answers"]["text"], *capture["answers"]["names"]]
    assert {path.partition("/")[0] for path in paths} <= {"sys", "proc", "dev"}


def test_capture_is_replayed_with_its_variables(tmp_path: Path) -> None:
    """Its GPU variables replace ours, but not those of the job."""
    root, file = write_tree(tmp_path / "m", MACHINE), str(tmp_path / "m.json")
    reversed_list, none = {"CUDA_VISIBLE_DEVICES": "1,0"}, {"CUDA_VISIBLE_DEVICES": ""}

    printed("topo", "--machine-root", str(root), "--capture", file, environ=reversed_list)
    words = ("--machine-root", file)

    assert [it["gpu"] for it in plan_of(*words, environ=none)["workers"]] == [1, 0]
    assert [it["gpu"] for it in json_of("topo", *words, environ=none)["workers"]] == [1, 0]
    own = ("--env", "CUDA_VISIBLE_DEVICES=0", *words)
    assert [it["gpu"] for it in plan_of(*own, environ=none)["workers"]] == [0]


def assert_capture_is_stable(root: Path, folder: Path) -> None:
    """Capture a machine and its capture: outputs and files must be equal."""
    roots = [str(root), str(folder / "once.json"), str(folder / "twice.json")]
    for here, there in pairwise(roots):
        printed("topo", "--machine-root", here, "--capture", there)

    drawn = [json_of("topo", "--machine-root", place) for place in roots]
    plans = [plan_of("--machine-root", place) for place in roots]

    assert drawn[0] == drawn[1] == drawn[2]
    assert plans[0]["workers"] == plans[1]["workers"] == plans[2]["workers"]
    assert (folder / "once.json").read_bytes() == (folder / "twice.json").read_bytes()


def test_capture_of_a_replayed_machine(tmp_path: Path) -> None:
    """It has a visible GPU that cannot be opened, and an isolated CPU."""
    root = write_tree(tmp_path / "m", MACHINE)
    write_files(root, {"dev/nvidia0": "", "dev/nvidia1": "", f"{CPUS}/isolated": "7"})
    (root / "dev/nvidia1").chmod(0)

    assert_capture_is_stable(root, tmp_path)

    twice = ("topo", "--machine-root", str(tmp_path / "twice.json"))
    found = json_of(*twice)
    assert found["allowed_cpus"] == "1-6"
    assert "[ ]: 1 of 8 CPUs, which are isolated" in printed(*twice)
    assert [gpu["address"] for gpu in found["gpus"]] == ["0000:17:00.0"]


@each(("name",), [[name] for name in sorted({name for name, _, _ in recommended()})[:4]])
def test_capture_of_real_machines(
    real_machine: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """The capture has what vendors and hwloc know about them."""
    assert_capture_is_stable(real_machine(name), tmp_path)


def test_binding_options_change_the_output(tmp_path: Path) -> None:
    """Options are read before and after ``topo``."""
    root = str(write_tree(tmp_path, MACHINE))

    near = json_of("topo", "--machine-root", root)
    none = json_of("--numa-binding=none", "topo", "--machine-root", root)
    four = json_of("--nproc-per-node=4", "--gpus-per-worker=0", "topo", "--machine-root", root)

    assert [worker["cpus"] for worker in near["workers"]] == ["1-3", "4-7"]
    assert [worker["cpus"] for worker in none["workers"]] == [None, None]
    assert len(four["workers"]) == 4


@pytest.mark.parametrize(
    ("environ", "ink"),
    [
        ({"TERM": "xterm"}, "\x1b["),
        ({"TERM": "dumb"}, ""),
        ({"TERM": "xterm", "NO_COLOR": "1"}, ""),
    ],
)
def test_colours_only_on_a_terminal(tmp_path: Path, environ: Mapping[str, str], ink: str) -> None:
    """Without colours, lines fit the width of the terminal."""
    root = write_tree(tmp_path, MACHINE)

    text = on_a_terminal(("topo", "--machine-root", str(root)), {**environ, "COLUMNS": "40"})

    assert ink in text
    assert ("\x1b" in text) == bool(ink)
    assert "GPU 1" in text
    if not ink:
        tree = [line for line in text.splitlines() if line.startswith(("├", "└", "│", "   "))]
        assert max(map(len, tree)) <= 40


def test_locale_without_utf_8(clusterrun: Launcher) -> None:
    """The output is ASCII."""
    root = write_tree(clusterrun.folder / "größe", MACHINE)

    ascii_only = {"PYTHONIOENCODING": "ascii"}
    ended = clusterrun.command("topo", f"--machine-root={root}", environ=ascii_only).ended()

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.isascii()
    assert "`-- node 0" in ended.out
    assert r"gr\xf6\xdfe: 2 sockets" in ended.out


def on_a_terminal(words: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """Return what the command prints to a terminal."""
    ours, its = pty.openpty()
    usual = {name: value for name, value in plain_environment().items() if name != "NO_COLOR"}
    try:
        process = subprocess.Popen(
            [COMMAND, *words],
            env={**usual, "PYTHONIOENCODING": "utf-8", **environ},
            stdin=subprocess.DEVNULL,
            stdout=its,
            stderr=its,
        )
    finally:
        os.close(its)
    text = b""
    try:
        while chunk := _read(ours):
            text += chunk
        assert process.wait(60) == 0
    finally:
        os.close(ours)
        process.kill()
        process.wait(60)
    return text.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:
        # A terminal raises this when its other end is closed.
        return b""


def test_script_called_topo(clusterrun: Launcher) -> None:
    """Only the bare word is the command, not a path, a module or an executable."""
    (clusterrun.folder / "topo").write_text("print('the script')\n")
    (clusterrun.folder / "topo.py").write_text("print('the module')\n")

    assert "NUMA" in clusterrun.command("topo").ended().out
    assert clusterrun.command("./topo").ended().out == "the script\n"
    assert clusterrun.command("-m", "topo").ended().out == "the module\n"


def test_help_of_topo(clusterrun: Launcher) -> None:
    ended = clusterrun.command("topo", "--help").ended()

    assert ended.code == 0
    assert ended.out.startswith("Usage: clusterrun topo [OPTIONS]\n")
    assert "--capture FILE" in ended.out
    assert "--numa-binding" in ended.out


def test_capture_with_a_missing_gpu(clusterrun: Launcher) -> None:
    """A capture makes no plan, so a bug report about the GPU is possible."""
    words = ("--nproc-per-node=gpu", "topo")

    drawn = clusterrun.command(*words).ended()
    written = clusterrun.command(*words, "--capture", "m.json").ended()

    assert (drawn.code, written.code) == (2, 0)


@pytest.mark.parametrize(
    "words",
    [
        ("--start-method", "fork"),
        ("--pdb",),
        ("--on-hang", "stop"),
        ("--requeue",),
        ("--suspend-hook", "missing"),
    ],
)
def test_options_about_the_script_do_not_stop_topo(words: tuple[str, ...]) -> None:
    assert "NUMA" in printed("topo", *words)
