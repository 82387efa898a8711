"""Tasks of srun, with variables recorded from Slurm 22.05."""

from typing import Any

import pytest
from clusterrun.job.clusters.found import DetectionContext, Found, Variables
from clusterrun.job.clusters.slurm import port_candidates, step
from clusterrun.job.declarations import Setting
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import ThisProcess
from hypothesis import given
from hypothesis import strategies as st

from tests.captured import captured


def found_step(environ: dict[str, str], cpus: int = 64) -> Found:
    """Return what is found by a task that may use ``cpus`` CPUs."""
    found = step_or_none(environ, cpus)
    assert found is not None
    return found


def step_or_none(environ: dict[str, str], cpus: int = 64) -> Found | None:
    """Return what is found by a task; None if the process is not a task."""
    process = ThisProcess(host="n0", cpus=cpus, python="python", run_id="chosen")
    return step(Variables(environ), DetectionContext(process, CommandLine({}, ("train.py",))))


def value(setting: Setting[Any] | None) -> Any:
    """Return the setting's value, or None."""
    return setting and setting.value


@pytest.mark.parametrize(
    ("visible", "expected"), [("0,1", 2), ("GPU-1,GPU-2", 2), (None, 2), ("1", None), ("", None)]
)
def test_gpus_unless_cuda_visible_devices_differs(
    visible: str | None, expected: int | None
) -> None:
    """If CUDA_VISIBLE_DEVICES has another number of entries, the visible GPUs count."""
    environ = {k: v for k, v in captured("node.0").items() if k != "CUDA_VISIBLE_DEVICES"}
    chosen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    found = found_step(environ | chosen).nproc_per_node

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
def test_own_cpus(kind: str, masks: str, own: bool) -> None:
    """A task's CPU mask must be known, and disjoint from those of other tasks."""
    environ = captured("task.3") | {"SLURM_CPU_BIND_TYPE": kind, "SLURM_CPU_BIND_LIST": masks}

    found = value(found_step(environ).tasks)

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
def test_too_few_cpus_have_a_warning(changes: dict[str, str], cpus: int, share: int) -> None:
    """Only the first task warns; the -c of sbatch is inherited, but srun ignores it."""
    found = found_step(captured("node.0") | changes, cpus).warnings

    assert [warning.rpartition("srun ")[2] for warning in found] == ([f"-c {share}"] * bool(share))


@pytest.mark.parametrize(
    ("number", "is_task"),
    [(0xFFFF_FFEF, True), (0xFFFF_FFF0, False), (0xFFFF_FFFB, False), (0xFFFF_FFFF, False)],
)
def test_reserved_step_ids_are_not_tasks(number: int, is_task: bool) -> None:
    """slurm.h reserves ids for the batch script, for shells and for later uses."""
    found = step_or_none(captured("node.0") | {"SLURM_STEP_ID": str(number)})

    assert bool(found) is is_task


@given(job=st.integers(1, 10**7), step=st.integers(0, 500), others=st.integers(1, 500))
def test_first_ports_of_neighbours_differ(job: int, step: int, others: int) -> None:
    """Steps of the same job and of neighbouring jobs."""
    first = port_candidates(job, step)[0]

    assert first != port_candidates(job, step + others)[0]
    assert first != port_candidates(job + 1, step)[0]
    assert first != port_candidates(job + 2, step)[0]


@given(job=st.integers(0, 2**40), step=st.integers(0, 2**32))
def test_ports_are_in_range(job: int, step: int) -> None:
    """The ports are outside the ranges of the kernel, of Kubernetes and of other launchers."""
    ports = port_candidates(job, step)

    assert len(set(ports)) == len(ports) == 4
    assert all(20_000 <= port < 29_500 for port in ports)


def test_ports_do_not_change_between_versions() -> None:
    """Each node computes them, perhaps with another version of clusterrun."""
    assert port_candidates(4711, 3) == (28640, 20996, 22730, 24460)
