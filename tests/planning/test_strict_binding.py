"""What ``--numa-strict`` refuses, also where other jobs have no warning."""

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.errors import MachineError
from clusterrun.job.options import NumaBinding
from clusterrun.machine.machine import Machine
from msgspec.structs import replace

from tests.plans import job, machine, planned

TWO = {0: "0-3", 1: "4-7"}
SOCKETS = (CpuSet.parse("0-3"), CpuSet.parse("4-7"))
SHARE = "3 workers share 1 core (CPUs 3); without binding each would have 1.2"
NO_NUMA = machine({}, [None, None], allowed="0-7", packages=["0-7"])
"""A kernel without NUMA: the machine is one node."""
MAPPED = machine(TWO, [0, 1])
MAPPED = replace(
    MAPPED, visible=tuple(replace(one, mapped_cpus=SOCKETS[0]) for one in MAPPED.visible)
)
"""The user has named the CPUs of each GPU."""
NOTHING_OF_NUMA = "not bound: the kernel shows no NUMA nodes"


def troubles(here: Machine, mode: NumaBinding, workers: int) -> list[str]:
    """Return the reasons for which a strict job is refused; [] if it starts."""
    asked = job(numa_strict=True, numa_binding=mode)
    try:
        planned(asked, here, workers)
    except MachineError as error:
        return error.hint.splitlines()
    return []


@pytest.mark.parametrize(
    ("here", "mode", "workers", "why"),
    [
        (NO_NUMA, "auto", 2, ""),
        (NO_NUMA, "socket", 2, ""),
        (NO_NUMA, "exclusive", 2, NOTHING_OF_NUMA),
        (NO_NUMA, "exclusive", 1, ""),
        (NO_NUMA, "core-complex", 2, NOTHING_OF_NUMA),
        (replace(NO_NUMA, packages=()), "auto", 2, NOTHING_OF_NUMA),
        (replace(NO_NUMA, packages=SOCKETS), "node", 2, NOTHING_OF_NUMA),
        (replace(NO_NUMA, packages=SOCKETS, visible=()), "near", 2, NOTHING_OF_NUMA),
        (replace(NO_NUMA, packages=SOCKETS, allowed=SOCKETS[1]), "near", 2, ""),
        (replace(NO_NUMA, packages=SOCKETS), "none", 2, ""),
        (machine(TWO), "exclusive", 1, "not bound: 1 worker for 2 NUMA nodes"),
        (machine(TWO), "auto", 1, "not bound: 1 worker for 2 NUMA nodes"),
        (machine(TWO, allowed="0-2"), "auto", 1, ""),
        (machine(TWO, allowed="0-2"), "exclusive", 1, ""),
        (machine(TWO), "auto", 2, ""),
        (machine(TWO), "none", 1, ""),
        (
            machine({0: "0-3"}, allowed="0-5"),
            "auto",
            2,
            "not bound: CPUs 4-5 belong to no NUMA node",
        ),
        (
            replace(machine(TWO, [0, 1]), packages=()),
            "socket",
            2,
            "bound to its NUMA node, not its socket: the machine's sockets are unknown",
        ),
        (replace(machine({0: "0-3"}, [0, 0]), packages=()), "socket", 2, ""),
        (machine({0: "0-3"}, [0]), "auto", 2, ""),
        (machine({0: "0-3"}, [0]), "exclusive", 2, "not bound: 2 workers for 1 GPU"),
        (machine(TWO, [0]), "auto", 2, "not bound: 2 workers for 1 GPU"),
        (replace(MAPPED, packages=()), "socket", 2, ""),
        (replace(machine(TWO, [0, 1]), packages=()), "auto", 2, ""),
        (machine(TWO, [0, 0, 0, 1], allowed="3-7"), "node", 4, SHARE),
        (
            machine(TWO, [0, 0], packages=["0-3", "4-7"], allowed="3-7"),
            "auto",
            2,
            "not bound: 2 workers would share 1 core (CPUs 3); without binding each has 2.5",
        ),
        (machine(TWO, [0], packages=["0-3", "4-7"], allowed="3-7"), "auto", 1, ""),
        (machine(TWO, [0], packages=["0-3", "4-7"], allowed="3-7"), "node", 1, ""),
    ],
)
def test_numa_strict_rejects_unbound_workers(
    here: Machine, mode: str, workers: int, why: str
) -> None:
    """A worker need not be bound on a single node, or if no CPUs are divided."""
    assert troubles(here, NumaBinding(mode), workers)[:1] == (
        [f"local rank 0: {why}"] if why else []
    )


def test_strict_reasons_are_escaped() -> None:
    """It quotes the variable that hides GPUs, which begins no line."""
    warning = "CUDA_VISIBLE_DEVICES=0\nclusterrun: error: x names no GPU"
    here = replace(machine(TWO), visible_warning=warning)

    assert troubles(here, NumaBinding.NODE, 2) == [warning.replace("\n", r"\n")]
