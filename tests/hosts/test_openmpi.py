"""clusterrun as tasks of a real mpirun, on two hosts and in a batch script of Slurm."""

import os
from pathlib import Path

import psutil
import pytest

from tests.contract.launched import COMMAND, Launcher
from tests.hosts.host import Host
from tests.hosts.openmpi import AS_ROOT, mpirun, without_warnings
from tests.hosts.slurm import Slurm
from tests.hosts.test_slurm import FAIL, PRINT_VARIABLES, REDUCE, columns, script, workers_in

pytestmark = pytest.mark.needs("mpirun")

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")

TWO_EACH = [
    ("0", "4", "0", "2", "0", "2"),
    ("1", "4", "1", "2", "0", "2"),
    ("2", "4", "0", "2", "1", "2"),
    ("3", "4", "1", "2", "1", "2"),
]


both_layouts = pytest.mark.parametrize(
    ("layout", "workers"), [("ppr:1:node", 2), ("ppr:2:node", None)], ids=["per-node", "per-gpu"]
)

per_node_and_long_per_gpu = pytest.mark.parametrize(
    ("layout", "workers"),
    [("ppr:1:node", 2), pytest.param("ppr:2:node", None, marks=pytest.mark.long)],
    ids=["per-node", "per-gpu"],
)


@both_layouts
def test_mpirun_tasks_become_ranks(
    layout: str, workers: int | None, hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path
) -> None:
    """One task per node and one per worker give the same world."""
    around = mpirun(hosts[:2], tmp_path, "--map-by", layout)

    done = clusterrun.script(PRINT_VARIABLES, around=around, workers=workers).ended()

    assert (done.code, without_warnings(done.err)) == (0, "")
    assert columns(workers_in(done.out), *NAMES) == TWO_EACH
    assert columns(workers_in(done.out), "MASTER_ADDR") == [(hosts[0].address,)] * 4


def test_tasks_mapped_by_node(
    hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path
) -> None:
    """The second task is the first one of the second node."""
    around = mpirun(hosts[:2], tmp_path, "-n", "4", "--map-by", "node")

    done = clusterrun.script(PRINT_VARIABLES, around=around).ended()

    assert (done.code, without_warnings(done.err)) == (0, "")
    assert columns(workers_in(done.out), "RANK", "LOCAL_RANK", "GROUP_RANK") == [
        ("0", "0", "0"),
        ("1", "0", "1"),
        ("2", "1", "0"),
        ("3", "1", "1"),
    ]


def test_tasks_of_one_host_use_loopback(
    hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path
) -> None:
    """The host's name need not resolve. Output is merged: no line is repeated or coloured."""
    done = clusterrun.script(PRINT_VARIABLES, around=mpirun(hosts[:1], tmp_path, "-n", "2")).ended()

    assert (done.code, without_warnings(done.err)) == (0, "")
    assert columns(workers_in(done.out), *NAMES[:4], "MASTER_ADDR") == [
        ("0", "2", "0", "2", "127.0.0.1"),
        ("1", "2", "1", "2", "127.0.0.1"),
    ]
    assert "\x1b" not in done.out


@pytest.mark.skipif((psutil.cpu_count(logical=False) or 1) < 2, reason="there is one core")
def test_task_keeps_cores_bound_by_mpirun(
    hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path
) -> None:
    """A task's cores are not divided by the number of tasks on the node."""
    around = mpirun(hosts[:1], tmp_path, "-n", "2", "--map-by", "slot:PE=1", bind_to="core")
    text = "import os; print('CPUs', *sorted(os.sched_getaffinity(0)), flush=True)"

    done = clusterrun.script(text, "--numa-binding=exclusive", around=around).ended()

    assert done.code == 0
    assert "share" not in done.err
    own = {line.partition("CPUs")[2] for line in done.out.splitlines() if "CPUs" in line}
    assert len(own) == 2


@per_node_and_long_per_gpu
def test_all_reduce_under_mpirun(
    layout: str, workers: int | None, hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path
) -> None:
    around = mpirun(hosts[:2], tmp_path, "--map-by", layout)

    done = clusterrun.script(REDUCE, around=around, workers=workers).ended(120)

    assert done.code == 0, done.err
    for rank in range(4):
        assert f"rank {rank} sum 10 mean 2.5" in done.out


@per_node_and_long_per_gpu
def test_failure_ends_mpirun_with_exit_code_of_worker(
    layout: str, workers: int | None, hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path
) -> None:
    around = mpirun(hosts[:2], tmp_path, "--map-by", layout)

    job = clusterrun.script(FAIL, around=around, workers=workers)

    assert job.ended().code == 7
    assert "rank 1 on n0 failed" in job.err
    assert job.left() == []


def test_uneven_tasks_are_refused(
    hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path
) -> None:
    """A task can't know its node; mpirun ends the others."""
    around = mpirun(hosts[:2], tmp_path, "-n", "3", "--map-by", "node")

    done = clusterrun.script(PRINT_VARIABLES, around=around).ended()

    assert done.code == 2
    assert "nodes have different numbers of tasks" in done.err


def test_mpirun_in_batch_script_ignores_slurm_procid(slurm: Slurm, tmp_path: Path) -> None:
    """Tasks inherit SLURM_PROCID from the script on the first node, and from the daemon on the other."""
    text = f"""\
        #!/bin/sh
        exec mpirun --oversubscribe --bind-to none --map-by ppr:2:node --mca oob_tcp_if_include eth0 \\
            {COMMAND} {script(tmp_path, PRINT_VARIABLES)}
        """
    environ = {**AS_ROOT, "PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": ""}

    job = slurm.sbatch(text, "-N2", "--ntasks-per-node=1", environ=environ)
    done = slurm.ended(job)

    assert done.code == 0, done.err
    assert columns(workers_in(done.out), "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK") == [
        ("0", "4", "0", "0"),
        ("1", "4", "1", "0"),
        ("2", "4", "0", "1"),
        ("3", "4", "1", "1"),
    ]
