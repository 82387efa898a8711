"""OMP_NUM_THREADS: a share that no worker exceeds."""

import pytest
from clusterrun.job.options import NumaBinding
from clusterrun.machine.machine import Machine
from clusterrun.planning.binding import threads_per_worker
from hypothesis import given
from hypothesis import strategies as st

from tests.plans import BindingOptions, bind, machine

TWO = {0: "0-7", 1: "8-15"}
CORES = ("0,4", "1,5", "2,6", "3,7")


def threads(here: Machine, workers: int, mode: NumaBinding = NumaBinding.NODE) -> int:
    return threads_per_worker(here, bind(BindingOptions(mode), here, workers))


@pytest.mark.parametrize(
    ("here", "workers", "expected"),
    [
        # All workers have the smallest share of the node: a forked worker can't have its own.
        (machine(TWO, [0, 1]), 2, 8),
        (machine(TWO, [0, 0]), 2, 4),
        (machine(TWO, [0, 0, 1]), 3, 4),
        # Two threads on one core are hardly faster than one.
        (machine({0: "0-7"}, [0], cores=CORES), 1, 4),
        # Of these cores one sibling is allowed, and the job may use no more of them.
        (machine({0: "0-7"}, [0], cores=CORES, allowed="0-1"), 1, 2),
        # One unbound worker lowers the share of all.
        (machine(TWO, [0, None, None, None, None]), 5, 3),
        # Nodes of broken firmware tables have the same CPUs.
        (machine({0: "0-7", 1: "0-7"}, [0, 1]), 2, 4),
        # The cgroup would slow down more threads than its quota on time allows.
        (machine(TWO, [0, 1], quota=6.0), 2, 3),
        (machine(TWO, [0, 1], quota=1.5), 2, 1),
        (machine(TWO, [0, 1], quota=100.0), 2, 8),
        # A virtual machine's tables have the threads of each core on both nodes.
        (machine({0: "0-1", 1: "2-3"}, [0, 1], cores=["0,2", "1,3"]), 2, 1),
        # There is always one.
        (machine({0: "0-1"}), 8, 1),
        (machine({}), 1, 1),
    ],
)
def test_threads_are_the_smallest_share(here: Machine, workers: int, expected: int) -> None:
    assert threads(here, workers) == expected


def test_unbound_workers_share_all_allowed_cpus() -> None:
    """Each may run on any allowed CPU."""
    assert threads(machine(TWO, [0, 1], allowed="0-11"), 4, NumaBinding.NONE) == 3


def test_nested_masks_are_counted_once() -> None:
    """The worker of both nodes has the second to itself."""
    here = machine(TWO, [0, 0, 0, 1])

    found = bind(BindingOptions(NumaBinding.NODE, gpus_per_worker=2), here, 2)

    assert threads_per_worker(here, found) == 8


def test_overlapping_masks_are_counted_together() -> None:
    """Eight workers have twelve cores, though any three of the four masks have enough for two each."""
    nodes = {0: "0-2", 1: "3-5", 2: "6-8", 3: "9-11"}
    here = machine(nodes, [0, 1, 0, 1, 1, 2, 1, 2, 2, 3, 2, 3, 3, 0, 3, 0])

    found = bind(BindingOptions(NumaBinding.NODE, gpus_per_worker=2), here, 8)

    assert threads_per_worker(here, found) == 1


@given(st.integers(1, 16), st.sampled_from(NumaBinding))
def test_all_workers_together_never_exceed_the_cores(workers: int, mode: NumaBinding) -> None:
    """This holds while there is a core for each worker."""
    assert threads(machine(TWO), workers, mode) * workers <= 16
