"""OMP_NUM_THREADS: a share that no worker exceeds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.door import (
    BindingOptions,
    Machine,
    NumaBinding,
    place,
    threads_per_worker,
)
from tests.plans import machine

TWO = {0: "0-7", 1: "8-15"}


def threads(here: Machine, workers: int, mode: NumaBinding = NumaBinding.NODE) -> int:
    return threads_per_worker(here, place(BindingOptions(mode), here, workers))


@pytest.mark.parametrize(("gpus", "expected"), [([0, 1], 8), ([0, 0], 4), ([0, 0, 1], 4)])
def test_workers_share_the_cores_of_their_node(gpus: list[int], expected: int) -> None:
    """All workers have the smallest share of the node: a forked worker can't have its own."""
    assert threads(machine(TWO, gpus), len(gpus)) == expected


def test_siblings_count_once() -> None:
    """Two threads on one core are hardly faster than one."""
    here = machine({0: "0-7"}, [0], cores=["0,4", "1,5", "2,6", "3,7"])

    assert threads(here, 1) == 4


def test_a_core_of_which_one_sibling_is_allowed_counts() -> None:
    """The job may use no more of the core."""
    here = machine({0: "0-7"}, [0], cores=["0,4", "1,5", "2,6", "3,7"], allowed="0-1")

    assert threads(here, 1) == 2


def test_unbound_workers_share_all_that_is_allowed() -> None:
    """Each may run on any allowed CPU."""
    here = machine(TWO, [0, 1], allowed="0-11")

    assert threads(here, 4, NumaBinding.NONE) == 3


def test_one_unbound_worker_lowers_the_share_of_all() -> None:
    """All workers of the node have the same number."""
    assert threads(machine(TWO, [0, None, None, None, None]), 5) == 3


def test_overlapping_masks_share() -> None:
    """Nodes of broken firmware tables have the same CPUs."""
    assert threads(machine({0: "0-7", 1: "0-7"}, [0, 1]), 2) == 4


def test_a_mask_within_another_counts_once() -> None:
    """The worker of both nodes has the second to itself."""
    here = machine(TWO, [0, 0, 0, 1])

    found = place(BindingOptions(NumaBinding.NODE, gpus_per_worker=2), here, 2)

    assert threads_per_worker(here, found) == 8


@pytest.mark.parametrize(("quota", "expected"), [(6.0, 3), (1.5, 1), (100.0, 8), (None, 8)])
def test_a_quota_on_time_counts(quota: float | None, expected: int) -> None:
    """The cgroup would slow down more threads than its quota allows."""
    assert threads(machine(TWO, [0, 1], quota=quota), 2) == expected


def test_there_is_always_one() -> None:
    """This holds for more workers than CPUs, too."""
    assert threads(machine({0: "0-1"}), 8) == 1
    assert threads(machine({}), 1) == 1


@given(st.integers(1, 16), st.sampled_from(NumaBinding))
def test_all_workers_together_never_exceed_the_cores(workers: int, mode: NumaBinding) -> None:
    """This holds while there is a core for each worker."""
    assert threads(machine(TWO), workers, mode) * workers <= 16
