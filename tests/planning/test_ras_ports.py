"""Which workers get a port for the RAS of their NCCL."""

from collections.abc import Mapping
from typing import Any

import pytest
from clusterrun.machine.machine import Machine
from clusterrun.planning.preparation import preparation_of
from msgspec.structs import replace

from tests.plans import job, machine, planned

HERE = machine({0: "0-7"}, [0, 0])
AMD = replace(HERE, visible=tuple(replace(gpu, vendor="amd") for gpu in HERE.visible))


def needing(
    here: Machine, workers: int, environ: Mapping[str, str] | None = None, **values: Any
) -> list[bool]:
    plan = planned(job(**values), here, workers, environ)
    assert not any("NCCL_RAS_ADDR" in worker.env for worker in plan.workers)
    return [worker.needs_ras_port for worker in plan.workers]


def test_nvidia_workers_need_ras_ports() -> None:
    assert needing(HERE, 2) == [True, True]


@pytest.mark.parametrize(
    ("here", "environ", "values"),
    [
        (machine({0: "0-7"}), {}, {}),
        (AMD, {}, {}),
        (HERE, {"NCCL_RAS_ADDR": "localhost:28028"}, {}),
        (HERE, {}, {"env": {"NCCL_RAS_ADDR": "localhost:28028"}}),
        (HERE, {"NCCL_RAS_ENABLE": "0"}, {}),
        (HERE, {}, {"env": {"NCCL_RAS_ENABLE": "0"}}),
        (HERE, {"NCCL_RAS_ENABLE": "2"}, {}),
        (HERE, {}, {"exec": True}),
    ],
)
def test_workers_without_ras_ports(
    here: Machine, environ: Mapping[str, str], values: dict[str, Any]
) -> None:
    """Without an NVIDIA GPU, if the user has chosen an address or none, or if no agent remains."""
    assert needing(here, 1, environ, **values) == [False]


@pytest.mark.parametrize("text", ["1", " 1 ", ""])
def test_ras_is_enabled_by_default(text: str) -> None:
    assert needing(HERE, 1, {"NCCL_RAS_ENABLE": text}) == [True]


def test_the_variable_differs_per_worker() -> None:
    """A module that reads it is left to the workers."""
    spec = job()
    prepared = [preparation_of(spec, planned(spec, here, 2), {}) for here in (HERE, AMD)]

    assert ["NCCL_RAS_ADDR" in each.per_worker_variables for each in prepared if each] == [
        True,
        False,
    ]
