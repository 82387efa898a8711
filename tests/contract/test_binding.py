"""Binding: plans of dry runs for real machines, and what the kernel reports of workers."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.contract.launched import Launcher
from tests.real_machines import each, recommended
from tests.typed import typed

PRINTS_CPUS = """
    import os
    with open("/proc/self/status") as status:
        [cpus] = [line.split()[1] for line in status if line.startswith("Cpus_allowed_list:")]
    print("rank", os.environ["RANK"], "on", cpus)
"""


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_workers_use_only_cpus_of_the_launcher(clusterrun: Launcher, mode: str) -> None:
    last = str(max(os.sched_getaffinity(0)))
    ended = clusterrun.script(
        PRINTS_CPUS, f"--numa-binding={mode}", workers=2, around=("taskset", "-c", last)
    ).ended()

    assert ended.code == 0
    assert sorted(ended.out.splitlines()) == [
        f"[rank {rank}] rank {rank} on {last}" for rank in (0, 1)
    ]


@each(("name", "mode", "expected"), recommended())
def test_dry_run_has_recommended_masks_of_real_machines(
    real_machine: Callable[[str], Path], name: str, mode: str, expected: list[str]
) -> None:
    """There is one worker per GPU, in the vendor's order."""
    options = [f"--machine-root={real_machine(name)}", f"--numa-binding={mode}"]

    workers = planned_workers(options, {})

    assert [worker["cpus"] for worker in workers] == expected
    assert [worker["gpu"] for worker in workers] == [*range(len(expected))]


def planned_workers(options: list[str], environ: Mapping[str, str]) -> list[Any]:
    """Return the workers of a dry run with these options."""
    done = typed(["--dry-run", "--json", *options, __file__], environ, Path(__file__).parent)

    assert (done.code, done.err) == (0, "")
    workers: list[Any] = json.loads(done.out)["workers"]
    return workers


def test_strict_job_that_can_not_be_bound_is_an_error(clusterrun: Launcher) -> None:
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


def test_kernel_reports_planned_memory_policy_and_cpus(clusterrun: Launcher) -> None:
    """They are the same after a restart."""
    script = """
        import os, sys
        [cpus] = [line.split()[1] for line in open("/proc/self/status") if "Cpus_allowed_l" in line]
        policies = {line.split()[1] for line in open("/proc/self/numa_maps")}
        print("on", cpus, *policies)
        sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
    """
    options = ("--numa-memory=bind", "--numa-strict", "--max-restarts=1")

    dry_run = clusterrun.script(script, *options, "--dry-run", "--json", workers=1).ended()
    ended = clusterrun.script(script, *options, workers=1).ended()

    (worker,) = json.loads(dry_run.out)["workers"]
    if worker["memory"] is None:
        pytest.skip(f"one worker has no node here: {worker['remark']}")
    nodes = ",".join(map(str, worker["memory"]["numa_nodes"]))
    assert ended.code == 0
    assert ended.out.splitlines() == [f"on {worker['cpus']} bind:{nodes}"] * 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_virtual_local_rank_hides_other_gpus(clusterrun: Launcher, method: str) -> None:
    """This works without GPUs."""
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


def test_script_that_binds_itself_causes_no_warning(clusterrun: Launcher) -> None:
    script = """
        import os
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print("bound itself")
    """

    ended = clusterrun.script(script, "--numa-binding=node", workers=2).ended()

    assert sorted(ended.out.splitlines()) == [f"[rank {rank}] bound itself" for rank in (0, 1)]
    assert (ended.code, ended.err) == (0, "")


REFUSE_CALLS = """
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
    ("method", "refused", "is_bound"),
    [
        ("fork", SET, False),
        ("fork", GET, True),
        ("fork", f"{SET},{GET}", False),
        ("spawn", SET, False),
    ],
)
def test_sandbox_that_forbids_binding(
    clusterrun: Launcher, tmp_path: Path, method: str, refused: str, *, is_bound: bool
) -> None:
    """Workers run unbound, and one warning has the reason. It is an error in a strict job."""
    program = tmp_path / "refuse_calls.py"
    program.write_text(dedent(REFUSE_CALLS))
    options = ("--numa-binding=exclusive", f"--start-method={method}")
    around = (sys.executable, str(program), refused)

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
