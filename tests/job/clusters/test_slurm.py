"""Slurm's steps: the place of each task, from environments as Slurm 22.05 really made them."""

from typing import Any

import pytest
from clusterrun.job.clusters.found import Found, Launch, Variables
from clusterrun.job.clusters.slurm import port_candidates, step
from clusterrun.job.declarations import Setting
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import ThisProcess
from hypothesis import given
from hypothesis import strategies as st

from tests.captured import captured


def place(environ: dict[str, str], cpus: int = 64) -> Found:
    """Return the place of a task that may use so many CPUs."""
    found = is_step(environ, cpus)
    assert found is not None
    return found


def is_step(environ: dict[str, str], cpus: int = 64) -> Found | None:
    """Return the place of a task; None if srun has not started it."""
    process = ThisProcess(host="n0", cpus=cpus, python="python", run_id="chosen")
    return step(Variables(environ), Launch(process, CommandLine({}, ("train.py",))))


def value(fact: Setting[Any] | None) -> Any:
    """Return its value, or None."""
    return fact and fact.value


@pytest.mark.parametrize(
    ("visible", "expected"), [("0,1", 2), ("GPU-1,GPU-2", 2), (None, 2), ("1", None), ("", None)]
)
def test_slurm_counts_gpus_unless_cuda_visible_devices_differs(
    visible: str | None, expected: int | None
) -> None:
    """If CUDA_VISIBLE_DEVICES has another number of entries, the GPUs of the machine count."""
    environ = {k: v for k, v in captured("node.0").items() if k != "CUDA_VISIBLE_DEVICES"}
    chosen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    found = place(environ | chosen).nproc_per_node

    assert value(found) == expected


@pytest.mark.parametrize(
    ("kind", "masks", "own"),
    [
        ("mask_cpu:", "0x1,0x2", True),
        ("mask_cpu:", "0xF0,0x0F", True),
        ("mask_cpu:", "0x3,0x3", False),
        ("mask_cpu:", "0x3,0x2", False),
        ("none", "", False),
        ("map_cpu:", "0,1", False),
        ("mask_cpu:", "0x1", False),
        ("mask_cpu:", "odd,even", False),
    ],
)
def test_cpus_of_its_own(kind: str, masks: str, own: bool) -> None:
    """A task's mask must be known, and share no CPU with others on its node."""
    environ = captured("task.3") | {"SLURM_CPU_BIND_TYPE": kind, "SLURM_CPU_BIND_LIST": masks}

    found = value(place(environ).tasks)

    assert found is not None
    assert found.own_cpus is own


@pytest.mark.parametrize(
    ("changes", "cpus", "share"),
    [
        ({"SLURM_CPUS_ON_NODE": "64"}, 1, 64),
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_CPUS_PER_TASK": "64"}, 2, 64),
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 8, 16),
        ({"SLURM_CPUS_ON_NODE": "64"}, 64, 0),
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_CPUS_PER_TASK": "8"}, 8, 0),
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_PROCID": "1"}, 1, 0),
        ({"SLURM_CPUS_ON_NODE": ""}, 1, 0),
    ],
)
def test_srun_without_its_share_of_cpus(changes: dict[str, str], cpus: int, share: int) -> None:
    """The first task warns and names the option; sbatch's own ``-c`` is inherited, but ignored."""
    found = place(captured("node.0") | changes, cpus).warnings

    assert [warning.rpartition("srun ")[2] for warning in found] == ([f"-c {share}"] * bool(share))


@pytest.mark.parametrize(
    ("number", "is_one"),
    [(0xFFFF_FFEF, True), (0xFFFF_FFF0, False), (0xFFFF_FFFB, False), (0xFFFF_FFFF, False)],
)
def test_the_ids_that_slurm_reserves_are_not_steps(number: int, is_one: bool) -> None:
    """Slurm's own header has them: the batch script's, that of a shell on a node, others to come."""
    found = is_step(captured("node.0") | {"SLURM_STEP_ID": str(number)})

    assert bool(found) is is_one


@given(job=st.integers(1, 10**7), step=st.integers(0, 500), others=st.integers(1, 500))
def test_ports_of_neighbours_differ(job: int, step: int, others: int) -> None:
    """Steps of one job and of neighbouring jobs begin at different ports."""
    first = port_candidates(job, step)[0]

    assert first != port_candidates(job, step + others)[0]
    assert first != port_candidates(job + 1, step)[0]
    assert first != port_candidates(job + 2, step)[0]


@given(job=st.integers(0, 2**40), step=st.integers(0, 2**32))
def test_ports_are_usable(job: int, step: int) -> None:
    """Not used by the kernel, Kubernetes' services or other launchers; all differ."""
    ports = port_candidates(job, step)

    assert len(set(ports)) == len(ports) == 4
    assert all(20_000 <= port < 29_500 for port in ports)


def test_ports_are_the_same_everywhere() -> None:
    """Nodes compute them apart from each other, with whatever version is installed."""
    assert port_candidates(4711, 3) == (28640, 20996, 22730, 24460)
