"""What is prepared for workers that are forked: the variables that modules may read on import."""

import pytest
from clusterrun.job.options import StartMethod
from clusterrun.machine.machine import Machine
from clusterrun.planning.job_machine import machine_for
from clusterrun.planning.preparation import preparation_of
from msgspec.structs import replace

from tests.plans import job, machine, planned

NVIDIA = machine({0: "0-7"}, [0, 0])
AMD = replace(NVIDIA, visible=tuple(replace(gpu, vendor="amd") for gpu in NVIDIA.visible))


def test_gpu_variable_is_set_before_imports() -> None:
    """Workers are forked from a process that sees the same GPUs."""
    spec = job(devices=("1",))

    prepared = preparation_of(spec, planned(spec, machine_for(spec, NVIDIA), 1), {})

    assert prepared is not None
    assert prepared.known_variables["CUDA_VISIBLE_DEVICES"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in prepared.per_worker_variables


@pytest.mark.parametrize(("here", "differs"), [(NVIDIA, True), (AMD, False)])
def test_ras_address_differs_per_worker_with_nvidia_gpus(here: Machine, *, differs: bool) -> None:
    """A module that reads it is left to the workers."""
    prepared = preparation_of(job(), planned(job(), here, 2), {})

    assert prepared is not None
    assert ("NCCL_RAS_ADDR" in prepared.per_worker_variables) is differs


def test_nothing_is_prepared_for_workers_that_are_spawned() -> None:
    """Each worker executes a new interpreter."""
    spec = job(start_method=StartMethod.SPAWN)

    assert preparation_of(spec, planned(spec, NVIDIA, 2), {}) is None
