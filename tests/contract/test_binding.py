"""Binding: what a dry run plans for real machines, and what the kernel reports of workers."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.contract.launched import Launcher
from tests.machine_trees import PciDevice, two_nodes, write_tree
from tests.real_machines import each, recommended
from tests.typed import typed

PRINTS_CPUS = """
    import os
    with open("/proc/self/status") as status:
        [cpus] = [line.split()[1] for line in status if line.startswith("Cpus_allowed_list:")]
    print("rank", os.environ["RANK"], "on", cpus)
"""


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_a_launcher_that_is_bound_binds_its_workers(clusterrun: Launcher, mode: str) -> None:
    """Workers get only CPUs that taskset (or a scheduler) has left to the launcher."""
    last = str(max(os.sched_getaffinity(0)))
    ended = clusterrun.script(
        PRINTS_CPUS, f"--numa-binding={mode}", workers=2, around=("taskset", "-c", last)
    ).ended()

    assert ended.code == 0
    assert sorted(ended.out.splitlines()) == [
        f"[rank {rank}] rank {rank} on {last}" for rank in (0, 1)
    ]


@each(("name", "mode", "expected"), recommended())
def test_a_dry_run_gives_real_machines_the_recommended_masks(
    real_machine: Callable[[str], Path], name: str, mode: str, expected: list[str]
) -> None:
    """One worker for each GPU, in the vendor's order."""
    options = [f"--machine-root={real_machine(name)}", f"--numa-binding={mode}"]

    workers = planned(options, {})

    assert [worker["cpus"] for worker in workers] == expected
    assert [worker["gpu"] for worker in workers] == [*range(len(expected))]


@each(
    ("name", "expected"), [(name, masks) for name, mode, masks in recommended() if mode == "node"]
)
def test_a_dry_run_follows_cuda_visible_devices(
    real_machine: Callable[[str], Path], name: str, expected: list[str]
) -> None:
    """Two workers, the first on the last GPU."""
    options = [f"--machine-root={real_machine(name)}", "--numa-binding=node"]
    last = len(expected) - 1

    workers = planned(options, {"CUDA_VISIBLE_DEVICES": f"{last},0"})

    assert [worker["cpus"] for worker in workers] == [expected[last], expected[0]]
    assert [worker["gpu"] for worker in workers] == [last, 0]


def planned(options: list[str], environ: Mapping[str, str]) -> list[Any]:
    """Return the workers that a dry run with these options prints."""
    done = typed(["--dry-run", "--json", *options, __file__], environ, Path(__file__).parent)

    assert (done.code, done.err) == (0, "")
    workers: list[Any] = json.loads(done.out)["workers"]
    return workers


def test_a_strict_job_that_cannot_be_bound(clusterrun: Launcher) -> None:
    """No worker starts, and the exit code is 3."""
    job = clusterrun.script(
        "print('started')",
        "--numa-strict",
        "--numa-memory=bind",
        workers=1,
        environ={"CUDA_VISIBLE_DEVICES": "x"},
        around=("taskset", "-c", str(min(os.sched_getaffinity(0)))),
    )

    ended = job.ended()

    assert (ended.code, ended.out) == (3, "")
    assert "can't bind all workers as requested (--numa-strict)" in ended.err
    assert job.left() == []


def test_memory_and_cpus_of_a_node(clusterrun: Launcher) -> None:
    """The kernel reports them in the first attempt and after a restart."""
    script = """
        import os, sys
        [cpus] = [line.split()[1] for line in open("/proc/self/status") if "Cpus_allowed_l" in line]
        policies = {line.split()[1] for line in open("/proc/self/numa_maps")}
        print("on", cpus, *policies)
        sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
    """
    options = ("--numa-memory=bind", "--numa-strict", "--max-restarts=1")

    planned = clusterrun.script(script, *options, "--dry-run", "--json", workers=1).ended()
    ended = clusterrun.script(script, *options, workers=1).ended()

    (worker,) = json.loads(planned.out)["workers"]
    if worker["memory"] is None:
        pytest.skip(f"one worker has no node here: {worker['remark']}")
    nodes = ",".join(map(str, worker["memory"]["numa_nodes"]))
    assert ended.code == 0
    assert ended.out.splitlines() == [f"on {worker['cpus']} bind:{nodes}"] * 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_worker_sees_its_own_gpu(clusterrun: Launcher, method: str) -> None:
    """Torchrun's flag, with each start method, also where no GPU is found."""
    script = """
        import os
        names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
        print(*(os.environ[name] for name in names))
    """

    ended = clusterrun.script(
        script,
        "--virtual-local-rank",
        f"--start-method={method}",
        workers=2,
        environ={"CUDA_VISIBLE_DEVICES": "6,7"},
    ).ended()

    assert ended.code == 0
    assert sorted(ended.out.splitlines()) == ["[rank 0] 0 0 2 6", "[rank 1] 1 0 2 7"]


def test_a_dry_run_with_a_numa_map(tmp_path: Path) -> None:
    """Two GPUs for each worker; the tables give one of them the wrong node."""
    gpus = tuple(
        PciDevice(f"0000:{bus}:00.0", numa_node=0, uuid=f"GPU-{bus}", minor=minor)
        for minor, bus in enumerate(("17", "18", "ca", "cb"))
    )
    root = write_tree(tmp_path, two_nodes(gpus))
    options = [
        f"--machine-root={root}",
        "--gpus-per-worker=2",
        "--numa-map=ca:00.0=node 1,GPU-cb=4-6",
        "--virtual-local-rank",
    ]

    first, second = planned(options, {})

    assert (first["cpus"], second["cpus"]) == ("0-3", "4-7")
    assert (first["numa_node"], second["numa_node"]) == (0, 1)
    assert [gpu["told_by"] for gpu in second["gpus"]] == ["--numa-map"] * 2
    assert [worker["env"]["CUDA_VISIBLE_DEVICES"] for worker in (first, second)] == ["0,1", "2,3"]
    assert [worker["env"]["LOCAL_RANK"] for worker in (first, second)] == ["0", "0"]


def test_a_dry_run_of_chosen_gpus(tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES has blanks; the dry run names it. A missing GPU is an error."""
    gpus = (
        PciDevice(f"0000:{bus}:00.0", numa_node=node, uuid=f"GPU-{bus}", minor=minor)
        for minor, (bus, node) in enumerate((("17", 0), ("18", 0), ("ca", 1)))
    )
    root = write_tree(tmp_path, two_nodes(tuple(gpus)))
    environ = {"CUDA_VISIBLE_DEVICES": "0, 2"}
    words = (f"--machine-root={root}", "--dry-run")

    done, refused = (
        typed([*words, f"--devices={one}", __file__], environ, tmp_path) for one in ("2", "1")
    )

    assert (done.code, refused.code) == (0, 2)
    assert ["CUDA_VISIBLE_DEVICES", "2", "--devices"] in map(str.split, done.out.splitlines())
    assert refused.err == (
        "clusterrun: error: --devices: GPU 1 is not visible\n"
        "  give some of 0,2 (CUDA_VISIBLE_DEVICES=0, 2), as in --devices 0\n"
    )


def test_a_script_that_binds_itself_causes_no_warning(clusterrun: Launcher) -> None:
    """Its own binding is what it reads back."""
    script = """
        import os
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print("bound itself")
    """

    ended = clusterrun.script(script, "--numa-binding=node", workers=2).ended()

    assert sorted(ended.out.splitlines()) == [f"[rank {rank}] bound itself" for rank in (0, 1)]
    assert (ended.code, ended.err) == (0, "")


REFUSES_CALLS = """
    import ctypes, os, struct, sys

    LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
    ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # linux/seccomp.h: SECCOMP_RET_ALLOW, ..._ERRNO | EPERM
    numbers = [int(text) for text in sys.argv[1].split(",")]
    compares = [(EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    steps = [(LOAD, 0, 0, 0), *compares, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    filters = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(filters))
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong]
    assert prctl(38, 1, None, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    os.execvp(sys.argv[2], sys.argv[2:])
"""
SET, GET = "203", "204"
"""sched_setaffinity and sched_getaffinity of x86_64 (asm/unistd_64.h)."""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of x86-64 calls")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
@pytest.mark.parametrize(
    ("refused", "is_bound"), [(SET, False), (GET, True), (f"{SET},{GET}", False)]
)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_sandbox_that_refuses_to_bind(
    clusterrun: Launcher, tmp_path: Path, refused: str, method: str, *, is_bound: bool
) -> None:
    """Workers run unbound, with one line that has the reason; a strict job ends with it."""
    refuses = tmp_path / "refuses.py"
    refuses.write_text(dedent(REFUSES_CALLS))
    options = ("--numa-binding=exclusive", f"--start-method={method}")
    around = (sys.executable, str(refuses), refused)

    ended = clusterrun.script(PRINTS_CPUS, *options, workers=2, around=around).ended()
    strict = clusterrun.script(
        PRINTS_CPUS, *options, "--numa-strict", workers=2, around=around
    ).ended()

    why = "no worker can be bound to CPUs: Operation not permitted"
    assert (ended.code, ended.err.count(why), len(ended.err.splitlines())) == (
        (0, 0, 0) if is_bound else (0, 1, 1)
    )
    cpus = {line.rpartition(" ")[2] for line in ended.out.splitlines()}
    assert len(cpus) == (2 if is_bound else 1)
    assert (strict.code, why in strict.err) == ((0, False) if is_bound else (3, True))
